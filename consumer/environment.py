"""One execution environment: a process that runs the user's handler, one event at a time.

It is replaced when it dies or is killed, as Lambda does: globals are lost, the temporary
folder stays. The faults that strike an invocation are carried out here: killed before its
answer counts, met by a new process, frozen after its answer, run with a clock that is ahead.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import re
import shutil
import signal
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from analysis.errors import HandlerError
from analysis.schema import Invocation, Outcome
from consumer.clock import Clock
from consumer.effects import http_url
from consumer.faults import FaultName, Occupant
from consumer.handler_clock import HandlerClock
from consumer.injector import Injector
from consumer.processes import BoundedLog, Child, Processes, exit_words
from consumer.recorder import Recorder
from consumer.runtime_api import Job, Reply, RuntimeApi

_ACCOUNT = "000000000000"
INIT_TIMEOUT_S = 60.0
"""Lambda allows the init phase 10 s; a loaded laptop that starts many at once needs longer."""
KEPT_CHARACTERS = 16_384
_HERE = Path(__file__).parent
_HTTP_EFFECT = re.compile(r"\{http:([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """The user's function, as Lambda's configuration would name it."""

    code: Path
    handler: str
    timeout_s: float
    region: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """``{http:NAME}`` in a value stands for the URL of the effect NAME at the gateway."""
    client: str = "awslambdaric" if importlib.util.find_spec("awslambdaric") else "minimal"
    """Taken by the tester's own interpreter; another one is not sure to have awslambdaric."""
    python: Path = Path(sys.executable)
    packages: tuple[Path, ...] = ()
    """Folders to import from, after the code."""

    @property
    def function_name(self) -> str:
        return self.handler.replace(".", "-").replace("/", "-")

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{self.region}:{_ACCOUNT}:function:{self.function_name}"


def lambda_variables(
    spec: HandlerSpec, endpoint_url: str, tmp: Path, stream: str
) -> dict[str, str]:
    """The process's environment: Lambda's reserved variables, then the user's.

    Without ``AWS_LAMBDA_RUNTIME_API``, which is another one for each process.

    Names are those of the Lambda developer guide ("Defined runtime environment
    variables"). Nothing of the tester's own environment is passed on but what an
    interpreter needs to start, so no credentials reach the handler.
    """
    inherited = {
        name: os.environ[name]
        for name in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LC_ALL")
        if name in os.environ
    }
    version = ".".join(platform.python_version_tuple()[:2])
    return {
        **inherited,
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "HOME": str(tmp),
        "TMPDIR": str(tmp),
        "PYTHONDONTWRITEBYTECODE": "1",  # leave no trace in the user's folder
        "_HANDLER": spec.handler,
        "LAMBDA_TASK_ROOT": str(spec.code),
        "AWS_LAMBDA_FUNCTION_NAME": spec.function_name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{spec.function_name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": stream,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{version}",
        "AWS_REGION": spec.region,
        "AWS_DEFAULT_REGION": spec.region,
        "AWS_ACCESS_KEY_ID": "onceproof",
        "AWS_SECRET_ACCESS_KEY": "onceproof",
        "AWS_ENDPOINT_URL": endpoint_url,
        # Nothing on this machine may answer for AWS behind the gateway's back.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        **{
            name: _HTTP_EFFECT.sub(lambda match: http_url(endpoint_url, match[1]), value)
            for name, value in spec.variables.items()
        },
    }


class Doors(Protocol):
    """What gives an environment the endpoint that it takes for AWS."""

    async def open_door(self, occupant: Occupant) -> str:
        """The endpoint URL for this environment."""
        ...


@dataclass(frozen=True, slots=True)
class _Process:
    """One process of the handler and what it speaks to."""

    child: Child
    exited: asyncio.Task[int]  # its exit status
    api: RuntimeApi


class Environment:
    """A slot that always has a process for the handler, or a reason why not."""

    def __init__(
        self,
        slot: int,
        spec: HandlerSpec,
        *,
        directory: Path,
        processes: Processes,
        gateway: Doors,
        recorder: Recorder,
        clock: Clock,
        injector: Injector,
    ) -> None:
        self.slot = slot
        self.current_invocation: int | None = None
        self._spec = spec
        # Absolute: the handler runs in another folder.
        self._tmp = directory.absolute() / f"tmp-{slot}"
        self._log_path = directory / f"environment-{slot}.log"
        self._processes = processes
        self._gateway = gateway
        self._recorder = recorder
        self._clock = clock
        self._injector = injector
        self._handler_clock: HandlerClock | None = None  # None: the host's
        self._process: _Process | None = None
        self._thaws: asyncio.TimerHandle | None = None  # set while the process is frozen
        self._cold = True

    async def open(self) -> None:
        """Make the endpoint it speaks to and start its first process.

        :raises HandlerError: when the handler cannot be imported or started.
        :raises UsageError: when the plan moves the handler's clock and this system cannot.
        """
        self._tmp.mkdir(parents=True, exist_ok=True)
        self._log = BoundedLog(self._log_path, redaction=self._recorder.redaction)
        self._variables = lambda_variables(
            self._spec,
            await self._gateway.open_door(self),
            self._tmp,
            stream=f"environment-{self.slot}",
        )
        if self._injector.plan.has(FaultName.CLOCK):
            self._handler_clock = HandlerClock(self._tmp.with_name(f"clock-{self.slot}"))
            self._variables |= self._handler_clock.variables(self._variables)
        process = await self._prepared()
        if self._handler_clock is not None:
            self._handler_clock.check(process.child.pid)

    async def close(self) -> None:
        await self.kill()
        if self._handler_clock is not None:
            self._handler_clock.close()
        self._log.close()
        shutil.rmtree(self._tmp, ignore_errors=True)

    async def prepare(self) -> None:
        """Make sure that a process is there and asks for work; replace a dead one.

        A frozen process will ask when it is thawed, by its next event or in time.

        :raises HandlerError: with the handler's own traceback when it does not start.
        """
        if self._process is None or self._process.exited.done() or self._thaws is None:
            await self._prepared()

    async def _prepared(self) -> _Process:
        """The process, when it asks for work."""
        process = self._process
        if process is None or process.exited.done():
            process = await self._start_process()
        idle = asyncio.ensure_future(process.api.idle())
        failed = asyncio.ensure_future(process.api.init_error())
        try:
            done, _ = await asyncio.wait(
                {idle, failed, process.exited},
                timeout=INIT_TIMEOUT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if idle in done:
                return process
            if failed in done:
                reply = failed.result()
                raise self._init_error(f"{reply.error_type}: {reply.error_message}")
        finally:
            idle.cancel()
            failed.cancel()
        if process.exited in done:
            await process.child.output_end()
            status = exit_words(process.exited.result())
            raise self._init_error(f"the process ended ({status})\n{self._log.tail().strip()}")
        raise self._init_error(f"it did not finish its import within {INIT_TIMEOUT_S:g} s")

    async def invoke(self, event: bytes, invocation_id: int) -> Invocation:
        """Run the handler once; how it ended, with the whole response.

        A handler that passes its timeout is killed with all that it forked.
        """
        cold_start = self._injector.strike_invocation(invocation_id, FaultName.COLD_START)
        if cold_start is not None:
            await self.kill()
        self._thaw()
        process = await self._prepared()
        clock = self._injector.strike_invocation(invocation_id, FaultName.CLOCK)
        ahead_s = clock.seconds if clock is not None else 0.0
        if self._handler_clock is not None:
            self._handler_clock.set_ahead(ahead_s)
        started_at = self._clock.now_ns()
        # By the handler's clock, with which it counts its remaining time.
        deadline_ns = started_at + round((self._spec.timeout_s + ahead_s) * 1e9)
        job = Job(str(uuid.uuid4()), event, deadline_ns // 1_000_000)
        row = Invocation(
            invocation_id=invocation_id,
            request_id=job.request_id,
            environment=self.slot,
            cold=self._cold,
            started_at=started_at,
        )
        self._recorder.write(row)
        for strike in (cold_start, clock):
            if strike is not None:
                self._injector.fire(strike, invocation_id=invocation_id)
        self._cold = False
        self.current_invocation = invocation_id
        reply = process.api.hand(job, lambda: self._answered(invocation_id, process))
        try:
            waited: set[asyncio.Future[Any]] = {reply, process.exited}
            await asyncio.wait(
                waited, timeout=self._spec.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if reply.done():
                ended = self._ended(row, reply.result())
            elif process.exited.done():
                ended = self._broken(
                    row,
                    Outcome.CRASHED,
                    "Runtime.ExitError",
                    f"the process ended in mid-run ({exit_words(process.exited.result())})",
                )
            else:
                await self.kill()
                ended = self._broken(
                    row,
                    Outcome.TIMED_OUT,
                    "Sandbox.Timedout",
                    f"Task timed out after {self._spec.timeout_s:.2f} seconds",
                )
        finally:
            self.current_invocation = None
        kept = ended.response[:KEPT_CHARACTERS] if ended.response is not None else None
        self._recorder.write(replace(ended, response=kept))
        return ended

    def _ended(self, row: Invocation, reply: Reply) -> Invocation:
        if reply.error_type is not None:
            return self._broken(row, Outcome.RAISED, reply.error_type, reply.error_message)
        return replace(
            row,
            ended_at=self._clock.now_ns(),
            outcome=Outcome.RETURNED,
            response=reply.body.decode("utf-8", "replace"),
        )

    def _broken(
        self, row: Invocation, outcome: Outcome, error_type: str, message: str
    ) -> Invocation:
        return replace(
            row,
            ended_at=self._clock.now_ns(),
            outcome=outcome,
            error_type=error_type,
            error_message=message[:KEPT_CHARACTERS],
        )

    async def kill(self) -> None:
        """End the process now, with all that it forked; the next event meets a new one."""
        process = self._process  # while it ends, the next one may already start
        if process is None:
            return
        self._processes.signal(process.child, signal.SIGKILL)
        if self._thaws is not None:
            self._thaws.cancel()
            self._thaws = None
        await process.api.close()
        await self._processes.end(process.child)
        await process.exited
        if self._handler_clock is not None:
            self._handler_clock.remove_traces(process.child.pid)

    def _answered(self, invocation_id: int, process: _Process) -> bool:
        """Meet the faults that wait for an answer; whether this one counts."""
        strike = self._injector.strike_invocation(
            invocation_id, FaultName.CRASH_BEFORE_ANSWER, FaultName.FREEZE
        )
        if strike is None:
            return True
        freezes = strike.name is FaultName.FREEZE
        self._processes.signal(process.child, signal.SIGSTOP if freezes else signal.SIGKILL)
        if freezes:
            loop = asyncio.get_running_loop()
            self._thaws = loop.call_later(strike.seconds, self._thaw)
        self._injector.fire(strike, invocation_id=invocation_id)
        return freezes

    def _thaw(self) -> None:
        if self._thaws is not None:
            assert self._process is not None
            self._thaws.cancel()
            self._thaws = None
            self._processes.signal(self._process.child, signal.SIGCONT)

    async def _start_process(self) -> _Process:
        await self.kill()
        spec = self._spec
        client = spec.client
        if client == "minimal" or spec.python != Path(sys.executable):
            client = str(_HERE / "minimal_runtime.py")
        argv = [str(spec.python), "-P", "-s", str(_HERE / "bootstrap.py")]
        argv += [str(spec.code), client, spec.handler, *map(str, spec.packages)]
        api = RuntimeApi(self._spec.arn)
        try:
            variables = {**self._variables, "AWS_LAMBDA_RUNTIME_API": await api.start()}
            child = await self._processes.start(
                argv, env=variables, cwd=self._spec.code, log=self._log
            )
        except BaseException:
            await api.close()
            raise
        self._process = _Process(child, asyncio.create_task(child.wait()), api)
        self._cold = True
        return self._process

    def _init_error(self, reason: str) -> HandlerError:
        return HandlerError(
            f"the handler {self._spec.handler} in {self._spec.code} could not be started:\n"
            f"{reason}\n"
            "Check --code (the folder that Lambda would unpack), --handler (module.function) and "
            f"the variables of [handler] environment. Its output is in {self._log_path}."
        )
