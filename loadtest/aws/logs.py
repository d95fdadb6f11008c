"""What a function's log says of its invocations, in Lambda's text and JSON formats.

Reading is by ``FilterLogEvents``; everything else here is pure. Formats: Lambda developer
guide, "Working with Lambda function logs" (START, END and REPORT lines, ``platform.*``
records), "Understanding the Lambda execution environment lifecycle" (a timeout is the
``Status`` of the REPORT line; before 2025 it was a line "Task timed out").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.schema import Invocation, Outcome
from loadtest.aws.account import Account

_MS = 1_000_000
_MOST_TEXT = 1_000  # characters of an error message
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SQS_ID = re.compile(_UUID)
_PLATFORM = re.compile(r"(START|END|REPORT) RequestId: (\S+)(.*)", re.DOTALL)
_FIGURE = re.compile(r"(Init Duration|Billed Duration|Duration|Memory Size): ([\d.]+)")
_STATUS = re.compile(r"Status: (\w+)(?:\s+Error Type: (\S+))?")
_TIMED_OUT = re.compile(rf"({_UUID}) Task timed out after")
# As the Python runtime tells an exception that nobody caught; a logger puts a tab instead.
_UNCAUGHT = re.compile(r"\[ERROR\] ([\w.]+)(?:: (.*))?", re.DOTALL)
_CRASHES = ("Runtime.ExitError", "Runtime.ExitOutOfMemory", "Extension.Crash")


@dataclass(frozen=True, slots=True)
class LogEvent:
    stream: str  # one a execution environment
    at_ms: int
    message: str


@dataclass(slots=True)
class Logged:
    """One invocation, as far as the log tells of it."""

    request_id: str
    stream: str
    started_ms: int | None = None
    ended_ms: int | None = None
    is_reported: bool = False
    duration_ms: float = 0.0
    billed_ms: float = 0.0
    memory_mb: int = 0
    init_ms: float | None = None  # of a cold start
    outcome: Outcome | None = None
    error_type: str | None = None
    error_message: str | None = None
    lines: list[str] = field(default_factory=list)  # the handler's own

    @property
    def is_whole(self) -> bool:
        return self.started_ms is not None and self.ended_ms is not None and self.is_reported

    def sqs_ids(self, known: Mapping[str, int]) -> list[str]:
        """The messages of the run that its lines name, in the order of their first mention."""
        found = (name for line in self.lines for name in _SQS_ID.findall(line) if name in known)
        return list(dict.fromkeys(found))

    def row(self, invocation_id: int, environment: int) -> Invocation:
        """Lines carry whole milliseconds. The row begins a millisecond late rather than early:
        two invocations overlap in it only if they did so for certain. One that left no line about
        an error counts as returned."""
        ended_ms = self.ended_ms
        started_ms = self.started_ms if self.started_ms is not None else ended_ms or 0
        if ended_ms is not None:
            # An emulator may log START only when all is over.
            started_ms = min(started_ms, ended_ms - int(self.duration_ms))
        started_at = started_ms * _MS + _MS - 1
        return Invocation(
            invocation_id=invocation_id,
            request_id=self.request_id,
            environment=environment,
            cold=self.init_ms is not None,
            started_at=started_at,
            ended_at=None if ended_ms is None else max(started_at, ended_ms * _MS),
            outcome=None if ended_ms is None else self.outcome or Outcome.RETURNED,
            error_type=self.error_type,
            error_message=self.error_message,
        )


def read_invocations(events: Iterable[LogEvent]) -> list[Logged]:
    """The invocations in a function's log, in the order in which they began.

    A line belongs to the request that it names, else to the one that its environment was at
    work on: an environment has one at a time.
    """
    found: dict[str, Logged] = {}
    current: dict[str, Logged | None] = {}

    def of(request_id: str, stream: str) -> Logged:
        return found.setdefault(request_id, Logged(request_id, stream))

    for event in sorted(events, key=lambda event: event.at_ms):  # stable
        record = _json(event.message)
        if record is not None and str(record.get("type", "")).startswith("platform."):
            _platform_record(record, event, of, current)
        elif (match := _PLATFORM.match(event.message)) is not None:
            _platform_line(match, event, of, current)
        elif (match := _TIMED_OUT.search(event.message)) is not None:
            of(match[1], event.stream).outcome = Outcome.TIMED_OUT
        else:
            named = None if record is None else _request_id(record)
            logged = found.get(named or "") or current.get(event.stream)
            if logged is not None:
                logged.lines.append(event.message)
                _uncaught(logged, event.message, record)
    return sorted(found.values(), key=lambda one: one.started_ms or one.ended_ms or 0)


def _json(message: str) -> dict[str, Any] | None:
    if not message.startswith("{"):
        return None
    try:
        record = json.loads(message)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _request_id(record: Mapping[str, Any]) -> str | None:
    named = record.get("requestId") or record.get("AWSRequestId") or record.get("aws_request_id")
    return named if isinstance(named, str) else None


_Find = Callable[[str, str], Logged]
_Current = dict[str, Logged | None]


def _platform_line(match: re.Match[str], event: LogEvent, of: _Find, current: _Current) -> None:
    what, request_id, rest = match[1], match[2], match[3]
    logged = of(request_id, event.stream)
    match what:
        case "START":
            logged.started_ms = event.at_ms
            current[event.stream] = logged
        case "END":
            logged.ended_ms = event.at_ms
            current[event.stream] = None
        case _:
            figures = dict(_FIGURE.findall(rest))
            status = _STATUS.search(rest)
            _report(
                logged,
                event,
                {name: float(value) for name, value in figures.items()},
                ("Duration", "Billed Duration", "Memory Size", "Init Duration"),
            )
            if status is not None:
                _ended(logged, status[1], status[2])


def _platform_record(
    record: Mapping[str, Any], event: LogEvent, of: _Find, current: _Current
) -> None:
    about = record.get("record")
    if not isinstance(about, dict) or not isinstance(about.get("requestId"), str):
        return  # of the environment, not of an invocation
    logged = of(about["requestId"], event.stream)
    match record["type"]:
        case "platform.start":
            logged.started_ms = event.at_ms
            current[event.stream] = logged
        case "platform.runtimeDone":
            logged.ended_ms = event.at_ms
            current[event.stream] = None
            _ended(logged, about.get("status"), about.get("errorType"))
        case "platform.report":
            metrics = about.get("metrics")
            _report(
                logged,
                event,
                metrics if isinstance(metrics, dict) else {},
                ("durationMs", "billedDurationMs", "memorySizeMB", "initDurationMs"),
            )
            _ended(logged, about.get("status"), about.get("errorType"))


def _report(
    logged: Logged, event: LogEvent, figures: Mapping[str, Any], names: tuple[str, str, str, str]
) -> None:
    duration, billed, memory, init = names
    logged.is_reported = True
    logged.duration_ms = float(figures.get(duration, 0))
    logged.billed_ms = float(figures.get(billed, 0))
    logged.memory_mb = int(figures.get(memory, 0))
    logged.init_ms = float(figures[init]) if init in figures else None
    if logged.ended_ms is None:
        logged.ended_ms = event.at_ms  # a JSON log may hold no runtimeDone


def _ended(logged: Logged, status: object, error_type: object) -> None:
    match status:
        case "timeout":
            logged.outcome = Outcome.TIMED_OUT
        case "error" | "failure":
            crashed = str(error_type).startswith(_CRASHES)
            logged.outcome = Outcome.CRASHED if crashed else Outcome.RAISED
        case _:
            return
    if isinstance(error_type, str):
        logged.error_type = error_type


def _uncaught(logged: Logged, message: str, record: Mapping[str, Any] | None) -> None:
    """An exception that left the handler, in the words of the Python runtime."""
    if record is not None and "log_level" in record and "errorType" in record:
        error_type, text = str(record["errorType"]), str(record.get("errorMessage", ""))
    elif (match := _UNCAUGHT.match(message)) is not None:
        error_type, text = match[1], re.split(r"[\r\n]", match[2] or "")[0]
    else:
        return
    logged.outcome = logged.outcome or Outcome.RAISED
    logged.error_type = error_type
    logged.error_message = text[:_MOST_TEXT]


def environments(invocations: Sequence[Logged]) -> dict[str, int]:
    """Log stream -> number of the environment, from 1."""
    streams = dict.fromkeys(one.stream for one in invocations)
    return {stream: number for number, stream in enumerate(streams, 1)}


async def read_log(account: Account, group: str, since_ms: int) -> list[LogEvent]:
    """All events of the group since then; none when there is no such group yet.

    A page may be empty and not be the last one (CloudWatch Logs API reference,
    FilterLogEvents).
    """
    events: list[LogEvent] = []
    parameters: dict[str, Any] = {"logGroupName": group, "startTime": since_ms}
    while True:
        page = await account.find("logs", "FilterLogEvents", **parameters)
        if page is None:
            return events
        events += [
            LogEvent(
                str(event.get("logStreamName", "")),
                int(event.get("timestamp", 0)),
                str(event.get("message", "")).rstrip("\n"),
            )
            for event in page.get("events", ())
        ]
        if not page.get("nextToken"):
            return events
        parameters["nextToken"] = page["nextToken"]
