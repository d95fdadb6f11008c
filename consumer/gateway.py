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
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial

import aiohttp
import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from analysis.errors import RecordingError
from analysis.schema import Call, CallItem, Decision, TableInfo, item_text
from consumer import aws_wire, dynamodb_wire
from consumer.clock import Clock
from consumer.dynamodb_wire import Attributes, Exchange, Image
from consumer.faults import Occupant
from consumer.injector import Injector
from consumer.key_locks import Key, KeyLocks
from consumer.recorder import Recorder
from consumer.signing import Signer

_BUFFER_BYTES = 1024 * 1024
"""Bodies above this are streamed where nothing needs to be known about them."""

_HEADER_BYTES = 64 * 1024  # session tokens and presigned URLs exceed aiohttp's 8 KiB

# A Lambda function runs 15 minutes at most; nobody waits longer than that for a reply.
_REPLY_TIMEOUT_S = 900
_CONNECT_TIMEOUT_S = 10
_CLOSE_TIMEOUT_S = 2
# Less than the 5 s of uvicorn and the 20 s of AWS: an idle connection is closed from
# this side, or a request would now and then meet one that is just being closed.
_UPSTREAM_KEEPALIVE_S = 3

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


@dataclass(frozen=True, slots=True)
class _Received:
    """A request as it came in."""

    request: web.BaseRequest
    headers: CIMultiDict[str]  # to forward
    body: bytes | aiohttp.StreamReader
    subject: aws_wire.Subject


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
    """

    def __init__(
        self,
        upstream_url: str,
        clock: Clock,
        recorder: Recorder,
        tables: Iterable[TableInfo],
        signer: Signer | None,
        injector: Injector,
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
        self._key_names: dict[str, tuple[str, ...]] = {
            table.name: (table.key,) if table.sort is None else (table.key, table.sort)
            for table in tables
        }
        self._locks = KeyLocks()
        self._tokens: set[str] = set()  # of transactions that were or may have been made
        self._doors: dict[int, tuple[asyncio.Server, web.Server]] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_UPSTREAM_KEEPALIVE_S),
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

    async def close(self) -> None:
        """Close all doors. Exchanges still going have a moment to end and be recorded."""
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
            call = self._open_call(received, invocation_id, sent_at)
            wire = _understand(received)
            touched = None
            if wire is not None:
                await self._learn_keys(received, wire)
                touched = self._touched(call, wire)
            if wire is None or touched is None:
                return await self._pass_on(received, call)
            if wire.writes:
                return await self._write(received, call, wire, touched)
            return await self._read(received, call, wire)
        except (ConnectionError, web.RequestPayloadError):
            # The handler went away in the middle of its request.
            return _hang_up(request)
        except RecordingError:
            # The recorder keeps it and the run ends: without evidence nothing goes on.
            return _hang_up(request)

    def _open_call(self, received: _Received, invocation_id: int | None, sent_at: int) -> Call:
        request, subject, body = received.request, received.subject, received.body
        call = Call(
            call_id=self._recorder.next_id(Call),
            invocation_id=invocation_id,
            attempt=subject.attempt,
            sdk_id=subject.sdk_id,
            service=subject.service,
            operation=subject.operation,
            resource=subject.resource,
            request=aws_wire.request_text(
                request.method,
                request.raw_path,
                body if isinstance(body, bytes) else b"",
                request.content_length,
            ),
            sent_at=sent_at,
        )
        self._recorder.write(call)
        return call

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
        self,
        received: _Received,
        call: Call,
        wire: dynamodb_wire.Request,
        touched: Sequence[_Touched],
    ) -> web.StreamResponse:
        """A write whose items are known."""
        for item in touched:
            self._recorder.write(item.row)
        before: Mapping[Key, Image] = {}
        after: Mapping[Key, Image] = {}
        rows = [item.row for item in touched]
        async with self._locks.hold((item.lock for item in touched), exclusive=wire.exclusive):
            if wire.reads_before:
                before = await self._look_up(received, touched)
            try:
                reply = await self._send(received, wire.body)
            except _NoReplyError as error:
                if not error.sent:
                    for row in rows:
                        self._recorder.write(replace(row, decision=Decision.FAILED))
                return self._close_call(received, call, error)
            if wire.reads_after and reply.decision is Decision.ACCEPTED:
                after = await self._look_up(received, touched)
        replayed = wire.token in self._tokens
        if wire.token is not None and reply.decision in (Decision.ACCEPTED, Decision.UNKNOWN):
            self._tokens.add(wire.token)
        exchange = Exchange(reply.decision, reply.code, reply.content, before, after, replayed)
        for row in dynamodb_wire.settle(wire, rows, exchange):
            self._recorder.write(row)
        return await self._deliver(received, call, _as_asked(wire, reply))

    async def _read(
        self, received: _Received, call: Call, wire: dynamodb_wire.Request
    ) -> web.StreamResponse:
        """A read whose items are known, or will be from the reply."""
        try:
            reply = await self._send(received, wire.body)
        except _NoReplyError as error:
            return self._close_call(received, call, error)
        for row in dynamodb_wire.read_rows(
            wire,
            call.call_id,
            Exchange(reply.decision, reply.code, reply.content),
            self._key_names_of,
        ):
            self._recorder.write(row)
        return await self._deliver(received, call, reply)

    async def _pass_on(self, received: _Received, call: Call) -> web.StreamResponse:
        """A call of which nothing more is known: its body may be long in either direction."""
        try:
            async with self._upstream(received, received.headers, received.body) as upstream:
                size = upstream.content_length
                if upstream.status >= 400 or (size is not None and size <= _BUFFER_BYTES):
                    reply = await _complete(upstream, received.subject)
                    return await self._deliver(received, call, reply)
                return await self._stream(received, call, upstream)
        except (aiohttp.ClientError, TimeoutError) as error:
            return self._close_call(received, call, self._no_reply(received, error))

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

    async def _deliver(self, received: _Received, call: Call, reply: _Reply) -> web.StreamResponse:
        """Record what the handler is going to learn, and let it know."""
        request = received.request
        response = web.Response(
            status=reply.status, reason=reply.reason, headers=reply.headers, body=reply.body
        )
        answered = replace(
            call, answered_at=self._clock.now_ns(), decision=reply.decision, error_code=reply.code
        )
        self._recorder.write(answered)
        try:
            await response.prepare(request)
            await response.write_eof()
        except ConnectionError:  # its process ended, or it gave up waiting
            self._recorder.write(_unheard(answered))
        return response

    async def _stream(
        self, received: _Received, call: Call, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Deliver a long reply while it comes in."""
        request = received.request
        response = web.StreamResponse(
            status=upstream.status,
            reason=upstream.reason,
            headers=_end_to_end(upstream.headers, _HOP_BY_HOP),
        )
        answered = replace(
            call, decision=aws_wire.decision(upstream.status, reads=received.subject.reads)
        )
        try:
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except aiohttp.ClientConnectionResetError:
            answered = _unheard(answered)
        self._recorder.write(replace(answered, answered_at=self._clock.now_ns()))
        return response

    def _close_call(
        self, received: _Received, call: Call, error: _NoReplyError
    ) -> web.StreamResponse:
        """No reply: the handler gets what a dead endpoint gives, a closed connection."""
        self._recorder.write(replace(call, answered_at=self._clock.now_ns(), error_code=error.code))
        return _hang_up(received.request)

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
    code = aws_wire.error_code(upstream.status, upstream.headers, body)
    decision = aws_wire.decision(upstream.status, reads=subject.reads)
    content = None
    if subject.service == "dynamodb":
        content = dynamodb_wire.parse_reply(body)
        if content is not None:
            decision = dynamodb_wire.write_decision(decision, code, content)
    return _Reply(
        upstream.status,
        upstream.reason or "",
        _end_to_end(upstream.headers, _HOP_BY_HOP),
        body,
        decision,
        code,
        content,
    )


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
    headers = reply.headers.copy()
    headers[hdrs.CONTENT_LENGTH] = str(len(body))
    if "x-amz-crc32" in headers:
        headers["x-amz-crc32"] = dynamodb_wire.crc32(body)
    return replace(reply, headers=headers, body=body)


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
