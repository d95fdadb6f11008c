"""What ``consumer/function_recorder.py`` wrote into a function's log, as evidence. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.schema import (
    Action,
    Call,
    CallItem,
    Decision,
    EffectInfo,
    Fault,
    Invocation,
    Message,
    Outcome,
    ResultInfo,
    ResultRow,
    Row,
    TableInfo,
    item_text,
)
from analysis.text import count
from consumer import aws_wire, dynamodb_wire
from consumer.batch_response import fates
from consumer.dynamodb_wire import Exchange
from consumer.effects import Effects
from consumer.faults import FaultName, FaultRule
from consumer.injector import fault_text
from loadtest.aws.logs import Logged

_Line = Mapping[str, Any]
_CRASHES = (
    FaultName.CRASH_BEFORE_CALL,
    FaultName.CRASH_AFTER_CALL,
    FaultName.CRASH_BEFORE_ANSWER,
)


@dataclass(slots=True)
class Recording:
    """The recorder's lines of one invocation."""

    start: _Line | None = None
    end: _Line | None = None
    calls: list[tuple[_Line, _Line | None]] = field(default_factory=list)  # sent, answered
    faults: dict[int | None, _Line] = field(default_factory=dict)  # by call; None: of its end

    @property
    def is_crashed(self) -> bool:
        return any(line["name"] in _CRASHES for line in self.faults.values())


def recording_of(logged: Logged) -> Recording:
    found = Recording()
    places: dict[tuple[str, int], int] = {}
    for text in logged.lines:
        line = _line(text)
        match line and line["onceproof"]:
            case "start":
                found.start = line
            case "end":
                found.end = line
            case "fault":
                assert line is not None
                found.faults[line.get("call")] = line
            case "call":
                assert line is not None
                places[line["environment"], line["call"]] = len(found.calls)
                found.calls.append((line, None))
            case "reply":
                assert line is not None
                place = places.get((line["environment"], line["call"]))
                if place is not None:
                    found.calls[place] = (found.calls[place][0], line)
    return found


def _line(text: str) -> _Line | None:
    if not text.startswith('{"onceproof":'):
        return None
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def gap(invocations: Sequence[Logged]) -> str | None:
    """Why the recorder's lines are not complete; None when they are."""
    without = 0
    for logged in invocations:
        found = recording_of(logged)
        # It was killed on the way, by Lambda or by a fault.
        is_cut = (logged.outcome is not None or found.is_crashed) and found.end is None
        without += found.start is None or (found.end is None and not is_cut)
    if not without:
        return None
    return (
        f"The lines of the recorder are missing in {without} of "
        f"{count(len(invocations), 'invocation')}."
    )


class Recorded:
    """Rows from recordings, invocation by invocation."""

    def __init__(
        self,
        tables: Sequence[TableInfo],
        messages: Mapping[str, Message],
        *,
        report_batch_item_failures: bool,
        result_fields: ResultInfo,
        effects: Sequence[EffectInfo],
        faults: Sequence[FaultRule],
        next_id: Callable[[type[Call | Fault]], int],
    ) -> None:
        """
        :param tables: with their real names.
        :param messages: by SQS message id, those that the queue accepted.
        :param effects: the calls that count as side effects; their numbers are their positions.
        """
        self._keys = {
            table.name: tuple(name for name in (table.key, table.sort) if name is not None)
            for table in tables
        }
        self._messages = messages
        self._report_batch_item_failures = report_batch_item_failures
        self._result_fields = result_fields
        self._effects = Effects(effects)
        self._faults = faults
        self._next_id = next_id
        self._tokens: set[str] = set()  # of transactions that were made
        self._environments: dict[str, int] = {}
        self.unknown_before = 0
        """Accepted writes of which the recorder cannot tell what they replaced."""
        self.opportunities: Counter[int] = Counter()
        """Places that a fault rule matched, by the rule's number."""
        self.fired: Counter[int] = Counter()

    def invocation(self, logged: Logged, row: Invocation) -> Invocation:
        """With the times of the handler itself, what it returned, and its real environment."""
        found = recording_of(logged)
        if found.start is None:
            return row
        names = self._environments
        environment = names.setdefault(found.start["environment"], len(names) + 1)
        row = replace(
            row,
            environment=environment,
            cold=found.start["cold"],
            started_at=found.start["at"],
        )
        if found.end is None:  # it was killed on the way
            ended_at = max(row.started_at, row.ended_at or row.started_at)
            outcome = Outcome.CRASHED if found.is_crashed else row.outcome
            return replace(row, ended_at=ended_at, outcome=outcome)
        return replace(
            row,
            ended_at=found.end["at"],
            outcome=Outcome(found.end["outcome"]),
            response=found.end.get("response"),
            error_type=found.end.get("error_type", row.error_type),
            error_message=found.end.get("error_message", row.error_message),
        )

    def rows(self, logged: Logged, row: Invocation) -> Iterator[Row]:
        """Its calls with their items, and its results.

        :param row: as :meth:`invocation` gives it.
        """
        found = recording_of(logged)
        for sent, answered in found.calls:
            fault = found.faults.get(sent["call"])
            yield from self._call(sent, answered, fault, row.invocation_id)
        last = found.faults.get(None)
        if last is not None:
            yield self._fired(last, row.invocation_id, None)
        for line in (*(sent for sent, _ in found.calls), found.end, last):
            self.opportunities.update((line or {}).get("places", ()))
        if found.start is None or row.outcome is None:
            return
        ids = [str(message["id"]) for message in found.start["messages"]]
        for sqs_id, fate in zip(
            ids,
            fates(
                row,
                ids,
                report_batch_item_failures=self._report_batch_item_failures,
                fields=self._result_fields,
            ),
            strict=True,
        ):
            message = self._messages.get(sqs_id)
            if message is not None and fate.result is not None:
                yield ResultRow(row.invocation_id, message.message_no, fate.result, fate.detail)

    def _rule(self, fault: _Line) -> FaultRule:
        number: int = fault["rule"]
        return self._faults[number - 1]

    def _fired(self, fault: _Line, invocation_id: int, call_id: int | None) -> Fault:
        self.fired[fault["rule"]] += 1
        return Fault(
            fault_id=self._next_id(Fault),
            rule=fault["rule"],
            name=fault["name"],
            at=fault["at"],
            duration_ns=round(fault.get("seconds", 0) * 1e9),
            message_no=fault["message"],
            receive=fault["receive"],
            call=fault["number"],
            delivery_id=None,
            invocation_id=invocation_id,
            call_id=call_id,
        )

    def _call(
        self, sent: _Line, answered: _Line | None, fault: _Line | None, invocation_id: int
    ) -> Iterator[Row]:
        body = (sent.get("request") or "").encode()
        headers = {
            "Authorization": f"Credential=-/20000101/{sent.get('region')}/{sent.get('service')}"
            "/aws4_request",
            "X-Amz-Target": sent.get("target"),
            "Content-Type": sent.get("content_type"),
        }
        present = {name: value for name, value in headers.items() if value is not None}
        subject = aws_wire.subject(sent["method"], sent["path"], present, body)
        exchange = learned = _exchange(subject, answered)
        told = answered or {}  # that says what the service did
        if fault is not None:
            if "status" in fault:
                told, exchange = fault, _exchange(subject, fault)
            else:
                exchange = replace(exchange, decision=Decision.FAILED)  # it never was asked
        call_id = self._next_id(Call)
        is_dynamodb = subject.service == "dynamodb"
        request = dynamodb_wire.parse(subject.operation, body) if is_dynamodb else None
        done = exchange.decision
        rows: list[CallItem] = []
        if request is not None:
            exchange = replace(exchange, replayed=request.token in self._tokens)
            rows = self._items(request, exchange, call_id)
            if request.token is not None and done is Decision.ACCEPTED:
                self._tokens.add(request.token)
        yield Call(
            call_id=call_id,
            invocation_id=invocation_id,
            attempt=sent["attempt"],
            sdk_id=sent.get("sdk_id"),
            service=subject.service,
            operation=subject.operation,
            resource=subject.resource,
            request=aws_wire.request_text(sent["method"], sent["path"], body, None),
            sent_at=sent["at"],
            answered_at=None if answered is None else answered["at"],
            decision=learned.decision,
            error_code=learned.code,
            fault=None if fault is None else fault_text(self._rule(fault)),
        )
        if fault is not None:
            yield self._fired(fault, invocation_id, call_id)
        yield from rows
        writes = rows if request is not None and request.writes and rows else None
        yield from self._effects.settled(
            self._effects.asked(call_id, subject, sent["path"], body, request),
            done,
            (told.get("reply") or "").encode(),
            writes,
        )

    def _items(
        self, request: dynamodb_wire.Request, exchange: Exchange, call_id: int
    ) -> list[CallItem]:
        if not request.writes:
            return dynamodb_wire.read_rows(request, call_id, exchange, self._key_names)
        rows = []
        for touch in request.touches:
            names = self._key_names(touch.table)
            key = dynamodb_wire.key_of(touch.attributes, names) if names else None
            if key is None:
                return []
            table = aws_wire.short_name(touch.table)
            rows.append(CallItem(call_id, table, item_text(key), touch.action, touch.condition))
        settled = dynamodb_wire.settle(request, rows, exchange)
        self.unknown_before += sum(
            row.decision is Decision.ACCEPTED
            and row.before is None
            and row.action is not Action.CHECK
            for row in settled
        )
        return settled

    def _key_names(self, table: str) -> Sequence[str] | None:
        return self._keys.get(aws_wire.short_name(table))


def _exchange(subject: aws_wire.Subject, answered: _Line | None) -> Exchange:
    """What the reply said; nothing is known where there was none."""
    if answered is None or "status" not in answered:
        return Exchange(Decision.UNKNOWN, (answered or {}).get("failed"), None)
    status, body = answered["status"], (answered.get("reply") or "").encode()
    error_type = answered.get("error_type")
    code = aws_wire.error_code(
        status, {} if error_type is None else {"x-amzn-errortype": error_type}, body
    )
    reply = dynamodb_wire.parse_reply(body) if subject.service == "dynamodb" else None
    decision = aws_wire.decision(status, reads=subject.reads)
    if reply is not None:
        decision = dynamodb_wire.write_decision(decision, code, reply)
    return Exchange(decision, code, reply)
