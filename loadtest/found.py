"""What ``loadtest init`` finds: functions, the queues before them, what their environment
names. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.orders import EnvelopeKind


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that only the deployment, or its author, knows."""

    shown: str  # as a template would write it: ${AWS::Region}
    why: str  # the parameter Name has no default


@dataclass(frozen=True, slots=True)
class FoundTable:
    name: str  # short, for people: "orders" of OrdersTable
    key: str | None = None
    key_type: str = "S"
    sort: str | None = None
    sort_type: str = "S"


Number = int | Unknown | None
"""None: the template does not say, so that AWS's default holds."""


@dataclass(frozen=True, slots=True)
class FoundQueue:
    name: str
    declared: bool  # False: it is named, and stands in no template here
    visibility_timeout_s: Number = None
    max_receive_count: Number = None
    dead_letter: str | None = None  # the name of its dead-letter queue
    fifo: bool = False
    content_deduplication: bool = False
    envelope: EnvelopeKind | None = None  # what the sender puts around an order
    sender: str = ""  # its name


@dataclass(frozen=True, slots=True)
class FoundTopic:
    name: str


@dataclass(frozen=True, slots=True)
class FoundOther:
    """A resource of another type, such as a bucket."""

    name: str
    type: str


Found = FoundTable | FoundQueue | FoundTopic | FoundOther


@dataclass(frozen=True, slots=True)
class Named:
    """What a template refers to in place of a name."""

    of: Found
    part: str  # name, url, arn, or an attribute that has none of these


Value = tuple[str | Named | Unknown, ...]
"""A text in pieces; one piece where nothing is put together."""


@dataclass(frozen=True, slots=True)
class FoundMapping:
    """An event source mapping from a queue."""

    queue: FoundQueue
    batch_size: Number = None
    batching_window_s: Number = None
    report_batch_item_failures: bool = False
    maximum_concurrency: Number = None
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class FoundFunction:
    name: str
    label: str  # the file that has it
    handler: str | Unknown | None
    code: str | Unknown | None  # a folder as the file names it; None: the file names none
    runtime: str | None = None
    timeout_s: Number = None
    environment: Mapping[str, Value] = field(default_factory=dict)
    mappings: tuple[FoundMapping, ...] = ()
    tables: tuple[FoundTable, ...] = ()
    """Of the same templates, whether the environment names them or not."""
    copied_code: bool = False  # the folder is a copy that a build made
    layers: tuple[str, ...] = ()  # their folders, or their names where the file has no folder
