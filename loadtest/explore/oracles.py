"""The two oracles that a search asks: the real handler, and the real store."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from analysis.errors import TargetError
from analysis.item_kinds import order_key_of
from analysis.schema import (
    Action,
    Invocation,
    OrderInfo,
    ResultInfo,
    TableInfo,
    TableRole,
    item_text,
)
from consumer import dynamodb_wire, fault_replies
from consumer.aws_wire import Protocol
from consumer.batch_response import fates
from consumer.explore_environment import Ended, Fork, Zygote, next_step, with_end
from consumer.gate import Door, Gate, Told, WireCall
from consumer.gateway import UPSTREAM_KEEPALIVE_S
from consumer.signing import Signer
from loadtest.explore.cast import LEARNING, Receives
from loadtest.explore.model import (
    CONFLICTED,
    LOST,
    THROTTLED,
    Answer,
    Call,
    Calls,
    History,
    Items,
    NondeterministicError,
    Reply,
    Run,
)
from loadtest.explore.requests import (
    NO_TABLE,
    SENT,
    SERVICE,
    TOKEN,
    Place,
    Reader,
    Understood,
    outline,
    placed,
)
from loadtest.explore.world import Stored
from loadtest.paths import details_text
from loadtest.plan import PlannedMessage

_KEPT_RUNS = 48
"""Runs that stand at a call, at most, in the hope that the next question is about them. Each
takes some 9 MB with boto3 alone."""
_BATCH = 25  # of BatchWriteItem (API reference)
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "expect", "te"}
)
_REQUEST_ID = re.compile(rb"<RequestId>[^<]*</RequestId>")


class Known:
    """What both oracles have to tell each other: the bytes behind the texts."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.requests: dict[str, Understood] = {}  # by the text of the call
        self.replies: dict[str, Told] = {}  # by the text of the reply

    def request(self, asked: WireCall) -> Call:
        understood = self.reader.read(asked)
        return self.requests.setdefault(understood.call.text, understood).call


# --- the handler ------------------------------------------------------------------------


@dataclass(slots=True)
class _Going:
    """A run that stands at a call, or at several."""

    fork: Fork
    gate: Gate
    door: Door
    asked: tuple[WireCall, ...] = ()  # in the order of what is remembered


class RealHandler:
    """Runs the handler in a process of its own, with replies from memory.

    A run is left standing at its call for a while: when the next question is about the same
    run and one reply more, it simply goes on. Every other question starts anew, and what it
    does on the way is compared with what is remembered; so is one whole repetition of each
    run.

    :param messages: one for each copy.
    :param strict: False: values may differ from run to run, the first ones count, and nothing
        is repeated to see whether they do.
    :raises ParallelCallsError: from :meth:`next`: see :func:`next_step`.
    :raises HandlerError: from :meth:`next`, when no run can be started any more.
    """

    def __init__(
        self,
        zygote: Zygote,
        receives: Receives,
        messages: Sequence[PlannedMessage],
        known: Known,
        *,
        report_batch_item_failures: bool,
        result_fields: ResultInfo,
        strict: bool = True,
    ) -> None:
        self.runs = 0
        """Processes started."""
        self.calls = 0
        """Calls seen, repeated ones counted again."""
        self.unpinned: set[str] = set()
        """Calls whose ids or times differ between runs, as first seen."""
        self.parallel = False
        """Whether a run had several calls under way at once."""
        self.equal: set[str] = set()
        """Calls of which a run had two equal ones under way at once."""
        self._zygote = zygote
        self._receives = receives
        self._messages = messages
        self._known = known
        self._report = report_batch_item_failures
        self._fields = result_fields
        self._strict = strict
        self._steps: dict[tuple[Run, History], Calls | Answer] = {}
        self._repeated: set[Run] = set()  # run to their end once more
        self._kept: dict[tuple[Run, History], _Going] = {}
        self._free: list[Door] = []
        self._ports: dict[Door, int] = {}

    async def next(self, run: Run, history: History) -> Calls | Answer:
        known = self._steps.get((run, history))
        if known is not None:
            return known
        going = await self._standing_at(run, history[:-1]) if history else None
        if going is None:
            step = await self._pass(run, history, keep=True)
        else:
            step = await self._go_on(going, run, history, len(history) - 1, keep=True)
        if self._strict and isinstance(step, Answer) and run not in self._repeated:
            self._repeated.add(run)
            await self._pass(run, history, keep=False)  # to see whether it is the same again
        return step

    async def close(self) -> None:
        while self._kept:
            await self._end(self._kept.popitem()[1])
        for door in self._ports:
            await door.close()

    async def _pass(self, run: Run, history: History, *, keep: bool) -> Calls | Answer:
        """Start the run, and take it through its history."""
        door = await self._door()
        gate = door.gate = Gate()
        start = self._receives.start(LEARNING, run, self._messages, self._ports[door])
        self.runs += 1
        going = _Going(self._zygote.fork(start), gate, door)
        return await self._go_on(going, run, history, None, keep=keep)

    async def _go_on(
        self, going: _Going, run: Run, history: History, standing_at: int | None, *, keep: bool
    ) -> Calls | Answer:
        """
        :param standing_at: how many replies it has had; None: it has just been started.
        """
        try:
            position = 0
            if standing_at is None:
                step = await self._step(going, run, ())
            else:
                position = standing_at
                step = self._steps[run, history[:position]]
            while position < len(history):
                if isinstance(step, Answer):
                    raise NondeterministicError(run, position + 1, "another call", step.text)
                place, reply = history[position]
                going.gate.let_go(going.asked[place], self._told(step[place], reply))
                position += 1
                step = await self._step(going, run, history[:position])
        except BaseException:
            await self._end(going)
            raise
        if isinstance(step, Answer) or not keep:
            await self._end(going)
        else:
            await self._keep(going, run, history)
        return step

    async def _step(self, going: _Going, run: Run, history: History) -> Calls | Answer:
        """What it does now, which must be what it did before."""
        before = self._steps.get((run, history))
        done = await next_step(
            going.gate,
            going.fork,
            self._receives.patience_s,
            one_call=before is not None and not self.parallel,
        )
        step: Calls | Answer
        if isinstance(done, tuple):
            self.calls += len(done)
            calls = sorted(((self._known.request(one), one) for one in done), key=_in_order)
            step, going.asked = tuple(call for call, _ in calls), tuple(one for _, one in calls)
            self.parallel = self.parallel or len(step) > 1
            for first, second in itertools.pairwise(step):
                if first.text == second.text:
                    self.equal.add(first.text)
        else:
            step = self._answer(run, done)
        if before is None:
            self._steps[run, history] = step
            return step
        differing = [
            (one, other)
            for one, other in itertools.zip_longest(_texts(before), _texts(step))
            if one != other
        ]
        for one, other in differing:
            alike = one is not None and other is not None and self._alike(one, other)
            if type(before) is not type(step) or not alike:
                raise NondeterministicError(
                    run, len(history) + 1, one or "no further call", other or "no further call"
                )
            self.unpinned.add(one)
        return before

    def _alike(self, before: str, now: str) -> bool:
        if self._strict:
            return placed(before) == placed(now)
        return outline(before) == outline(now)

    def _answer(self, run: Run, ended: Ended | None) -> Answer:
        row = with_end(Invocation(0, "", 0, False, 0), ended, 0, self._receives.timeout_s)
        found = fates(
            row,
            [self._receives.message_id(LEARNING, copy) for copy, _ in run.messages],
            report_batch_item_failures=self._report,
            fields=self._fields,
        )
        failed = frozenset(place for place, fate in enumerate(found) if not fate.succeeded)
        text = row.response
        if text is None:
            message = (row.error_message or "").partition("\n")[0]
            text = f"{row.error_type}: {message}"
        if len(failed) == len(found):
            return Answer(text, succeeded=False)
        return Answer(text, succeeded=True, failed=failed)

    def _told(self, call: Call, reply: Reply) -> Told | None:
        if reply == LOST:
            return None
        if reply in (THROTTLED, CONFLICTED):
            understood = self._known.requests[call.text]
            subject, request_id = understood.wire_call.subject, str(uuid.UUID(int=0))
            if reply == THROTTLED:
                error = fault_replies.throttled(subject, request_id)
            else:
                error = fault_replies.cancelled_by_first(
                    subject, request_id, "TransactionConflict", len(understood.places)
                )
            return Told(error.status, error.headers, error.body)
        return self._known.replies[reply.text]

    # --- runs that stand at a call ---

    async def _standing_at(self, run: Run, history: History) -> _Going | None:
        going = self._kept.pop((run, history), None)
        if going is None:
            return None
        if going.fork.ended.done() or going.gate.given_up:
            await self._end(going)
            return None
        return going

    async def _keep(self, going: _Going, run: Run, history: History) -> None:
        replaced = self._kept.pop((run, history), None)
        if replaced is not None:
            await self._end(replaced)
        if len(self._kept) >= _KEPT_RUNS:
            await self._end(going)  # a search takes them in turn: the oldest is asked for next
            return
        self._kept[run, history] = going

    async def _end(self, going: _Going) -> None:
        going.gate.close()
        going.door.gate = None
        self._free.append(going.door)
        await going.fork.kill()

    async def _door(self) -> Door:
        if self._free:
            return self._free.pop()
        door = Door()
        self._ports[door] = await door.open()
        return door


def _in_order(asked: tuple[Call, WireCall]) -> tuple[str, str, str]:
    """Calls that are under way at once come in the same order each time, though values differ."""
    text = asked[0].text
    return outline(text), placed(text), text


def _texts(step: Calls | Answer) -> list[str]:
    return [step.text] if isinstance(step, Answer) else [call.text for call in step]


# --- the store --------------------------------------------------------------------------


class RealStore:
    """Puts the items in question into the real tables, makes the call once, reads them back.

    What is not DynamoDB cannot be put back: other services are asked once for each request,
    and their effects counted.

    :param url: of the AWS-compatible endpoint.
    :param signer: signs what is sent, for an endpoint that checks signatures.
    :raises TargetError: from every method, when the endpoint fails.
    """

    def __init__(
        self,
        url: str,
        known: Known,
        tables: Sequence[TableInfo],
        region: str,
        signer: Signer | None,
    ) -> None:
        self.questions = 0
        """Calls made at the endpoint for the handler."""
        self.requests = 0
        """All that was sent to it."""
        self._url = url.rstrip("/")
        self._known = known
        self._tables = tables
        self._region = region
        self._signer = signer
        self._there: dict[str, str] = {}  # items that the tables hold now
        self._places: dict[str, Place] = {}
        self._of_others: dict[str, Reply] = {}  # replies of other services, by call
        self._tokens: dict[str, Reply] = {}  # replies to transactions, by token
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=UPSTREAM_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        )

    async def close(self) -> None:
        await self._session.close()

    async def items(self) -> Items:
        """All items that the tables hold."""
        self._there = {}
        for table in self._tables:
            arguments: dict[str, Any] = {"TableName": table.name, "ConsistentRead": True}
            while True:
                page = await self._ask("Scan", arguments)
                for item in page["Items"]:
                    self._note(table.name, item)
                if "LastEvaluatedKey" not in page:
                    break
                arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
        return tuple(sorted(self._there.items()))

    async def hold(self, items: Mapping[str, str]) -> None:
        """Let the tables hold these items and no others."""
        await self._put(items, self._there.keys() | items.keys())

    async def apply(self, items: Items, call: Call) -> tuple[Reply, Items]:
        understood = self._known.requests[call.text]
        now = dict(items)
        if understood.wire_call.subject.service != "dynamodb":
            reply = await self._other(understood)
            sent = [item for item in call.writes if item.startswith(SENT)]
            if sent and all(item in now for item in sent):
                return replace(reply, wrote=False), items  # dropped
            if reply.wrote:
                now |= dict.fromkeys(sent, "1")
        else:
            reply = await self._dynamodb(understood, now)
        if reply.wrote:
            for counted in (*understood.effects, *_services(call)):
                now[counted] = str(int(now.get(counted, "0")) + 1)
        return reply, tuple(sorted(now.items()))

    async def _dynamodb(self, understood: Understood, now: dict[str, str]) -> Reply:
        """:param now: what the store holds; changed to what it holds then."""
        call, request = understood.call, understood.request
        token = request.token if request is not None else None
        if token is not None and TOKEN + token in now:
            return replace(self._tokens[token], wrote=False)  # made before, and not again
        stored = {item: text for item, text in now.items() if not item.startswith(NO_TABLE)}
        for place in understood.places:
            self._places[place.item] = place
        scope = self._there.keys() | stored.keys() if call.everything else call.reads | call.writes
        await self._put(stored, scope & (self._there.keys() | stored.keys()))
        asked = understood.wire_call
        if token is not None:
            fields = msgspec.json.decode(asked.body)
            fields["ClientRequestToken"] = str(uuid.uuid4())  # that of another question is known
            asked = replace(asked, body=msgspec.json.encode(fields))
        reply = await self._forward(asked, changes=bool(call.writes) or call.everything)
        if call.everything and (request is None or request.writes):
            await self.items()
            kept = {item: text for item, text in now.items() if item not in stored}
            now.clear()
            now.update(kept | self._there)
            return reply
        if request is None or not request.writes or not reply.wrote:
            return replace(reply, wrote=False)
        await self._learn(understood, request)
        for place in understood.places:
            now.pop(place.item, None)
            if place.item in self._there:
                now[place.item] = self._there[place.item]
        if token is not None:
            now[TOKEN + token] = reply.text
            self._tokens[token] = reply
        return reply

    async def _learn(self, understood: Understood, request: dynamodb_wire.Request) -> None:
        """What an accepted write has left in its items."""
        touches = list(zip(understood.places, request.touches, strict=True))
        if len(touches) == 1 and touches[0][1].action in (Action.PUT, Action.DELETE):
            ((place, touch),) = touches
            self._there.pop(place.item, None)
            if touch.action is Action.PUT:
                self._note(place.table, touch.attributes)
            return
        keys = {place.item: (place.table, place.key) for place in understood.places}
        for item in keys:
            self._there.pop(item, None)
        for operation, body in dynamodb_wire.read_requests(keys.values()):
            found = await self._ask(operation, msgspec.json.decode(body))
            if operation == "GetItem":
                if "Item" in found:
                    self._note(understood.places[0].table, found["Item"])
                continue
            for table, there in found["Responses"].items():
                for one in there:
                    self._note(table, one)

    def _note(self, table: str, item: dict[str, Any]) -> None:
        key = dynamodb_wire.key_of(item, self._known.reader.key_names(table))
        assert key is not None
        place = Place(table, key)
        self._places[place.item] = place
        self._there[place.item] = item_text(item)

    async def _other(self, understood: Understood) -> Reply:
        call = understood.call
        known = self._of_others.get(call.text)
        if known is None:
            if understood.wire_call.subject.protocol is Protocol.HTTP:
                told = Told(200, {"Content-Type": "application/json"}, b"{}")
                known = self._remember(told, wrote=True)
            else:
                known = await self._forward(understood.wire_call, changes=bool(call.writes))
            self._of_others[call.text] = known
        return known

    async def _put(self, wanted: Mapping[str, str], scope: Iterable[str]) -> None:
        """Let the items in scope be what is wanted."""
        changes: list[tuple[str, dict[str, Any]]] = []
        for item in sorted(scope):
            text = wanted.get(item)
            if text == self._there.get(item):
                continue
            place = self._places[item]
            if text is None:
                changes.append((place.table, {"DeleteRequest": {"Key": place.key}}))
                del self._there[item]
            else:
                changes.append((place.table, {"PutRequest": {"Item": json.loads(text)}}))
                self._there[item] = text
        for start in range(0, len(changes), _BATCH):
            entries: dict[str, list[Any]] = {}
            for table, entry in changes[start : start + _BATCH]:
                entries.setdefault(table, []).append(entry)
            while entries:
                entries = (await self._ask("BatchWriteItem", {"RequestItems": entries})).get(
                    "UnprocessedItems", {}
                )

    # --- the wire ---

    async def _ask(self, operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """A question of the tester's own."""
        headers = {
            "X-Amz-Target": dynamodb_wire.TARGET + operation,
            "Content-Type": "application/x-amz-json-1.0",
        }
        body = msgspec.json.encode(members)
        status, _, answer = await self._send("POST", "/", headers, body, "dynamodb")
        if status != 200:
            raise TargetError(
                f"{self._url} answered {operation} with HTTP {status}: "
                f"{answer[:500].decode('utf-8', 'replace')}"
            )
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    async def _forward(self, asked: WireCall, *, changes: bool) -> Reply:
        """A call of the handler's, as it came."""
        self.questions += 1
        headers = {n: v for n, v in asked.headers.items() if n.lower() not in _HOP_BY_HOP}
        headers["Accept-Encoding"] = "identity"
        service = asked.subject.service
        status, found, body = await self._send(
            asked.method, asked.target, headers, asked.body, service
        )
        if status >= 500:
            raise TargetError(
                f"{self._url} answered {service}:{asked.subject.operation} with HTTP {status}: "
                f"{body[:500].decode('utf-8', 'replace')}. Look at its own log."
            )
        kept = {n: v for n, v in found.items() if n.lower() not in _HOP_BY_HOP}
        return self._remember(Told(status, kept, body), wrote=changes and status < 400)

    def _remember(self, told: Told, *, wrote: bool) -> Reply:
        try:
            content = json.dumps(msgspec.json.decode(told.body), sort_keys=True, ensure_ascii=False)
        except (msgspec.DecodeError, UnicodeDecodeError):
            content = _REQUEST_ID.sub(b"", told.body).decode("utf-8", "backslashreplace")
        text = f"{told.status} {content}"
        self._known.replies.setdefault(text, told)
        return Reply(text, wrote)

    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, service: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        self.requests += 1
        url = self._url + target
        if self._signer is not None:
            headers = self._signer.sign(
                method, url, headers, body, service=service, region=self._region
            )
        try:
            async with self._session.request(
                method, url, headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                return answer.status, answer.headers, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TargetError(
                f"{self._url} failed while the store was asked: {error or type(error).__name__}. "
                "Look at its own log, then run again."
            ) from error


def _services(call: Call) -> list[str]:
    return [item for item in call.writes if item.startswith(SERVICE)]


# --- what items and messages mean -------------------------------------------------------


class SettingsMeaning:
    """What messages and items stand for, by the settings of the run."""

    def __init__(
        self,
        messages: Sequence[PlannedMessage],
        tables: Sequence[TableInfo],
        order: OrderInfo,
        effects: Sequence[str],
    ) -> None:
        self.effects = tuple(effects)
        self._messages = messages
        self._tables = {table.name: table for table in tables if table.role is TableRole.ORDERS}
        self._order = order

    def message(self, copy: int) -> tuple[str, str | None]:
        message = self._messages[copy]
        return message.order_key, message.expected_item

    def stored(self, item: str, content: str) -> Stored | None:
        table = self._tables.get(item.partition(" ")[0])
        if table is None:
            return None
        image = json.loads(content)
        key_value = image.get(self._order.attributes[self._order.key])
        key = None if key_value is None else _plain(key_value)
        complete_when = table.complete_when
        for kind in table.items:
            texts = [_plain(image[name]) for name in (table.key, table.sort) if name is not None]
            key = order_key_of(kind, *texts)
            if key is not None:
                if kind.role is not TableRole.ORDERS:
                    return None
                complete_when = kind.complete_when
                break
        if table.items and key is None:
            return None
        names = self._order.attributes.values()
        return Stored(
            key or "",
            details_text(image, names),
            all(
                name in image and _plain(image[name]) in texts
                for name, texts in complete_when.items()
            ),
        )


def _plain(value: dict[str, Any]) -> str:
    return str(next(iter(value.values())))
