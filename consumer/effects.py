"""Declared side effects: which ones a call asks for, of which order, and what came of them.

An effect is declared by one operation, and is found in the service's batch forms of it too:
``Publish`` in ``PublishBatch``, ``SendMessage`` in ``SendMessageBatch``, ``PutItem``,
``UpdateItem`` and ``DeleteItem`` in ``TransactWriteItems`` and ``BatchWriteItem``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit
from xml.etree import ElementTree as Xml

import msgspec

from analysis.schema import Action, CallItem, Decision, Effect, EffectInfo, number_text
from consumer.aws_wire import HTTP_EFFECTS, Protocol, Subject, short_name
from consumer.dynamodb_wire import Request


def http_url(endpoint_url: str, name: str) -> str:
    """The URL by which a handler behind this door reaches the HTTP effect of this name."""
    return endpoint_url.rstrip("/") + HTTP_EFFECTS + quote(name, safe="")


@dataclass(frozen=True, slots=True)
class Asked:
    """One side effect that a call asks for."""

    row: Effect  # as written when the call is sent
    entry_id: str | None  # names it within its batch
    deduplicates: bool  # the service drops what it was sent before


@dataclass(frozen=True, slots=True)
class _Declared:
    number: int  # position in run.json's effects, from 1
    service: str
    operation: str
    resource: str | None
    key: str


@dataclass(frozen=True, slots=True)
class _Entry:
    operation: str | None  # as if it had been asked for alone; None: it changes nothing
    resource: str | None
    content: Any  # where the order key stands
    entry_id: str | None = None


class Effects:
    """The declared effects, and what FIFO topics and queues have been sent so far."""

    def __init__(self, declared: Sequence[EffectInfo]) -> None:
        self._declared = [
            _Declared(
                number,
                # Both versions of the mail service sign as the first.
                "ses" if effect.service == "sesv2" else effect.service,
                effect.operation,
                effect.resource and short_name(effect.resource),
                effect.key,
            )
            for number, effect in enumerate(declared, 1)
        ]
        self._services = {effect.service for effect in self._declared}
        self._sent: set[tuple[int, str]] = set()  # effect, message id

    def asked(
        self, call_id: int, subject: Subject, target: str, body: bytes, wire: Request | None
    ) -> list[Asked]:
        """The effects that a request asks for, by their position in it."""
        if subject.service not in self._services:
            return []
        asked = []
        for position, entry in enumerate(_entries(subject, target, body, wire), 1):
            for effect in self._declared:
                if (
                    entry.operation is not None
                    and effect.service == subject.service
                    and effect.operation in (subject.operation, entry.operation)
                    and effect.resource in (None, entry.resource)
                ):
                    key = order_key(entry.content, effect.key)
                    row = Effect(call_id, effect.number, position, key)
                    fifo = (entry.resource or "").endswith(".fifo")
                    asked.append(Asked(row, entry.entry_id, fifo))
        return asked

    def settled(
        self,
        asked: Iterable[Asked],
        decision: Decision,
        reply: bytes = b"",
        items: Sequence[CallItem] | None = None,
    ) -> list[Effect]:
        """What the service did.

        An effect that it had made before, and therefore did not make again, is rejected.

        :param decision: of the whole call.
        :param reply: its body, where batches say what became of their entries.
        :param items: what became of the items of a DynamoDB call, one for each position.
        """
        failed: set[str] = set()
        message_ids: Mapping[str | None, str] = {}
        rows = []
        if reply and decision is Decision.ACCEPTED:
            failed, message_ids = _told(reply)
        for one in asked:
            outcome = decision
            message_id = message_ids.get(one.entry_id)
            if items is not None:
                item = items[one.row.position - 1]
                # A transaction whose token was known turned into the question whether it was made.
                outcome = Decision.REJECTED if item.action is Action.CHECK else item.decision
            elif one.entry_id in failed:
                outcome = Decision.FAILED
            elif one.deduplicates and outcome is Decision.ACCEPTED and message_id is not None:
                if (one.row.effect, message_id) in self._sent:
                    outcome = Decision.REJECTED
                self._sent.add((one.row.effect, message_id))
            rows.append(replace(one.row, decision=outcome))
        return rows


# --- requests -------------------------------------------------------------------------

_ITEM_OPERATIONS = {
    Action.PUT: "PutItem",
    Action.UPDATE: "UpdateItem",
    Action.DELETE: "DeleteItem",
}


def _entries(subject: Subject, target: str, body: bytes, wire: Request | None) -> list[_Entry]:
    """What a request asks for, one by one; positions are those within the request."""
    if wire is not None:
        return [
            _Entry(_ITEM_OPERATIONS.get(touch.action), short_name(touch.table), touch.attributes)
            for touch in wire.touches
        ]
    content = _content(subject, target, body)
    match subject.operation, content:
        case "SendMessageBatch", {"Entries": [*entries]}:
            alone = "SendMessage"
        case "PublishBatch", {"PublishBatchRequestEntries": {"member": {**members}}}:
            alone, entries = "Publish", [*members.values()]
        case _:
            return [_Entry(subject.operation, subject.resource, content)]
    return [_Entry(alone, subject.resource, entry, _entry_id(entry)) for entry in entries]


def _entry_id(entry: Any) -> str | None:
    match entry:
        case {"Id": str(name)}:
            return name
    return None


def _content(subject: Subject, target: str, body: bytes) -> Any:
    """A request's members, whatever they are written in."""
    text = body.decode("utf-8", "replace")
    if subject.protocol is Protocol.QUERY:
        return _nested(parse_qsl(text))
    content: Any = _parsed(text)
    if subject.protocol is Protocol.HTTP:
        form = [] if content is not None else parse_qsl(text)
        return [content, dict(form), dict(parse_qsl(urlsplit(target).query))]
    return content


def _nested(form: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """``a.b.1=x`` as ``{"a": {"b": {"1": "x"}}}``."""
    content: dict[str, Any] = {}
    for name, value in form:
        *path, last = name.split(".")
        inner = content
        for part in path:
            below = inner.setdefault(part, {})
            if not isinstance(below, dict):
                break
            inner = below
        else:
            inner[last] = value
    return content


def _parsed(text: str) -> Any:
    """The object or list that a text holds; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def order_key(content: Any, name: str) -> str | None:
    """The value of the member of this name, the least deep one; None when there is none.

    Texts that hold JSON are looked into. Attribute values of DynamoDB, attributes of
    messages and pairs of ``Name`` and ``Value`` are taken for what they carry.
    """
    level = [content]
    while level:
        deeper: list[Any] = []
        for value in level:
            match value:
                case dict():
                    found = _text(value.get(name))
                    if found is None and value.get("Name") == name:
                        found = _text(value.get("Value"))
                    if found is not None:
                        return found
                    deeper.extend(value.values())
                case list():
                    deeper.extend(value)
                case str() if (parsed := _parsed(value)) is not None:
                    deeper.append(parsed)
        level = deeper
    return None


def _text(value: Any) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return None
        case int() | float():
            return number_text(str(value))
        case {"S": str(text)} | {"StringValue": str(text)}:
            return text
        case {"N": str(number)}:
            return number_text(number)
    return None


# --- replies --------------------------------------------------------------------------


class _Receipt(msgspec.Struct, rename="pascal"):
    id: str | None = None
    message_id: str | None = None


class _Receipts(msgspec.Struct, rename="pascal"):
    message_id: str | None = None
    successful: list[_Receipt] = []
    failed: list[_Receipt] = []


def _told(reply: bytes) -> tuple[set[str], dict[str | None, str]]:
    """Entries of a batch that failed, and the message ids that were given, by entry."""
    if reply.lstrip().startswith(b"<"):
        receipts = _xml_receipts(reply)
    else:
        try:
            receipts = msgspec.json.decode(reply, type=_Receipts)
        except (msgspec.DecodeError, UnicodeError):
            receipts = _Receipts()
    given = [_Receipt(None, receipts.message_id), *receipts.successful]
    return (
        {entry.id for entry in receipts.failed if entry.id is not None},
        {entry.id: entry.message_id for entry in given if entry.message_id is not None},
    )


def _xml_receipts(reply: bytes) -> _Receipts:
    try:
        root = Xml.fromstring(reply)
    except (Xml.ParseError, LookupError, ValueError):  # the last two: of its encoding
        return _Receipts()

    def members(name: str) -> list[_Receipt]:
        return [
            _Receipt(entry.findtext("{*}Id"), entry.findtext("{*}MessageId"))
            for entry in root.iterfind(f".//{{*}}{name}/{{*}}member")
        ]

    alone = root.findtext("./{*}PublishResult/{*}MessageId")
    return _Receipts(alone, members("Successful"), members("Failed"))
