"""The sample stack as data: its names, its rights, its code, and the record of what was made.

Nothing here speaks to AWS.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from analysis.errors import RecordingError, UsageError
from loadtest import __version__
from loadtest.aws.account import Identity
from loadtest.aws.resources import TAG, Kind, arn_of

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_CODE = Path(__file__).parents[2] / "consumer" / "app.py"
_RECORD_FORMAT = 1

HANDLER = "app.handler"
RUNTIME = "python3.12"
TIMEOUT_S = 5
MEMORY_MB = 256
"""Loading boto3 at 128 MB takes longer than the work itself."""
VISIBILITY_TIMEOUT_S = 6 * TIMEOUT_S
"""What AWS advises (Lambda developer guide, "Configuring an SQS queue for use with Lambda")."""
MAX_RECEIVE_COUNT = 5
"""At least this with Lambda (same page)."""
LOG_RETENTION_DAYS = 1
DEAD_LETTER_RETENTION_S = 14 * 86_400


@dataclass(frozen=True, slots=True)
class Names:
    """What the parts of a stack are called."""

    stack: str
    region: str

    def __post_init__(self) -> None:
        check_name(self.stack)

    @property
    def function(self) -> str:
        return f"{TAG}-{self.stack}"

    @property
    def queue(self) -> str:
        return f"{TAG}-{self.stack}-queue"

    @property
    def dead_letter_queue(self) -> str:
        return f"{TAG}-{self.stack}-dlq"

    @property
    def orders(self) -> str:
        return f"{TAG}-{self.stack}-orders"

    @property
    def reference(self) -> str:
        return f"{TAG}-{self.stack}-reference"

    @property
    def role(self) -> str:
        """Roles belong to no region, so the name tells it."""
        return f"{TAG}-{self.stack}-{self.region}"

    @property
    def log_group(self) -> str:
        return f"/aws/lambda/{self.function}"

    def parts(self) -> tuple[tuple[Kind, str], ...]:
        """All that has a name, in the order of making. A mapping has none but its UUID."""
        return (
            (Kind.LOG_GROUP, self.log_group),
            (Kind.QUEUE, self.dead_letter_queue),
            (Kind.QUEUE, self.queue),
            (Kind.TABLE, self.orders),
            (Kind.TABLE, self.reference),
            (Kind.ROLE, self.role),
            (Kind.FUNCTION, self.function),
        )


def check_name(stack: str) -> None:
    """:raises UsageError: it cannot be the name of a stack."""
    if not _NAME.fullmatch(stack):
        raise UsageError(
            f"{stack!r} cannot be the name of a stack: at most 32 lower-case letters, digits and "
            "hyphens, no hyphen at either end."
        )


def trust_policy() -> str:
    """Who may take the role: Lambda alone."""
    return _policy(
        [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ]
    )


def least_rights(identity: Identity, names: Names) -> str:
    """What the function may do, and nothing else.

    The mapping uses the function's own role to read the queue (Lambda developer guide, "Using
    Lambda with Amazon SQS"). The condition of a put, and the old item that a failed one
    returns, need no right of their own. The log group is there before, so it need not be made.
    """
    return _policy(
        [
            {
                "Effect": "Allow",
                "Action": ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"],
                "Resource": arn_of(identity, Kind.QUEUE, names.queue),
            },
            {
                "Effect": "Allow",
                "Action": ["dynamodb:PutItem"],
                "Resource": arn_of(identity, Kind.TABLE, names.orders),
            },
            {
                "Effect": "Allow",
                "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
                "Resource": arn_of(identity, Kind.LOG_GROUP, names.log_group) + ":*",
            },
        ]
    )


def _policy(statements: list[dict[str, object]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def package() -> bytes:
    """The reference handler as Lambda takes it; the same bytes every time."""
    return zip_of({"app.py": _CODE.read_bytes()})


def zip_of(files: Mapping[str, bytes]) -> bytes:
    """An archive of these files by name. Stored, not deflated: compressors differ from version to
    version."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, on every machine
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def code_sha256(package: bytes) -> str:
    """As Lambda says it of the code that it runs (``CodeSha256``)."""
    return base64.b64encode(hashlib.sha256(package).digest()).decode()


# --- the record ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    kind: Kind
    name: str  # of a mapping, its UUID
    arn: str | None = None  # None: may have been made, or not


@dataclass(frozen=True, slots=True)
class StackRecord:
    """What a deployment has made or was about to make: names and ARNs, no secret."""

    stack: str
    stack_id: str  # the value of the tag
    account_id: str
    region: str
    endpoint_url: str | None
    created_at: int  # ns since epoch
    tool_version: str
    parts: tuple[Part, ...]
    format: int = _RECORD_FORMAT

    @classmethod
    def planned(
        cls, identity: Identity, names: Names, *, stack_id: str, created_at: int
    ) -> StackRecord:
        """Before the first part exists."""
        return cls(
            stack=names.stack,
            stack_id=stack_id,
            account_id=identity.account_id,
            region=identity.region,
            endpoint_url=identity.endpoint_url,
            created_at=created_at,
            tool_version=__version__,
            parts=tuple(Part(kind, name) for kind, name in names.parts()),
        )

    def with_part(self, part: Part) -> StackRecord:
        """With this part in place of the one of its name."""
        others = (
            other for other in self.parts if (other.kind, other.name) != (part.kind, part.name)
        )
        return replace(self, parts=(*others, part))


def record_path(out: Path, stack: str) -> Path:
    return out / f"aws-{stack}.json"


def write_record(path: Path, record: StackRecord) -> None:
    """Replace the record as a whole: whenever it is read, it is complete.

    :raises RecordingError: it cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    fresh = path.with_suffix(".json.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise RecordingError(
            f"{path} cannot be written ({error.strerror}): what is made could not be found again. "
            "Name another folder with --out."
        ) from error


def remove_record(path: Path) -> None:
    """What it stood for is gone."""
    path.unlink(missing_ok=True)


def read_record(path: Path) -> StackRecord | None:
    """The record there; None when there is none.

    :raises UsageError: it is no record, or of another version.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=StackRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path} is no record of a stack ({error}). Move it away; loadtest clean --orphans "
            "finds by tag what it stood for."
        ) from error
    if record.format != _RECORD_FORMAT:
        raise UsageError(
            f"{path} has format {record.format}, this version knows {_RECORD_FORMAT}. Use the "
            f"version that wrote it: {record.tool_version}."
        )
    return record


def records(out: Path) -> Iterable[StackRecord]:
    """All readable records in this folder."""
    for path in sorted(out.glob("aws-*.json")):
        record = read_record(path)
        if record is not None:
            yield record
