"""Imports the user's handler once and forks a process for each run of it.

Run by path as ``python -P zygote.py CODE HANDLER DESCRIPTOR``, standard library only, inside
the handler's process. So every run begins from the same state of its process, costs no
import, and may crash without taking more than itself along.

The descriptor is a stream socket to the tester. Both sides send frames: four bytes of
length, then a JSON object.

To the tester, once: ``{"threads": n, "chance": b}``, how many threads the import has
started and whether it has drawn from ``os.urandom``, or ``{"error_type": .., "body": ..}``.
For each run then ``{"run": n, "pid": ..}`` when it has been forked, and at its end
``{"run": n, "status": .., "answer": ..}`` with its exit status
(negative: the signal) and the answer that it had posted by then, if any.
From the tester: ``{"run": n, ..}`` starts one (see :class:`_Job`), ``{"kill": n}`` kills it.
The end of the stream means that the tester is gone: all runs are killed.

What chance and time there are in a run are fixed by its job, so that the same event and the
same replies lead to the same calls. That holds for what goes through Python's own ``os``,
``random``, ``secrets``, ``uuid`` and, where libfaketime is loaded, for every clock but the
monotonic one.
"""

import encodings.idna  # noqa: F401 - the first connection of every run would import it
import gc
import importlib.util
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, SupportsIndex
from urllib.parse import urlsplit

_HEADER = 4
_PIPE_READ = 65_536


class _Job(NamedTuple):
    """One run, as the tester asks for it."""

    run: int
    event: str  # JSON
    headers: dict[str, str]  # of the Runtime API's "next"
    port: int  # where this run finds AWS
    seed: str
    time_s: float | None  # what the handler's clock says; None: the host's time


def _sibling(name: str) -> Any:
    """A module beside this file, whose package is hidden from the handler."""
    spec = importlib.util.spec_from_file_location(
        f"_onceproof_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Channel:
    """Frames to and from the tester."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self._received = bytearray()

    def send(self, **members: Any) -> None:
        frame = json.dumps(members).encode()
        self.socket.sendall(len(frame).to_bytes(_HEADER) + frame)

    def receive(self) -> list[dict[str, Any]] | None:
        """The frames that have come in; None when the tester is gone."""
        chunk = self.socket.recv(_PIPE_READ)
        if not chunk:
            return None
        self._received += chunk
        frames = []
        while len(self._received) >= _HEADER:
            end = _HEADER + int.from_bytes(self._received[:_HEADER])
            if len(self._received) < end:
                break
            frames.append(json.loads(self._received[_HEADER:end]))
            del self._received[:end]
        return frames


class _Run:
    """A forked run, as the zygote sees it."""

    def __init__(self, number: int, pid: int, pipe: int) -> None:
        self.number = number
        self.pid = pid
        self.pipe = pipe
        self.answer = bytearray()


class _Zygote:
    def __init__(self, channel: _Channel, runtime: ModuleType, handler: Any) -> None:
        self._channel = channel
        self._runtime = runtime
        self._handler = handler
        self._runs: dict[int, _Run] = {}
        self._door = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
        # Those that the import made: without new seeds every run would draw the same.
        self._generators = [one for one in gc.get_objects() if isinstance(one, random.Random)]
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # a collection in a run must not touch, and so copy, all of this

    def serve(self) -> None:
        """Until the tester is gone."""
        while True:
            pipes = {run.pipe: run for run in self._runs.values()}
            control = self._channel.socket.fileno()
            ready, _, _ = select.select([control, self._woken, *pipes], [], [])
            if self._woken in ready:
                os.read(self._woken, _PIPE_READ)
            for descriptor in ready:
                if descriptor in pipes:
                    self._read(pipes[descriptor])
            self._reap()
            if control in ready:
                frames = self._channel.receive()
                if frames is None:
                    for run in self._runs.values():
                        os.kill(run.pid, signal.SIGKILL)
                    return
                for frame in frames:
                    self._obey(frame)

    def _obey(self, frame: dict[str, Any]) -> None:
        if "kill" in frame:
            run = self._runs.get(frame["kill"])
            if run is not None:  # not waited for yet: the number is still its own
                os.kill(run.pid, signal.SIGKILL)
            return
        job = _Job(**frame)
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            self._become(job, writes)
        os.close(writes)
        os.set_blocking(reads, False)
        self._runs[job.run] = _Run(job.run, pid, reads)
        self._channel.send(run=job.run, pid=pid)

    def _read(self, run: _Run) -> None:
        try:
            while chunk := os.read(run.pipe, _PIPE_READ):
                run.answer += chunk
        except BlockingIOError:
            return
        # Closed: it ends. Not asked again, or an ended stream would be readable all the time.
        os.close(run.pipe)
        run.pipe = os.open(os.devnull, os.O_RDONLY)

    def _reap(self) -> None:
        for run in list(self._runs.values()):
            pid, status = os.waitpid(run.pid, os.WNOHANG)
            if pid == 0:
                continue
            self._read(run)
            os.close(run.pipe)
            del self._runs[run.number]
            answer = json.loads(run.answer) if run.answer.endswith(b"\n") else None
            self._channel.send(
                run=run.number, status=os.waitstatus_to_exitcode(status), answer=answer
            )

    def _become(self, job: _Job, answers: int) -> None:
        """Be the run: never returns."""
        status = 1
        try:
            self._channel.socket.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (
                self._woken,
                self._wakes,
                *(run.pipe for run in self._runs.values()),
            ):
                os.close(descriptor)
            self._pin(job)
            context = self._runtime.Context(job.headers)
            answer = self._runtime.invoke(self._handler, job.event.encode(), context)
            posted = {
                "error_type": answer.error_type,
                "body": answer.body.decode("utf-8", "replace"),
            }
            with open(answers, "wb") as pipe:
                pipe.write(json.dumps(posted).encode() + b"\n")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(status)

    def _pin(self, job: _Job) -> None:
        _redirect(self._door, job.port)
        bytes_of_chance = _chance(job.seed)
        # What secrets, uuid4 and SystemRandom draw from.
        os.urandom = random._urandom = bytes_of_chance  # type: ignore[attr-defined]
        uuid._generate_time_safe = None  # type: ignore[attr-defined] # its own source of chance
        for number, generator in enumerate(self._generators):
            generator.seed(f"{job.seed}/{number}")
        if job.time_s is not None:
            _set_clock(job.time_s)


def _chance(seed: str) -> Callable[[int], bytes]:
    """Random bytes that are the same in every run with this seed: for each thread its own, since
    which of several draws first is not."""
    own = threading.local()
    own.generator = random.Random(seed)

    def draw(size: int, /) -> bytes:
        if not hasattr(own, "generator"):
            own.generator = random.Random(f"{seed}/{threading.current_thread().name}")
        drawn: bytes = own.generator.randbytes(size)
        return drawn

    return draw


def _redirect(imported_port: int | None, port: int) -> None:
    """Lead connections to the endpoint that was known at import to this run's own."""
    plain = socket.socket.connect, socket.socket.connect_ex
    old, new = ("127.0.0.1", imported_port), ("127.0.0.1", port)

    def connect(self: socket.socket, address: Any) -> None:
        plain[0](self, new if address == old else address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        return plain[1](self, new if address == old else address)

    socket.socket.connect = connect  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = connect_ex  # type: ignore[method-assign, assignment]


def _set_clock(time_s: float) -> None:
    """Let the clock stand; libfaketime reads this variable at every question."""
    moment = datetime.fromtimestamp(time_s, UTC)
    os.environ["FAKETIME"] = f"{moment:%Y-%m-%d %H:%M:%S.%f}"


def _watch_chance() -> list[int]:
    """Sizes of what is drawn from ``os.urandom`` from now on, as it happens."""
    drawn: list[int] = []
    real = os.urandom

    def draw(size: int, /) -> bytes:
        drawn.append(size)
        return real(size)

    os.urandom = random._urandom = draw  # type: ignore[attr-defined]
    return drawn


def _sleep_in_clock() -> None:
    """Let sleeping move a clock that stands, and take no time. Done before the import, so
    that ``from time import sleep`` finds it."""
    real = time.sleep

    def sleep(seconds: SupportsIndex | float, /) -> None:
        seconds = float(seconds)
        if seconds > 0 and "FAKETIME" in os.environ and os.environ["FAKETIME"] != "+0":
            _set_clock(time.time() + seconds)
            seconds = 0
        real(seconds)

    time.sleep = sleep


def main(code: str, handler_name: str, descriptor: int, packages: list[str]) -> None:
    channel = _Channel(descriptor)
    runtime = _sibling("minimal_runtime")
    _sibling("bootstrap").arrange_path(code, packages)
    _sleep_in_clock()
    drawn = _watch_chance()
    sys.argv = [sys.argv[0], handler_name]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        handler = runtime.load(handler_name)
    except runtime.ImportFailedError as error:
        channel.send(error_type=error.error_type, body=error.body().decode())
        return
    zygote = _Zygote(channel, runtime, handler)
    channel.send(threads=threading.active_count() - 1, chance=bool(drawn))
    zygote.serve()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
