"""Holds the calls of a run until somebody says what becomes of them.

Once a run waits for the replies to all its calls it stands still, and which call goes on, of which
of several runs, is for the explorer to choose. The gate is behind a door of its own, where a call
is answered from memory, or inside the recording gateway, where it then takes its real course.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from consumer import aws_wire
from consumer.aws_wire import Subject
from consumer.faults import Occupant

_HEADER_BYTES = 64 * 1024  # as in the gateway


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call as it came in."""

    method: str
    target: str  # path and query as sent
    headers: Mapping[str, str]
    body: bytes  # empty when it is streamed
    subject: Subject


@dataclass(frozen=True, slots=True)
class Told:
    """A reply from memory."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Admit = Callable[[Occupant, WireCall], AbstractAsyncContextManager[object]]
"""Entered when a call may go on, left when its reply has been sent. Raises ConnectionError when
it never may."""


class ParallelCallsError(Exception):
    """A run made a call while another one of its calls was held, on a system that does not tell
    when it has made all of them."""

    def __init__(self, first: WireCall, second: WireCall) -> None:
        super().__init__(
            f"{_name(first)} and {_name(second)} were under way at the same time: the handler "
            "calls from several threads or tasks, whose order can be explored on Linux alone"
        )


@dataclass(frozen=True, slots=True)
class _Held:
    asked: WireCall
    let_go: asyncio.Future[Told | None]


class Gate:
    """The gate of one run. Make it inside a running event loop."""

    def __init__(self) -> None:
        self.given_up = False
        """Whether a client has waited too long and made its call once more."""
        self._held: list[_Held] = []
        self._let_go = 0  # calls whose replies have not been sent
        self._closed = False
        loop = asyncio.get_running_loop()
        self._arrival: asyncio.Future[None] = loop.create_future()
        self._all_sent: asyncio.Future[None] = loop.create_future()
        self._all_sent.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """Done while a call is held."""
        return self._arrival

    def all_sent(self) -> asyncio.Future[None]:
        """Done while every call that was let go has had its reply sent."""
        return self._all_sent

    @property
    def calls(self) -> tuple[WireCall, ...]:
        """Those that are held, as they came."""
        return tuple(held.asked for held in self._held)

    @asynccontextmanager
    async def passing(self, asked: WireCall) -> AsyncIterator[Told | None]:
        """As :meth:`hold`; to be left when the reply has been sent."""
        told = await self.hold(asked)
        try:
            yield told
        finally:
            self._let_go -= 1
            if not self._let_go:
                self._all_sent.set_result(None)

    async def hold(self, asked: WireCall) -> Told | None:
        """Wait; the reply to give, None for a connection reset, or for a call that is to
        take its real course.

        :raises ConnectionError: the run is over.
        """
        if self._closed:
            raise ConnectionError
        call_id = asked.subject.sdk_id
        if call_id is not None and any(call_id == one.asked.subject.sdk_id for one in self._held):
            self.given_up = True
            self.close()
            raise ConnectionError
        held = _Held(asked, asyncio.get_running_loop().create_future())
        self._held.append(held)
        if not self._arrival.done():
            self._arrival.set_result(None)
        return await held.let_go

    def let_go(self, asked: WireCall, told: Told | None) -> None:
        """Let one that is held have this."""
        held = next(one for one in self._held if one.asked is asked)
        self._held.remove(held)
        loop = asyncio.get_running_loop()
        if not self._held:
            self._arrival = loop.create_future()
        if not self._let_go:
            self._all_sent = loop.create_future()
        self._let_go += 1
        held.let_go.set_result(told)

    def close(self) -> None:
        """The run is over: nobody waits here any longer, and nobody comes in."""
        self._closed = True
        for held in self._held:
            if not held.let_go.done():
                held.let_go.set_exception(ConnectionError())


class Door:
    """An endpoint whose calls are answered from memory. One run is behind it at a time.

    Make it inside a running event loop.
    """

    def __init__(self) -> None:
        self.gate: Gate | None = None
        self._server = web.Server(
            self._serve,
            access_log=None,
            auto_decompress=False,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        self._listener: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen; the port, on 127.0.0.1."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, "127.0.0.1", 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            await self._server.shutdown(0)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        gate = self.gate
        try:
            body = await request.content.read()
            if gate is None:
                return _hang_up(request)
            subject = aws_wire.subject(request.method, request.raw_path, request.headers, body)
            asked = WireCall(request.method, request.raw_path, request.headers, body, subject)
            async with gate.passing(asked) as told:
                if told is None:
                    return _hang_up(request)
                reply = web.Response(status=told.status, headers=told.headers, body=told.body)
                with suppress(ConnectionError):  # its process has ended
                    await reply.prepare(request)
                    await reply.write_eof()
                return reply
        except (ConnectionError, web.RequestPayloadError):
            return _hang_up(request)


def _hang_up(request: web.BaseRequest) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()  # goes nowhere


def _name(asked: WireCall) -> str:
    return f"{asked.subject.service}:{asked.subject.operation}"
