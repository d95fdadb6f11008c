"""The loopback endpoint that each handler environment talks to instead of AWS.

Every request is one *call*: it is recorded when it comes in, forwarded, and recorded
again when its reply is known. Handlers see the reply they would have had without the
gateway; what the gateway asked for itself is taken out again.

An exchange is a sequence of awaited steps: receive, understand, hold the keys, send,
settle, deliver. What became of an item is taken from the store's own replies: from
``ReturnValues=ALL_OLD`` where one request can tell, else by reading the items before
and after while no other write of the same keys is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from analysis.errors import RecordingError
from analysis.schema import Call, CallItem, Decision, EffectInfo, TableInfo, item_text
from consumer import aws_wire, call_faults, dynamodb_wire
from consumer.call_faults import Ending, Injection
from consumer.clock import Clock
from consumer.dynamodb_wire import Attributes, Exchange, Image
from consumer.effects import Asked, Effects
from consumer.faults import FaultName, Occupant, Strike
from consumer.gate import Admit, WireCall
from consumer.injector import Injector, fault_text
from consumer.key_locks import Key, KeyLocks
from consumer.recorder import Recorder
from consumer.signing import Signer
from consumer.stale_reads import PreviousImages, stale

_BUFFER_BYTES = 1024 * 1024
"""Bodies above this are streamed where nothing needs to be known about them."""

_HEADER_BYTES = 64 * 1024  # session tokens and presigned URLs exceed aiohttp's 8 KiB

# A Lambda function runs 15 minutes at most; nobody waits longer than that for a reply.
_REPLY_TIMEOUT_S = 900
_CONNECT_TIMEOUT_S = 10
_CLOSE_TIMEOUT_S = 2
# How soon a handler that went away is noticed while its reply is held back.
_LOOK_S = 0.05
# Less than the 5 s of uvicorn and the 20 s of AWS: an idle connection is closed from
# this side, or a request would now and then meet one that is just being closed.
UPSTREAM_KEEPALIVE_S = 3

# RFC 9110, section 7.6.1, and those that aiohttp writes itself.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_REQUEST_ONLY = _HOP_BY_HOP | {"host", "expect", "content-length"}
# A signature covers these too, so none may appear that the handler did not send.
_NEVER_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")

_UNREACHABLE = "EndpointConnectionError"
_BROKEN = "ConnectionClosedError"
_UNREADABLE = "UnreadableReply"
_HANDLER_GONE = "HandlerDisconnected"

_BY_ITEM = (FaultName.STALE_READ, FaultName.PARTIAL_BATCH_WRITE)


@dataclass(frozen=True, slots=True)
class _Received:
    """A request as it came in."""

    request: web.BaseRequest
    headers: CIMultiDict[str]  # to forward
    body: bytes | aiohttp.StreamReader
    subject: aws_wire.Subject

    @property
    def known_body(self) -> bytes:
        """The body, empty when it is streamed."""
        return self.body if isinstance(self.body, bytes) else b""

    @property
    def wire_call(self) -> WireCall:
        request = self.request
        return WireCall(
            request.method, request.raw_path, self.headers, self.known_body, self.subject
        )


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply in full, and what it tells."""

    status: int
    reason: str
    headers: CIMultiDict[str]  # to pass on
    body: bytes
    decision: Decision
    code: str | None
    content: dynamodb_wire.Reply | None  # of DynamoDB, where it can be read


@dataclass(frozen=True, slots=True)
class _Touched:
    """An item that a request is going to write."""

    table: str  # as sent
    key: Attributes
    row: CallItem  # as written when the request is sent

    @property
    def lock(self) -> Key:
        return self.row.resource, self.row.item_key


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A wire attempt on its way through the gateway."""

    occupant: Occupant
    received: _Received
    call: Call  # as written when the request came in
    effects: Sequence[Asked] = ()
    injection: Injection | None = None


class _NoReplyError(Exception):
    """The upstream gave no complete reply."""

    def __init__(self, code: str, *, sent: bool) -> None:
        super().__init__(code)
        self.code = code
        self.sent = sent  # False: no connection was made, so the store did nothing


class Gateway:
    """Doors for handler environments, all leading to one upstream.

    Make it inside a running event loop.

    :param upstream_url: ``http://host:port`` of the AWS-compatible endpoint.
    :param tables: tables whose keys are known; others are looked up when first met.
    :param signer: signs again everything that was signed, for an upstream that checks
        signatures; None for one that does not.
    :param injector: says which fault a call meets.
    :param effects: the calls that count as side effects; their numbers are their positions.
    :param admit: every call of an invocation waits for this before it is recorded and sent;
        other calls have a connection of their own each.
    :param token_salt: transactions are sent under tokens of this and their own, since a store
        remembers for ten minutes which were made (API reference, TransactWriteItems); None
        sends them as they are.
    """

    def __init__(
        self,
        upstream_url: str,
        clock: Clock,
        recorder: Recorder,
        tables: Iterable[TableInfo],
        signer: Signer | None,
        injector: Injector,
        effects: Sequence[EffectInfo] = (),
        admit: Admit | None = None,
        token_salt: str | None = None,
    ) -> None:
        self.upstream_failures = 0
        """Calls to which the upstream gave no complete or no readable reply."""
        self.last_upstream_failure: str | None = None
        self._origin = upstream_url.rstrip("/")
        self._root = URL(f"{self._origin}/")
        self._clock = clock
        self._recorder = recorder
        self._signer = signer
        self._injector = injector
        self._effects = Effects(effects)
        self._admit = admit
        self._token_salt = token_salt
        # Kept only where a rule asks for it: one image of every item ever written.
        stale_reads = injector.plan.has(FaultName.STALE_READ)
        self._previous = PreviousImages() if stale_reads else None
        self._in_progress: Counter[str] = Counter()  # attempts struck, by SDK call
        self._cut_off: dict[int, Strike] = {}  # invocations that wait for their timeout
        self._closing = asyncio.Event()
        self._key_names: dict[str, tuple[str, ...]] = {
            table.name: (table.key,) if table.sort is None else (table.key, table.sort)
            for table in tables
        }
        self._locks = KeyLocks()
        self._tokens: set[str] = set()  # of transactions that were or may have been made
        self._doors: dict[int, tuple[asyncio.Server, web.Server]] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=UPSTREAM_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=_REPLY_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NEVER_ADDED,
            auto_decompress=False,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )

    async def open_door(self, occupant: Occupant) -> str:
        """Open the endpoint of one environment.

        It stays open for the whole run, whichever process lives in the slot. What the
        occupant is working on is asked at every call.

        :returns: the endpoint's URL, ``http://127.0.0.1:PORT``.
        """
        door = web.Server(
            partial(self._serve, occupant),
            access_log=None,
            auto_decompress=False,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        listener = await asyncio.get_running_loop().create_server(door, "127.0.0.1", 0)
        self._doors[occupant.slot] = (listener, door)
        return f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def outside_write(self, table: str, item_key: str) -> AsyncIterator[None]:
        """For a write that somebody makes past the gateway: while this is open, no call of a
        handler changes the item."""
        async with self._locks.hold([(table, item_key)], exclusive=True):
            yield

    def learn(self, row: CallItem) -> None:
        """What such a write did to an item."""
        if self._previous is not None:
            self._previous.learn(row)

    async def close(self) -> None:
        """Close all doors. Exchanges still going have a moment to end and be recorded."""
        self._closing.set()
        for listener, _ in self._doors.values():
            listener.close()
        await asyncio.gather(*(door.shutdown(_CLOSE_TIMEOUT_S) for _, door in self._doors.values()))
        await self._session.close()

    # --- the steps of an exchange -------------------------------------------------

    async def _serve(self, occupant: Occupant, request: web.BaseRequest) -> web.StreamResponse:
        sent_at = self._clock.now_ns()
        invocation_id = occupant.current_invocation
        try:
            received = await _receive(request)
            if self._admit is None or invocation_id is None:
                return await self._exchange(occupant, received, invocation_id, sent_at)
            async with self._admit(occupant, received.wire_call):
                sent_at = self._clock.now_ns()
                return await self._exchange(occupant, received, invocation_id, sent_at)
        except (ConnectionError, web.RequestPayloadError):
            # The handler went away in the middle of its request.
            return _hang_up(request)
        except RecordingError:
            # The recorder keeps it and the run ends: without evidence nothing goes on.
            return _hang_up(request)

    async def _exchange(
        self, occupant: Occupant, received: _Received, invocation_id: int | None, sent_at: int
    ) -> web.StreamResponse:
        call = self._open_call(received, invocation_id, sent_at)
        wire = _understand(received)
        if self._token_salt is not None and wire is not None and wire.token is not None:
            told = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._token_salt} {wire.token}")
            wire = dynamodb_wire.with_token(wire, str(told))
        touched: Sequence[_Touched] | None = None
        if wire is not None:
            await self._learn_keys(received, wire)
            touched = self._touched(call, wire)
        attempt = _Attempt(
            occupant,
            received,
            call,
            self._open_effects(received, call, wire),
            self._injection(occupant, received.subject, call, wire, known=touched is not None),
        )
        if attempt.injection is not None and not attempt.injection.forwards:
            return await self._refuse(attempt, wire, touched)
        if received.subject.protocol is aws_wire.Protocol.HTTP:
            return await self._answer(attempt)
        if wire is None or touched is None:
            return await self._pass_on(attempt)
        if wire.writes:
            return await self._write(attempt, wire, touched)
        return await self._read(attempt, wire)

    def _open_call(self, received: _Received, invocation_id: int | None, sent_at: int) -> Call:
        request, subject = received.request, received.subject
        call = Call(
            call_id=self._recorder.next_id(Call),
            invocation_id=invocation_id,
            attempt=subject.attempt,
            sdk_id=subject.sdk_id,
            service=subject.service,
            operation=subject.operation,
            resource=subject.resource,
            request=aws_wire.request_text(
                request.method, request.raw_path, received.known_body, request.content_length
            ),
            sent_at=sent_at,
        )
        self._recorder.write(call)
        return call

    def _open_effects(
        self, received: _Received, call: Call, wire: dynamodb_wire.Request | None
    ) -> list[Asked]:
        effects = self._effects.asked(
            call.call_id,
            received.subject,
            received.request.raw_path,
            received.known_body,
            wire,
        )
        for effect in effects:
            self._recorder.write(effect.row)
        return effects

    def _injection(
        self,
        occupant: Occupant,
        subject: aws_wire.Subject,
        call: Call,
        wire: dynamodb_wire.Request | None,
        *,
        known: bool,
    ) -> Injection | None:
        """The fault that this attempt meets.

        :param known: whether the items that it touches are.
        """
        if call.invocation_id in self._cut_off:
            return call_faults.cut_off(self._cut_off[call.invocation_id])
        strike = self._injector.strike_call(
            call.invocation_id,
            service=subject.service,
            operation=subject.operation,
            resource=subject.resource,
            sdk_id=subject.sdk_id,
        )
        if strike is None or (strike.name in _BY_ITEM and not known):
            return None
        met = 1
        if strike.name is FaultName.TRANSACTION_IN_PROGRESS and subject.sdk_id is not None:
            self._in_progress[subject.sdk_id] += 1
            met = self._in_progress[subject.sdk_id]
            if met > 2:
                return None
        actions = len(wire.touches) if wire is not None else 1
        injection = call_faults.injection(
            strike, subject, call_id=call.call_id, actions=actions, met=met
        )
        return None if _came_too_late(injection, occupant, call) else injection

    async def _refuse(
        self,
        attempt: _Attempt,
        wire: dynamodb_wire.Request | None,
        touched: Sequence[_Touched] | None,
    ) -> web.StreamResponse:
        """A fault before the effect: no service learns of the request."""
        assert attempt.injection is not None
        reply = None
        if attempt.injection.error is not None:
            reply = _instead(attempt.injection, attempt.received.subject)
        code, content = (reply.code, reply.content) if reply is not None else (None, None)
        exchange = Exchange(Decision.FAILED, code, content)
        if wire is not None and touched is not None:
            if wire.writes:
                rows = dynamodb_wire.settle(wire, [item.row for item in touched], exchange)
            else:
                call_id = attempt.call.call_id
                rows = dynamodb_wire.read_rows(wire, call_id, exchange, self._key_names_of)
            for row in rows:
                self._recorder.write(row)
        self._settle_effects(attempt, Decision.FAILED)
        return await self._conclude(attempt, reply)

    async def _answer(self, attempt: _Attempt) -> web.StreamResponse:
        """An HTTP effect: the gateway is the service."""
        self._settle_effects(attempt, Decision.ACCEPTED)
        headers = CIMultiDict({hdrs.CONTENT_TYPE: "application/json"})
        reply = _told(200, "OK", headers, b"{}", attempt.received.subject)
        return await self._conclude(attempt, reply)

    def _touched(self, call: Call, wire: dynamodb_wire.Request) -> list[_Touched] | None:
        """The items of a request; None when the key of one cannot be told."""
        touched = []
        for touch in wire.touches:
            names = self._key_names_of(touch.table)
            key = dynamodb_wire.key_of(touch.attributes, names) if names else None
            if key is None:
                return None
            row = CallItem(
                call.call_id,
                aws_wire.short_name(touch.table),
                item_text(key),
                touch.action,
                touch.condition,
            )
            touched.append(_Touched(touch.table, key, row))
        return touched

    async def _write(
        self, attempt: _Attempt, wire: dynamodb_wire.Request, touched: Sequence[_Touched]
    ) -> web.StreamResponse:
        """A write whose items are known."""
        received = attempt.received
        rows = [item.row for item in touched]
        for row in rows:
            self._recorder.write(row)
        left: dynamodb_wire.Unprocessed | None = None
        if _meets(attempt, FaultName.PARTIAL_BATCH_WRITE):
            halves = dynamodb_wire.halved(wire)
            if halves is None:
                attempt = replace(attempt, injection=None)
            else:
                wire, left = halves
        before: Mapping[Key, Image] = {}
        after: Mapping[Key, Image] = {}
        async with self._locks.hold((item.lock for item in touched), exclusive=wire.exclusive):
            if wire.reads_before:
                before = await self._look_up(received, touched)
            try:
                reply = await self._send(received, wire.body)
            except _NoReplyError as error:
                if not error.sent:
                    for row in rows:
                        self._recorder.write(replace(row, decision=Decision.FAILED))
                return self._no_answer(attempt, error)
            if wire.reads_after and reply.decision is Decision.ACCEPTED:
                after = await self._look_up(received, touched)
        if left is not None:
            if reply.decision is Decision.ACCEPTED:
                body = dynamodb_wire.with_unprocessed(reply.body, left)
                content = dynamodb_wire.parse_reply(body)
                reply = replace(_with_body(reply, body), content=content)
            else:
                attempt = replace(attempt, injection=None)
        replayed = wire.token in self._tokens
        if wire.token is not None and reply.decision in (Decision.ACCEPTED, Decision.UNKNOWN):
            self._tokens.add(wire.token)
        exchange = Exchange(reply.decision, reply.code, reply.content, before, after, replayed)
        settled = dynamodb_wire.settle(wire, rows, exchange)
        for row in settled:
            self._recorder.write(row)
            if self._previous is not None:
                self._previous.learn(row)
        self._settle_effects(attempt, reply.decision, items=settled)
        return await self._conclude(attempt, _as_asked(wire, reply))

    async def _read(self, attempt: _Attempt, wire: dynamodb_wire.Request) -> web.StreamResponse:
        """A read whose items are known, or will be from the reply."""
        try:
            reply = await self._send(attempt.received, wire.body)
        except _NoReplyError as error:
            return self._no_answer(attempt, error)
        if _meets(attempt, FaultName.STALE_READ):
            attempt, reply = self._stale(attempt, wire, reply)
        for row in dynamodb_wire.read_rows(
            wire,
            attempt.call.call_id,
            Exchange(reply.decision, reply.code, reply.content),
            self._key_names_of,
        ):
            self._recorder.write(row)
        return await self._conclude(attempt, reply)

    def _stale(
        self, attempt: _Attempt, wire: dynamodb_wire.Request, reply: _Reply
    ) -> tuple[_Attempt, _Reply]:
        """The reply of a replica that lags behind, where that makes a difference."""
        older = None
        if self._previous is not None and reply.content is not None and reply.status == 200:
            older = stale(wire, reply.body, reply.content, self._previous, self._key_names_of)
        if older is None or attempt.injection is None:
            return replace(attempt, injection=None), reply
        body, changed = older
        injection = replace(attempt.injection, detail=f"items put back: {changed}")
        reply = replace(_with_body(reply, body), content=dynamodb_wire.parse_reply(body))
        return replace(attempt, injection=injection), reply

    async def _pass_on(self, attempt: _Attempt) -> web.StreamResponse:
        """A call of which nothing more is known: its body may be long in either direction."""
        received = attempt.received
        try:
            async with self._upstream(received, received.headers, received.body) as upstream:
                size = upstream.content_length
                if upstream.status >= 400 or (size is not None and size <= _BUFFER_BYTES):
                    reply = await _complete(upstream, received.subject)
                    self._settle_effects(attempt, reply.decision, reply.body)
                    return await self._conclude(attempt, reply)
                self._settle_effects(
                    attempt, aws_wire.decision(upstream.status, reads=received.subject.reads)
                )
                return await self._stream(attempt, upstream)
        except (aiohttp.ClientError, TimeoutError) as error:
            return self._no_answer(attempt, self._no_reply(received, error))

    async def _send(self, received: _Received, body: bytes) -> _Reply:
        """Forward a DynamoDB call.

        :raises _NoReplyError: no complete reply came.
        """
        headers = received.headers.copy()
        headers[hdrs.ACCEPT_ENCODING] = "identity"  # the reply must be readable here
        try:
            async with self._upstream(received, headers, body) as upstream:
                reply = await _complete(upstream, received.subject)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._no_reply(received, error) from error
        if reply.decision is Decision.ACCEPTED and reply.content is None:
            self._count_failure(f"{received.subject.operation}: the reply is not DynamoDB's")
            return replace(reply, decision=Decision.UNKNOWN, code=_UNREADABLE)
        return reply

    def _settle_effects(
        self,
        attempt: _Attempt,
        decision: Decision,
        reply: bytes = b"",
        items: Sequence[CallItem] | None = None,
    ) -> None:
        for effect in self._effects.settled(attempt.effects, decision, reply, items):
            self._recorder.write(effect)

    async def _conclude(self, attempt: _Attempt, reply: _Reply | None) -> web.StreamResponse:
        """Let the handler have the reply, or what a fault makes of it.

        :param reply: None where a fault leaves the handler without any.
        """
        return await self._end(self._fire(attempt), reply)

    async def _end(self, attempt: _Attempt, reply: _Reply | None) -> web.StreamResponse:
        injection = attempt.injection
        if injection is not None:
            match injection.ending:
                case Ending.RESET:
                    return self._close_call(attempt, _BROKEN)
                case Ending.SILENCE:
                    invocation_id = attempt.call.invocation_id
                    if injection.strike.name is FaultName.TIMEOUT and invocation_id is not None:
                        self._cut_off[invocation_id] = injection.strike
                    await self._hold(attempt.received.request, _REPLY_TIMEOUT_S)
                    return self._close_call(attempt, _HANDLER_GONE)
                case Ending.KILL:
                    # Recorded before it dies of it, and dead before its connection is
                    # closed: it must not notice and go on.
                    self._record_gone(attempt, _HANDLER_GONE)
                    await attempt.occupant.kill()
                    return _hang_up(attempt.received.request)
            if injection.error is not None:
                reply = _instead(injection, attempt.received.subject)
            if injection.strike.name is FaultName.SLOW:
                await self._hold(attempt.received.request, injection.strike.seconds)
        assert reply is not None
        return await self._deliver(attempt, reply)

    def _fire(self, attempt: _Attempt) -> _Attempt:
        """Record that a fault is carried out now; without it when there is nobody to meet it."""
        injection, call = attempt.injection, attempt.call
        if injection is None:
            return attempt
        if _came_too_late(injection, attempt.occupant, call):
            return replace(attempt, injection=None)
        if not injection.repeats:
            self._injector.fire(
                injection.strike,
                invocation_id=call.invocation_id,
                call_id=call.call_id,
                detail=injection.detail,
            )
        return replace(attempt, call=replace(call, fault=fault_text(injection.strike.rule)))

    async def _hold(self, request: web.BaseRequest, seconds: float) -> None:
        """Wait, unless the handler goes away or the gateway closes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not _is_gone(request) and (left := until - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), min(left, _LOOK_S))
                return

    async def _deliver(self, attempt: _Attempt, reply: _Reply) -> web.StreamResponse:
        """Record what the handler is going to learn, and let it know."""
        response = web.Response(
            status=reply.status, reason=reply.reason, headers=reply.headers, body=reply.body
        )
        if self._admit is not None and attempt.call.invocation_id is None:
            response.force_close()  # the processes forked from this one must not share it
        answered = replace(
            attempt.call,
            answered_at=self._clock.now_ns(),
            decision=reply.decision,
            error_code=reply.code,
        )
        self._recorder.write(answered)
        try:
            await response.prepare(attempt.received.request)
            await response.write_eof()
        except ConnectionError:  # its process ended, or it gave up waiting
            self._recorder.write(_unheard(answered))
        return response

    async def _stream(
        self, attempt: _Attempt, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Deliver a long reply while it comes in."""
        received = attempt.received
        headers = _end_to_end(upstream.headers, _HOP_BY_HOP)
        attempt = self._fire(attempt)
        if attempt.injection is not None:
            if attempt.injection.strike.name is not FaultName.SLOW:
                # No other fault lets a reply through that came from the service.
                return await self._end(attempt, None)
            await self._hold(received.request, attempt.injection.strike.seconds)
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=headers
        )
        answered = replace(
            attempt.call, decision=aws_wire.decision(upstream.status, reads=received.subject.reads)
        )
        try:
            await response.prepare(received.request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except aiohttp.ClientConnectionResetError:
            answered = _unheard(answered)
        self._recorder.write(replace(answered, answered_at=self._clock.now_ns()))
        return response

    def _no_answer(self, attempt: _Attempt, error: _NoReplyError) -> web.StreamResponse:
        """No reply: the handler gets what a dead endpoint gives, a closed connection."""
        if not error.sent:
            self._settle_effects(attempt, Decision.FAILED)
        return self._close_call(attempt, error.code)

    def _close_call(self, attempt: _Attempt, code: str) -> web.StreamResponse:
        self._record_gone(attempt, code)
        return _hang_up(attempt.received.request)

    def _record_gone(self, attempt: _Attempt, code: str) -> None:
        answered_at = self._clock.now_ns()
        self._recorder.write(replace(attempt.call, answered_at=answered_at, error_code=code))

    # --- the upstream -------------------------------------------------------------

    def _upstream(
        self,
        received: _Received,
        headers: CIMultiDict[str],
        body: bytes | aiohttp.StreamReader,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One request to the upstream, signed again if it was signed."""
        method, target = received.request.method, received.request.raw_path
        url = self._root if target == "/" else URL(self._origin + target, encoded=True)
        region = received.subject.region
        sent: Mapping[str, str] = headers
        if self._signer is not None and region is not None:
            sent = self._signer.sign(
                method,
                str(url),
                headers,
                body if isinstance(body, bytes) else b"",
                service=received.subject.service,
                region=region,
            )
        # aiohttp warns about long bytes, not about the same in a file.
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _BUFFER_BYTES else body
        return self._session.request(
            method,
            url,
            headers=sent,
            data=data or None,
            allow_redirects=False,
        )

    async def _ask(self, received: _Received, operation: str, body: bytes) -> bytes | None:
        """A question of the gateway's own, in the handler's name; None when it fails."""
        headers = received.headers.copy()
        headers["X-Amz-Target"] = dynamodb_wire.TARGET + operation
        headers[hdrs.ACCEPT_ENCODING] = "identity"
        try:
            async with self._upstream(received, headers, body) as upstream:
                reply = await upstream.read()
                return reply if upstream.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _learn_keys(self, received: _Received, wire: dynamodb_wire.Request) -> None:
        """Look up the keys of tables that were neither declared nor met before."""
        for table in wire.tables:
            if self._key_names_of(table) is None:
                body = msgspec.json.encode({"TableName": table})
                reply = await self._ask(received, "DescribeTable", body)
                names = dynamodb_wire.described_key_names(reply) if reply is not None else None
                if names is not None:
                    self._key_names[aws_wire.short_name(table)] = names

    def _key_names_of(self, table: str) -> tuple[str, ...] | None:
        return self._key_names.get(aws_wire.short_name(table))

    async def _look_up(self, received: _Received, touched: Sequence[_Touched]) -> dict[Key, Image]:
        """The items as they are stored now, as far as the store tells."""
        images: dict[Key, Image] = {}
        keys = {item.lock: (item.table, item.key) for item in touched}
        for operation, body in dynamodb_wire.read_requests(keys.values()):
            reply = await self._ask(received, operation, body)
            request = dynamodb_wire.parse(operation, body)
            content = dynamodb_wire.parse_reply(reply) if reply is not None else None
            if request is not None and content is not None:
                images |= dynamodb_wire.read_images(request.touches, content, self._key_names_of)
        return images

    def _no_reply(
        self, received: _Received, error: aiohttp.ClientError | TimeoutError
    ) -> _NoReplyError:
        # A handler that goes away while its body is streamed breaks the upstream request too.
        if isinstance(received.body, bytes) or not _is_gone(received.request):
            self._count_failure(f"{received.subject.operation}: {error or type(error).__name__}")
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            return _NoReplyError(_UNREACHABLE, sent=False)
        return _NoReplyError(_BROKEN, sent=True)

    def _count_failure(self, message: str) -> None:
        self.upstream_failures += 1
        self.last_upstream_failure = message


async def _receive(request: web.BaseRequest) -> _Received:
    headers = request.headers
    if headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    size = request.content_length
    # Only a body whose hash was sent ahead can be signed again before it has all come in.
    streamed = (
        "X-Amz-Content-SHA256" in headers
        and request.can_read_body
        and (size is None or size > _BUFFER_BYTES)
    )
    body = request.content if streamed else await request.content.read()
    forwarded = _end_to_end(headers, _REQUEST_ONLY)
    if streamed and size is not None:
        forwarded[hdrs.CONTENT_LENGTH] = str(size)
    subject = aws_wire.subject(
        request.method, request.raw_path, headers, body if isinstance(body, bytes) else b""
    )
    return _Received(request, forwarded, body, subject)


def _understand(received: _Received) -> dynamodb_wire.Request | None:
    target = received.headers.get("X-Amz-Target", "")
    if not target.startswith(dynamodb_wire.TARGET) or not isinstance(received.body, bytes):
        return None
    return dynamodb_wire.parse(received.subject.operation, received.body)


async def _complete(upstream: aiohttp.ClientResponse, subject: aws_wire.Subject) -> _Reply:
    """Read a reply to its end, and what it tells."""
    body = await upstream.read()
    headers = _end_to_end(upstream.headers, _HOP_BY_HOP)
    return _told(upstream.status, upstream.reason or "", headers, body, subject)


def _told(
    status: int, reason: str, headers: CIMultiDict[str], body: bytes, subject: aws_wire.Subject
) -> _Reply:
    """A reply, and what it tells."""
    code = aws_wire.error_code(status, headers, body)
    decision = aws_wire.decision(status, reads=subject.reads)
    content = None
    if subject.service == "dynamodb":
        content = dynamodb_wire.parse_reply(body)
        if content is not None:
            decision = dynamodb_wire.write_decision(decision, code, content)
    return _Reply(status, reason, headers, body, decision, code, content)


def _instead(injection: Injection, subject: aws_wire.Subject) -> _Reply:
    """The reply that a fault puts in place of the service's own."""
    error = injection.error
    assert error is not None
    reason = HTTPStatus(error.status).phrase
    return _told(error.status, reason, CIMultiDict(error.headers), error.body, subject)


def _with_body(reply: _Reply, body: bytes) -> _Reply:
    """The reply with another body, of which no more is told than of the first."""
    headers = reply.headers.copy()
    headers[hdrs.CONTENT_LENGTH] = str(len(body))
    if "x-amz-crc32" in headers:
        headers["x-amz-crc32"] = dynamodb_wire.crc32(body)
    return replace(reply, headers=headers, body=body)


def _meets(attempt: _Attempt, name: FaultName) -> bool:
    return attempt.injection is not None and attempt.injection.strike.name is name


def _came_too_late(injection: Injection, occupant: Occupant, call: Call) -> bool:
    """Whether a crash would end another run than the one that it was meant for."""
    return injection.ending is Ending.KILL and occupant.current_invocation != call.invocation_id


def _as_asked(wire: dynamodb_wire.Request, reply: _Reply) -> _Reply:
    """The reply without what only the gateway asked for."""
    if reply.content is None:
        return reply
    if wire.hides_old and reply.content.attributes is not None:
        body = dynamodb_wire.without(reply.body, "Attributes")
    elif wire.hides_rejecting and reply.content.item is not None:
        body = dynamodb_wire.without(reply.body, "Item")
    else:
        return reply
    return _with_body(reply, body)


def _end_to_end(headers: Mapping[str, str], left_out: frozenset[str]) -> CIMultiDict[str]:
    """The headers that are meant for the other end, not for this connection."""
    listed = headers.get(hdrs.CONNECTION)
    if listed is not None:
        left_out = left_out | {name.strip().lower() for name in listed.split(",")}
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in left_out
    )


def _is_gone(request: web.BaseRequest) -> bool:
    """Whether the handler's connection is closed: its process ended or gave up waiting."""
    return request.transport is None or request.transport.is_closing()


def _hang_up(request: web.BaseRequest) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()  # goes nowhere


def _unheard(answered: Call) -> Call:
    return replace(answered, decision=Decision.UNKNOWN, error_code=_HANDLER_GONE)
