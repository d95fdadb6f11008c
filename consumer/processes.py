"""Child processes that never outlive the tester.

Every child gets a session of its own, so that it can be ended together with whatever it
forked, and so that Ctrl-C in a terminal reaches the tester alone. A watchdog process
does the same when the tester itself is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self, cast

from consumer.redaction import NOTHING_SECRET, Redaction

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_LINE_MAX_BYTES = 262_144  # an event of ten messages is longer only with very large bodies
# As JSON or as Python prints it, also inside a text that was quoted once more.
_RECEIPT_HANDLE = re.compile(rb"""([rR]eceiptHandle\\*["']\s*:\s*\\*["'])[^"'\\]+""")


def without_receipt_handles(text: bytes) -> bytes:
    """A handler's output without them: whoever holds one can delete the message."""
    return _RECEIPT_HANDLE.sub(rb"\1[left out]", text)


class BoundedLog:
    """A log file that stops growing at ``limit_bytes`` and then counts what it drops.

    Receipt handles are left out of it. So an unfinished line waits for its end, in case it
    breaks off inside one.
    """

    def __init__(
        self,
        path: Path,
        limit_bytes: int = 1_048_576,
        redaction: Redaction = NOTHING_SECRET,
    ) -> None:
        self.path = path
        self._redaction = redaction
        self._left = limit_bytes
        self._dropped = 0
        self._line = b""
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, chunk: bytes) -> None:
        text = self._line + chunk
        end = len(text) if len(text) > _LINE_MAX_BYTES else text.rfind(b"\n") + 1
        self._line = text[end:]
        self._append(text[:end])

    def tail(self, size_bytes: int = 4_000) -> str:
        """The end of what was kept, as text."""
        self._end_line()
        with self.path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size_bytes))
            return file.read().decode("utf-8", "replace")

    def close(self) -> None:
        self._end_line()
        if self._dropped:
            # A full disk has no room for this either.
            with contextlib.suppress(OSError):
                self._file.write(f"\n[{self._dropped} more bytes were not kept]\n".encode())
            self._dropped = 0
        self._file.close()

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        self._append(line)

    def _append(self, text: bytes) -> None:
        text = self._redaction(without_receipt_handles(text))
        written = 0
        if self._left:
            try:
                written = self._file.write(text[: self._left])
                self._left -= written
            except OSError:
                # Log or not, somebody has to read what a child prints, or it would hang.
                self._left = 0
        self._dropped += len(text) - written


def exit_words(status: int) -> str:
    """How a process ended, by its exit status, negative for a signal."""
    return f"exit status {status}" if status >= 0 else f"signal {-status}"


class Child(asyncio.SubprocessProtocol):
    """One child, whose output goes to ``log``.

    :param on_start: called as soon as it runs.
    :param on_exit: called as soon as it has ended.
    """

    def __init__(
        self,
        log: BoundedLog,
        on_start: Callable[[Child], None],
        on_exit: Callable[[Child], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self._log = log
        self._on_start = on_start
        self._on_exit = on_exit
        self._exited: asyncio.Future[int] = loop.create_future()
        self._output_ended: asyncio.Future[None] = loop.create_future()

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._exited.result() if self._exited.done() else None

    async def wait(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        return await asyncio.shield(self._exited)

    async def output_end(self, patience_s: float = 1.0) -> None:
        """Wait until all its output is in the log, or a grandchild keeps the pipe open."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._output_ended), patience_s)

    def close(self) -> None:
        """Read no more of its output."""
        self._transport.close()

    # What asyncio calls. Its own Process would tell of an end only once nobody has the pipe
    # open any more.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()
        self._on_start(self)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._log.write(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if not self._output_ended.done():
            self._output_ended.set_result(None)

    def process_exited(self) -> None:
        status = self._transport.get_returncode()
        assert status is not None
        self._exited.set_result(status)
        self._on_exit(self)


class Processes:
    """Starts and ends children; an asynchronous context manager that leaves none behind."""

    def __init__(self) -> None:
        self._children: set[Child] = set()
        self._groups: set[int] = set()  # process groups that nobody else can have

    async def __aenter__(self) -> Self:
        self._watchdog = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-S", "-E", str(_WATCHDOG)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(self.end(child) for child in list(self._children)))
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        await asyncio.to_thread(self._watchdog.wait)

    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: BoundedLog,
        pass_fds: Sequence[int] = (),
    ) -> Child:
        """Start ``argv`` in a session of its own; both output streams go to ``log``."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(
                lambda: Child(log, self._started, self._ended),
                *argv,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        )
        try:
            _, child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It may run already without being known yet: whoever cleans up must find it.
            await asyncio.gather(starting, return_exceptions=True)
            raise
        return child

    def _started(self, child: Child) -> None:
        self._children.add(child)
        self._groups.add(child.pid)
        self._tell(f"+{child.pid}")

    def _ended(self, child: Child) -> None:
        """Kill what it forked and forget its number.

        At once: from now on the number may be given to another process, of somebody else.
        """
        self.signal(child, signal.SIGKILL)
        self._groups.discard(child.pid)
        self._tell(f"-{child.pid}")

    def signal(self, child: Child, number: signal.Signals) -> None:
        """Signal the child and all it forked; nobody once it has ended."""
        if child.pid in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)

    async def end(self, child: Child) -> int:
        """Kill the child with all it forked, stopped or not, and wait; its exit status."""
        self.signal(child, signal.SIGKILL)
        status = await child.wait()
        child.close()
        self._children.discard(child)
        return status

    def _tell(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.stdin.write(f"{line}\n".encode())
            self._watchdog.stdin.flush()
