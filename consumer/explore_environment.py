"""The handler's process when it is explored: imported once, forked for every run.

See :mod:`consumer.zygote` for the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.errors import HandlerError, UsageError
from analysis.schema import Invocation, Outcome
from consumer import handler_clock, stillness
from consumer.environment import (
    INIT_TIMEOUT_S,
    KEPT_CHARACTERS,
    HandlerSpec,
    lambda_variables,
)
from consumer.gate import Gate, ParallelCallsError, WireCall
from consumer.processes import BoundedLog, Child, Processes, exit_words
from consumer.redaction import NOTHING_SECRET, Redaction
from consumer.runtime_api import MAX_RESPONSE_BYTES, Job, Reply, too_large

_ZYGOTE = Path(__file__).with_name("zygote.py")
_HEADER = 4


@dataclass(frozen=True, slots=True)
class Start:
    """One run to fork."""

    job: Job
    port: int  # of the door behind which it finds AWS, on 127.0.0.1
    seed: str  # of all chance in it
    time_s: float | None  # where its clock stands; None: the host's clock


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    status: int  # exit status, negative for a signal
    reply: Reply | None  # None: it ended without an answer


class Fork:
    """One run under way, or over."""

    def __init__(self, zygote: Zygote, number: int, port: int) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.port = port  # where it finds AWS
        self._zygote = zygote
        self._number = number

    async def kill(self) -> None:
        """End it now, as a host that dies: no handler, no ``finally`` runs."""
        if not self.ended.done():
            self._zygote.send({"kill": self._number})
            await asyncio.wait([self.ended])


class Zygote:
    """The process that has imported the handler.

    :param directory: for its log and its temporary folder.
    :param door_url: where it finds AWS while it is imported.
    """

    def __init__(
        self,
        spec: HandlerSpec,
        *,
        directory: Path,
        processes: Processes,
        door_url: str,
        redaction: Redaction = NOTHING_SECRET,
    ) -> None:
        self.pinned_clock = False
        """Whether runs can have a clock of their own. Where libfaketime is not installed,
        or does not work, they have the host's."""
        self.shares_chance = False
        """Whether the import has drawn ids or the like, which all runs then have in common."""
        self._spec = spec
        self._tmp = directory.absolute() / "tmp-explore"
        self._log_path = directory / "explore.log"
        self._processes = processes
        self._redaction = redaction
        self._door_url = door_url
        self._child: Child | None = None
        self._forks: dict[int, Fork] = {}
        self._started = 0
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._gone: HandlerError | None = None

    async def open(self) -> None:
        """Import the handler.

        :raises HandlerError: it cannot be imported, or not be forked.
        """
        self._tmp.mkdir(parents=True, exist_ok=True)
        self._log = BoundedLog(self._log_path, redaction=self._redaction)
        variables = lambda_variables(self._spec, self._door_url, self._tmp, "explore")
        # Sets and dictionaries keyed by hashes come in the same order in every exploration.
        variables["PYTHONHASHSEED"] = "0"
        with contextlib.suppress(UsageError):
            variables |= handler_clock.preloading(handler_clock.library(), variables)
            variables["FAKETIME"] = "+0"  # what runs change must be there from the start
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                argv = [str(self._spec.python), "-P", "-s", str(_ZYGOTE), str(self._spec.code)]
                argv += [self._spec.handler, str(theirs.fileno())]
                argv += map(str, self._spec.packages)
                self._child = await self._processes.start(
                    argv,
                    env=variables,
                    cwd=self._spec.code,
                    log=self._log,
                    pass_fds=[theirs.fileno()],
                )
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        await self._imported(reader, self._child)
        self.pinned_clock = handler_clock.is_loaded(self._child.pid)
        self._reader = asyncio.create_task(self._read(reader))

    async def close(self) -> None:
        """End it, with all its runs."""
        if self._child is None:
            return
        if self._writer is not None:
            self._writer.close()
        await self._processes.end(self._child)
        if self._reader is not None:
            await self._reader
        handler_clock.remove_traces(self._child.pid)
        self._log.close()
        shutil.rmtree(self._tmp, ignore_errors=True)

    def fork(self, start: Start) -> Fork:
        """Start a run.

        :raises HandlerError: the process that had imported the handler is gone.
        """
        if self._gone is not None:
            raise self._gone
        self._started += 1
        fork = self._forks[self._started] = Fork(self, self._started, start.port)
        self.send(
            {
                "run": self._started,
                "event": start.job.event.decode(),
                "headers": start.job.headers(self._spec.arn),
                "port": start.port,
                "seed": start.seed,
                "time_s": start.time_s if self.pinned_clock else None,
            }
        )
        return fork

    def send(self, frame: dict[str, Any]) -> None:
        assert self._writer is not None
        text = json.dumps(frame).encode()
        self._writer.write(len(text).to_bytes(_HEADER) + text)

    async def _imported(self, reader: asyncio.StreamReader, child: Child) -> None:
        try:
            frame = await asyncio.wait_for(_frame(reader), INIT_TIMEOUT_S)
        except TimeoutError:
            raise self._failed(
                f"it did not finish its import within {INIT_TIMEOUT_S:g} s"
            ) from None
        if frame is None:
            status = await child.wait()
            await child.output_end()
            raise self._failed(f"the process ended ({status})\n{self._log.tail().strip()}")
        if "error_type" in frame:
            reply = Reply(frame["body"].encode(), frame["error_type"])
            raise self._failed(f"{reply.error_type}: {reply.error_message}")
        if frame["threads"]:
            raise self._failed(
                f"its import starts {frame['threads']} thread(s). Exploring forks the process "
                "that has imported it, and threads do not survive that. Start them when the "
                "first event comes, or test it with loadtest run."
            )
        self.shares_chance = frame["chance"]

    def _failed(self, reason: str) -> HandlerError:
        return HandlerError(
            f"the handler {self._spec.handler} in {self._spec.code} could not be started:\n"
            f"{reason}\n"
            "Check --code (the folder that Lambda would unpack), --handler (module.function) and "
            f"the variables of [handler] environment. Its output is in {self._log_path}."
        )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (frame := await _frame(reader)) is not None:
            if "pid" in frame:
                self._forks[frame["run"]].pid.set_result(frame["pid"])
                continue
            self._end(self._forks.pop(frame["run"]), frame["status"], frame["answer"])
        self._gone = self._failed("the process from which its runs are forked has ended")
        for fork in self._forks.values():
            if not fork.ended.done():
                fork.ended.set_result(Ended(-9, None))

    def _end(self, fork: Fork, status: int, answer: dict[str, Any] | None) -> None:
        reply = None
        if answer is not None:
            body = answer["body"].encode()
            too_long = len(body) > MAX_RESPONSE_BYTES
            reply = too_large() if too_long else Reply(body, answer["error_type"])
        fork.ended.set_result(Ended(status, reply))


async def _frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """None at the end of the stream."""
    try:
        size = int.from_bytes(await reader.readexactly(_HEADER))
        frame: dict[str, Any] = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frame


async def next_step(
    gate: Gate, fork: Fork, patience_s: float, *, one_call: bool = False
) -> tuple[WireCall, ...] | Ended | None:
    """What a run does next: the calls that are then held, or its end.

    :param one_call: no run of this handler has several calls under way: there is no need to wait
        until it stands still to see whether more come.
    :returns: None when it does neither in time.
    :raises ParallelCallsError: it has several, and this system does not tell whether more come.
    """
    try:
        async with asyncio.timeout(patience_s):
            either: list[asyncio.Future[Any]] = [gate.arrival(), fork.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not fork.ended.done() and (not one_call or len(gate.calls) > 1):
                if stillness.can_be_seen():
                    for known in (fork.pid, gate.all_sent()):
                        either = [known, fork.ended]
                        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not fork.ended.done():
                        await stillness.come_to_rest(fork.pid.result(), fork.port, fork.ended)
                elif len(gate.calls) > 1:
                    raise ParallelCallsError(*gate.calls[:2])
    except TimeoutError:
        return None
    return fork.ended.result() if fork.ended.done() else gate.calls


def with_end(row: Invocation, ended: Ended | None, ended_at: int, timeout_s: float) -> Invocation:
    """An invocation with how it ended, in the words of an environment of a flood.

    :param ended: None: it was killed at its timeout.
    """
    if ended is None:
        outcome, error_type = Outcome.TIMED_OUT, "Sandbox.Timedout"
        message = f"Task timed out after {timeout_s:.2f} seconds"
    elif ended.reply is None:
        outcome, error_type = Outcome.CRASHED, "Runtime.ExitError"
        message = f"the process ended in mid-run ({exit_words(ended.status)})"
    elif ended.reply.error_type is None:
        return replace(
            row,
            ended_at=ended_at,
            outcome=Outcome.RETURNED,
            response=ended.reply.body.decode("utf-8", "replace"),
        )
    else:
        outcome, error_type = Outcome.RAISED, ended.reply.error_type
        message = ended.reply.error_message
    return replace(
        row,
        ended_at=ended_at,
        outcome=outcome,
        error_type=error_type,
        error_message=message[:KEPT_CHARACTERS],
    )
