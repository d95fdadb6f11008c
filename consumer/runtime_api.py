"""The Lambda Runtime API as one environment sees it, on a loopback port of its own.

Follows the Lambda developer guide ("Using the Lambda runtime API for custom runtimes").
A port for each environment, not a path prefix: awslambdaric reports an init error to the
bare ``AWS_LAMBDA_RUNTIME_API`` address through ``http.client``, which takes no path.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

_BASE = "/2018-06-01/runtime/"
MAX_RESPONSE_BYTES = 6 * 1024 * 1024
"""Lambda's limit on a synchronous response (developer guide, "Lambda quotas")."""

_HEADER_BYTES = 1024 * 1024
"""awslambdaric sends a handler's whole traceback in a header, up to 1 MiB of it, beyond
aiohttp's 8 KiB."""


@dataclass(frozen=True, slots=True)
class Job:
    """One invocation on its way to the runtime client."""

    request_id: str
    event: bytes  # JSON
    deadline_ms: int  # milliseconds since the epoch

    def headers(self, function_arn: str) -> dict[str, str]:
        """What "next" says beside the event."""
        return {
            "Lambda-Runtime-Aws-Request-Id": self.request_id,
            "Lambda-Runtime-Deadline-Ms": str(self.deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": function_arn,
            "Lambda-Runtime-Trace-Id": (
                f"Root=1-{self.deadline_ms // 1000:08x}-{'0' * 24};Sampled=0"
            ),
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """What the runtime client reported for a job, or for its own start."""

    body: bytes
    error_type: str | None = None  # None: the handler returned

    @property
    def error_message(self) -> str:
        """The handler's own words, with its traceback where it sent one."""
        try:
            shape = json.loads(self.body)
            trace = "".join(shape.get("stackTrace") or [])
            return f"{shape['errorMessage']}\n{trace}".rstrip()
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.body.decode("utf-8", "replace")


def too_large() -> Reply:
    """In place of an answer that is longer than Lambda allows."""
    message = f"Response payload size exceeded {MAX_RESPONSE_BYTES} bytes"
    return Reply(json.dumps({"errorMessage": message}).encode(), "Function.ResponseSizeTooLarge")


class RuntimeApi:
    """Serves ``next``, ``response``, ``error`` and ``init/error`` to one process.

    The next process gets a new one: nothing that a killed process had still sent can be
    taken for the words of its successor. Make it inside a running event loop.
    """

    def __init__(self, function_arn: str) -> None:
        loop = asyncio.get_running_loop()
        self._arn = function_arn
        self._web = web.Server(
            self._handle,
            access_log=None,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        self._server: asyncio.Server | None = None
        self._closed = False
        self._idle = asyncio.Event()  # the process asks for its next job
        self._next_job: asyncio.Future[Job | None] = loop.create_future()
        self._init_error: asyncio.Future[Reply] = loop.create_future()
        self._request_id: str | None = None  # the job under way
        self._reply: asyncio.Future[Reply] = loop.create_future()
        self._at_answer: Callable[[], bool]

    async def start(self) -> str:
        """Listen; the value for ``AWS_LAMBDA_RUNTIME_API`` (``host:port``)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._web, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        """Hear no more of the process, from now on."""
        self._closed = True
        self._request_id = None
        if not self._next_job.done():
            self._next_job.set_result(None)
        if self._server is not None:
            self._server.close()
            await self._web.shutdown(0.5)

    async def idle(self) -> None:
        """Wait until the process asks for a job."""
        await self._idle.wait()

    async def init_error(self) -> Reply:
        """Wait until the process reports that it could not start (perhaps for ever)."""
        return await asyncio.shield(self._init_error)

    def hand(self, job: Job, at_answer: Callable[[], bool]) -> asyncio.Future[Reply]:
        """Give an idle process its job; the future is its answer.

        :param at_answer: called when the answer has come in and the process does not know
            yet; says whether the answer counts.
        """
        self._idle.clear()
        self._request_id = job.request_id
        self._reply = asyncio.get_running_loop().create_future()
        self._at_answer = at_answer
        self._next_job.set_result(job)
        return self._reply

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix(_BASE)
        match path.split("/"):
            case ["invocation", "next"] if request.method == "GET":
                return await self._next()
            case ["invocation", request_id, "response"]:
                body = await _read(request)
                return self._settle(request_id, too_large() if body is None else Reply(body))
            case ["invocation", request_id, "error"]:
                return self._settle(request_id, await _error_reply(request))
            case ["init", "error"]:
                reply = await _error_reply(request)
                if not self._init_error.done():
                    self._init_error.set_result(reply)
                return _status(202, "OK")
        return _status(404, "NotFound")

    async def _next(self) -> web.Response:
        if self._closed:
            return _status(500, "Exit")
        self._next_job = asyncio.get_running_loop().create_future()
        self._idle.set()
        job = await self._next_job
        if job is None:
            return _status(500, "Exit")
        # Exactly this type: with a charset awslambdaric hands the handler raw bytes.
        headers = {**job.headers(self._arn), "Content-Type": "application/json"}
        return web.Response(body=job.event, headers=headers)

    def _settle(self, request_id: str, reply: Reply) -> web.Response:
        if request_id != self._request_id:
            return _status(400, "InvalidRequestID")
        self._request_id = None
        if self._at_answer():
            self._reply.set_result(reply)
        return _status(202, "OK")


async def _read(request: web.BaseRequest) -> bytes | None:
    """The body, read to its end; None when it is longer than Lambda allows."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size <= MAX_RESPONSE_BYTES:
            chunks.append(chunk)
    return b"".join(chunks) if size <= MAX_RESPONSE_BYTES else None


async def _error_reply(request: web.BaseRequest) -> Reply:
    error_type = request.headers.get("Lambda-Runtime-Function-Error-Type")
    body = await _read(request) or b"{}"
    if not error_type:
        try:
            error_type = str(json.loads(body)["errorType"])
        except (ValueError, KeyError, TypeError):
            error_type = "Runtime.Unknown"
    return Reply(body, error_type)


def _status(code: int, word: str) -> web.Response:
    return web.json_response({"status": word}, status=code)
