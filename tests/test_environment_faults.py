"""Faults of an invocation, with real processes: what the handler saw and what is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import HandlerError, UsageError
from analysis.schema import Invocation, Outcome
from consumer import handler_clock
from consumer.clock import HostClock
from consumer.environment import Environment, HandlerSpec
from consumer.faults import FaultName, FaultPlan, FaultRule
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.processes import Processes
from consumer.recorder import Recorder

EVENT = b'{"Records": [{"body": "x"}]}'

FORKS = """
import os, subprocess, sys
from pathlib import Path
out = Path(os.environ["OUT"])
def fork():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    out.joinpath("pids.new").write_text(f"{os.getpid()} {child.pid}")
    out.joinpath("pids.new").rename(out / "pids")
"""

HANDLERS = {
    "hangs": FORKS + "import time\ndef handler(event, context):\n    fork()\n    time.sleep(600)\n",
    "answers": FORKS + "def handler(event, context):\n    fork()\n    return 'done'\n",
    "raises": FORKS + "def handler(event, context):\n    fork()\n    raise ValueError('no')\n",
    "counts": (
        "count = 0\n"
        "def handler(event, context):\n"
        "    global count\n"
        "    count += 1\n"
        "    return count\n"
    ),
    # Work that nobody awaits, in a thread and in a forked process.
    "ticks": (
        "import itertools, os, threading, time\n"
        "out = os.environ['OUT']\n"
        "def tick(name):\n"
        "    with open(f'{out}/{name}', 'wb', buffering=0) as file:\n"
        "        for count in itertools.count():\n"
        "            file.write(b'.')\n"
        "            time.sleep(0.001)\n"
        "child = None\n"
        "def handler(event, context):\n"
        "    global child\n"
        "    if child is None:\n"
        "        child = os.fork()\n"
        "        if not child:\n"
        "            tick('forked')\n"
        "        threading.Thread(target=tick, args=('thread',), daemon=True).start()\n"
        "    return [os.getpid(), child]\n"
    ),
    "clocks": (
        "import json, os, subprocess, sys, time, uuid\n"
        "from datetime import datetime, timezone\n"
        "CHILD = 'import time; print(time.time(), time.monotonic())'\n"
        "def handler(event, context):\n"
        "    child = subprocess.check_output([sys.executable, '-c', CHILD]).split()\n"
        "    return {\n"
        "        'wall': {\n"
        "            'time': time.time(),\n"
        "            'time_ns': time.time_ns() / 1e9,\n"
        "            'datetime': datetime.now(timezone.utc).timestamp(),\n"
        "            'child': float(child[0]),\n"
        "            'program': float(subprocess.check_output(['date', '+%s.%N'])),\n"
        "            'uuid': [(uuid.uuid1().time - 0x01B21DD213814000) / 1e7 for _ in 'abc'][0],\n"
        "        },\n"
        "        'monotonic': [time.monotonic(), float(child[1])],\n"
        "        'left': context.get_remaining_time_in_millis(),\n"
        "        'preloaded': os.environ.get('LD_PRELOAD'),\n"
        "        'faketime': [name for name in os.environ if 'FAKE' in name],\n"
        "        'pid': os.getpid(),\n"
        "    }\n"
    ),
    "lists_tables": (
        "import boto3, time\n"
        "client = boto3.client('dynamodb')\n"
        "signed = []\n"
        "def note(request, **kwargs):\n"
        "    signed.append(str(request.headers['X-Amz-Date'], 'ascii'))\n"
        "client.meta.events.register('before-send.dynamodb', note)\n"
        "def handler(event, context):\n"
        "    signed.clear()\n"
        "    status = client.list_tables()['ResponseMetadata']['HTTPStatusCode']\n"
        "    hour = time.strftime('%Y%m%dT%H', time.gmtime())\n"
        "    return [status, len(signed), signed[0].startswith(hour)]\n"
    ),
    "variables": "import os\ndef handler(event, context):\n    return dict(os.environ)\n",
}


@pytest.fixture(params=["awslambdaric", "minimal"])
def client(request: pytest.FixtureRequest) -> str:
    """AWS's own runtime client, and the one that stands in where it has no wheel."""
    return str(request.param)


@dataclass(frozen=True, slots=True)
class Lab:
    """One environment under a fault plan, with its evidence."""

    directory: Path
    environment: Environment
    injector: Injector

    async def run(self, number: int, *, receive: int = 1) -> Invocation:
        """Invocation ``number`` on message ``number``, as the mapping would start it."""
        self.injector.begin(number, number, receive)
        try:
            return await self.environment.invoke(EVENT, number)
        finally:
            self.injector.end(number)

    def rows(self, table: str) -> list[dict[str, Any]]:
        lines = (self.directory / "evidence" / f"{table}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def fired(self) -> list[tuple[str, int, int, int]]:
        """Name, invocation, message and receive of each fault."""
        return [
            (row["name"], row["invocation_id"], row["message_no"], row["receive"])
            for row in self.rows("faults")
        ]

    async def pids(self) -> list[int]:
        """The handler's process and what it forked, once it has."""
        path = self.directory / "pids"
        await until(path.exists)
        return [int(pid) for pid in path.read_text().split()]

    def size(self, name: str) -> int:
        path = self.directory / name
        return path.stat().st_size if path.exists() else 0


def write_handler(directory: Path, name: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.py").write_text(HANDLERS[name])


@asynccontextmanager
async def lab(
    directory: Path,
    name: str,
    client: str,
    *rules: FaultRule,
    timeout_s: float = 60.0,
    upstream: str = "http://127.0.0.1:9",
    variables: Mapping[str, str] | None = None,
) -> AsyncIterator[Lab]:
    """One opened environment for ``name.handler`` under these rules."""
    write_handler(directory, name)
    clock = HostClock()
    recorder = Recorder(directory / "evidence")
    injector = Injector(FaultPlan(rules), recorder, clock)
    gateway = Gateway(upstream, clock, recorder, (), None, injector)
    given = {"OUT": str(directory), **(variables or {})}
    spec = HandlerSpec(directory, f"{name}.handler", timeout_s, "us-east-1", given, client)
    async with Processes() as processes:
        environment = Environment(
            1,
            spec,
            directory=directory,
            processes=processes,
            gateway=gateway,
            recorder=recorder,
            clock=clock,
            injector=injector,
        )
        try:
            await environment.open()
            yield Lab(directory, environment, injector)
        finally:
            await environment.close()
            await gateway.close()
            recorder.close()


def states(pid: int) -> set[str]:
    """The kernel's letters for a process's threads: R or S at work, T stopped; none: gone."""
    letters = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            letters.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return letters - {"Z"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the kernel sends no event
            await asyncio.sleep(0.002)


def names_in(directory: Path, pattern: str) -> list[str]:
    return [path.name for path in directory.glob(pattern)]


async def until_gone(*pids: int) -> None:
    await until(lambda: not any(states(pid) for pid in pids))


# --- killed -------------------------------------------------------------------------------


async def test_a_kill_in_mid_run_is_a_crash_at_once(tmp_path: Path, client: str) -> None:
    async with lab(tmp_path, "hangs", client) as one:
        running = asyncio.create_task(one.run(1))
        pids = await one.pids()
        await one.environment.kill()
        async with asyncio.timeout(10):  # the function's own timeout is a minute away
            ended = await running
        await until_gone(*pids)
        (tmp_path / "pids").unlink()
        again = asyncio.create_task(one.run(2))
        assert set(await one.pids()).isdisjoint(pids)
        await one.environment.kill()
        second = await again
    assert (ended.outcome, ended.error_type) == (Outcome.CRASHED, "Runtime.ExitError")
    assert "signal 9" in (ended.error_message or "")
    assert (second.outcome, second.cold) == (Outcome.CRASHED, True)


async def test_a_kill_between_two_events_costs_no_invocation(tmp_path: Path, client: str) -> None:
    async with lab(tmp_path, "counts", client) as one:
        await one.run(1)
        await one.environment.kill()
        await one.environment.prepare()
        ended = await one.run(2)
    assert (ended.outcome, ended.response, ended.cold) == (Outcome.RETURNED, "1", True)


@pytest.mark.parametrize("name", ["answers", "raises"])
async def test_crash_before_answer(tmp_path: Path, client: str, name: str) -> None:
    rule = FaultRule(FaultName.CRASH_BEFORE_ANSWER, message=2)
    async with lab(tmp_path, name, client, rule) as one:
        first = await one.run(1)
        (tmp_path / "pids").unlink()
        second = await one.run(2, receive=3)
        await until_gone(*await one.pids())
        third = await one.run(3)
        answer = Outcome.RETURNED if name == "answers" else Outcome.RAISED
        assert [each.outcome for each in (first, second, third)] == [
            answer,
            Outcome.CRASHED,
            answer,
        ]
        assert [each.cold for each in (first, second, third)] == [True, False, True]
        assert second.response is None, "its answer does not count"
        assert second.error_type == "Runtime.ExitError"
        assert one.fired() == [("crash-before-answer", 2, 2, 3)]
        last = {row["invocation_id"]: row for row in one.rows("invocations")}[2]
        assert (last["outcome"], last["response"]) == ("crashed", None)


async def test_without_an_answer_there_is_nothing_to_crash_before(
    tmp_path: Path, client: str
) -> None:
    rules = FaultRule(FaultName.CRASH_BEFORE_ANSWER), FaultRule(FaultName.FREEZE)
    async with lab(tmp_path, "hangs", client, *rules, timeout_s=0.3) as one:
        ended = await one.run(1)
        assert ended.outcome is Outcome.TIMED_OUT
        assert one.fired() == []
        assert not one.injector.opportunities


# --- cold start ---------------------------------------------------------------------------


async def test_cold_start(tmp_path: Path, client: str) -> None:
    rule = FaultRule(FaultName.COLD_START, message=3)
    async with lab(tmp_path, "counts", client, rule) as one:
        ended = [await one.run(number) for number in (1, 2, 3, 4)]
        assert [each.response for each in ended] == ["1", "2", "1", "2"], "globals start anew"
        assert [each.cold for each in ended] == [True, False, True, False]
        assert one.fired() == [("cold-start", 3, 3, 1)]
        cold = [row["cold"] for row in one.rows("invocations") if row["outcome"] is None]
        assert cold == [True, False, True, False]


# --- freeze -------------------------------------------------------------------------------


def freeze(seconds: float, **filters: Any) -> FaultRule:
    return FaultRule(FaultName.FREEZE, seconds=(seconds, seconds), **filters)


async def test_a_frozen_process_stands_still_until_its_next_event(
    tmp_path: Path, client: str
) -> None:
    async with (
        lab(tmp_path / "other", "ticks", client) as other,
        lab(tmp_path / "one", "ticks", client, freeze(600, message=1)) as one,
    ):
        first = await one.run(1)
        pids = json.loads(first.response or "")
        await until(lambda: [states(pid) for pid in pids] == [{"T"}, {"T"}])
        still = one.size("thread"), one.size("forked")
        await other.run(1)
        await until(lambda: min(other.size("thread"), other.size("forked")) > 100)
        assert (one.size("thread"), one.size("forked")) == still

        async with asyncio.timeout(10):
            await one.environment.prepare()  # a frozen process counts as ready for work
        assert [states(pid) for pid in pids] == [{"T"}, {"T"}]
        second = await one.run(2)
        assert json.loads(second.response or "") == pids
        assert (second.outcome, second.cold) == (Outcome.RETURNED, False)
        size = one.size("thread"), one.size("forked")
        await until(lambda: one.size("thread") > size[0] and one.size("forked") > size[1])
        assert first.outcome is Outcome.RETURNED
        assert one.fired() == [("freeze", 1, 1, 1)]
        assert one.rows("faults")[0]["duration_ns"] == 600_000_000_000


async def test_a_frozen_process_thaws_in_time(tmp_path: Path, client: str) -> None:
    async with lab(tmp_path, "ticks", client, freeze(0.2, message=1)) as one:
        pids = json.loads((await one.run(1)).response or "")
        still = one.size("thread")
        await until(lambda: one.size("thread") > still + 20)
        assert not any("T" in states(pid) for pid in pids)
        second = await one.run(2)
        assert (json.loads(second.response or ""), second.cold) == (pids, False)


async def test_a_frozen_process_can_be_replaced(tmp_path: Path, client: str) -> None:
    cold_start = FaultRule(FaultName.COLD_START, message=2)
    async with lab(tmp_path, "ticks", client, freeze(600), cold_start) as one:
        pids = json.loads((await one.run(1)).response or "")
        second = await one.run(2)
        await until_gone(*pids)
        assert (second.outcome, second.cold) == (Outcome.RETURNED, True)
        assert [name for name, *_ in one.fired()] == ["freeze", "cold-start", "freeze"]


async def test_no_frozen_process_is_left_behind(tmp_path: Path, client: str) -> None:
    async with lab(tmp_path, "ticks", client, freeze(600)) as one:
        pids = json.loads((await one.run(1)).response or "")
        await until(lambda: [states(pid) for pid in pids] == [{"T"}, {"T"}])
    await until_gone(*pids)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from consumer.processes import BoundedLog, Processes
async def main():
    async with Processes() as processes:
        log = BoundedLog(Path(os.devnull))
        code = "import os, time; os.fork(); time.sleep(600)"
        argv = [sys.executable, "-c", code]
        child = await processes.start(argv, env={}, cwd=Path("/"), log=log)
        processes.signal(child, signal.SIGSTOP)
        print(child.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_the_watchdog_ends_what_a_killed_tester_had_stopped() -> None:
    tester = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, stdout=subprocess.PIPE
    )
    try:
        assert tester.stdout is not None
        pid = int(await tester.stdout.readline())
        await until(lambda: states(pid) == {"T"})
    finally:
        tester.kill()
        await tester.wait()
    await until_gone(pid)


# --- clock --------------------------------------------------------------------------------

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="a library is loaded before the handler: Linux only"
)


def clock_rule(seconds: float = 3600.0, **filters: Any) -> FaultRule:
    return FaultRule(FaultName.CLOCK, seconds=(seconds, seconds), **filters)


@linux_only
async def test_the_handlers_clock_is_ahead_and_nothing_else(tmp_path: Path, client: str) -> None:
    host = HostClock()
    async with lab(tmp_path, "clocks", client, clock_rule(), timeout_s=60) as one:
        runs = []
        for number, receive, ahead in ((1, 1, 0.0), (2, 2, 3600.0), (3, 1, 0.0)):
            recorded, wall, monotonic = host.now_ns(), time.time(), time.monotonic()
            ended = await one.run(number, receive=receive)
            seen = json.loads(ended.response or str(ended.error_message))
            runs.append(seen)
            assert {
                name: wall <= value - ahead <= time.time() for name, value in seen["wall"].items()
            } == dict.fromkeys(seen["wall"], True)
            assert all(monotonic <= value <= time.monotonic() for value in seen["monotonic"])
            assert 0 < seen["left"] <= 60_000
            assert ended.ended_at is not None
            assert recorded <= ended.started_at <= ended.ended_at <= host.now_ns()
        assert len({seen["pid"] for seen in runs}) == 1, "one process, its clock moved twice"
        assert one.fired() == [("clock", 2, 2, 2)], "redeliveries only, unless told otherwise"
    assert names_in(Path("/dev/shm"), f"*faketime*_{runs[0]['pid']}") == []
    assert names_in(tmp_path, "clock-*") == []


@linux_only
async def test_a_new_process_meets_the_moved_clock_too(tmp_path: Path, client: str) -> None:
    rules = clock_rule(0.5, receive=1), FaultRule(FaultName.COLD_START)
    async with lab(tmp_path, "clocks", client, *rules) as one:
        wall = time.time()
        seen = json.loads((await one.run(1)).response or "")
        assert wall + 0.5 <= seen["wall"]["time"] <= time.time() + 0.5
        assert [name for name, *_ in one.fired()] == ["cold-start", "clock"]


@linux_only
async def test_calls_work_with_a_moved_clock(
    tmp_path: Path, client: str, emulator_url: str
) -> None:
    host = HostClock()
    async with lab(tmp_path, "lists_tables", client, clock_rule(), upstream=emulator_url) as one:
        started = host.now_ns()
        answers = [(await one.run(number, receive=number)).response for number in (1, 2)]
        ended = host.now_ns()
        assert [json.loads(answer or "") for answer in answers] == [[200, 1, True]] * 2
        calls = [row for row in one.rows("calls") if row["answered_at"] is not None]
        assert [row["invocation_id"] for row in calls] == [1, 2]
        assert all(started <= row["sent_at"] <= row["answered_at"] <= ended for row in calls)


async def test_other_runs_preload_nothing(tmp_path: Path, client: str) -> None:
    async with lab(tmp_path, "clocks", client, FaultRule(FaultName.COLD_START)) as one:
        seen = json.loads((await one.run(1)).response or "")
    assert (seen["preloaded"], seen["faketime"]) == (None, [])


@linux_only
async def test_the_users_own_preloads_stay(tmp_path: Path, client: str) -> None:
    given = {"LD_PRELOAD": "libm.so.6", "LD_LIBRARY_PATH": "/opt/mine"}
    async with lab(tmp_path, "variables", client, clock_rule(), variables=given) as one:
        seen = json.loads((await one.run(1)).response or "")
    assert seen["LD_PRELOAD"] == "libfaketime.so.1:libm.so.6"
    assert seen["LD_LIBRARY_PATH"].endswith(":/opt/mine")


async def test_a_clock_that_cannot_be_moved_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> str:
        with pytest.raises((UsageError, HandlerError)) as raised:
            async with lab(tmp_path, "counts", "minimal", clock_rule()):
                pass
        return f"{type(raised.value).__name__}: {raised.value}"

    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "darwin")
        assert (await refused()).startswith("UsageError: faults: clock works on Linux only")
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        assert "pip install 'onceproof[clock]'" in await refused()
    with monkeypatch.context() as patched:
        foreign = tmp_path / "libfaketime.so.1"
        foreign.write_bytes(b"\x7fELF of another processor")
        patched.setattr(handler_clock, "library", lambda: foreign)
        said = await refused()
    assert said.startswith("HandlerError: faults: clock has no effect")
    assert "--no-binary libfaketime" in said


# --- effects ------------------------------------------------------------------------------


async def test_http_effects_get_the_urls_of_this_environments_door(
    tmp_path: Path, client: str
) -> None:
    given = {"CHARGES": "{http:charges}", "BOTH": "{http:a}/x {http:b-c} {other} {table:t}"}
    async with lab(tmp_path, "variables", client, variables=given) as one:
        seen = json.loads((await one.run(1)).response or "")
    door = seen["AWS_ENDPOINT_URL"]
    assert seen["CHARGES"] == f"{door}/onceproof-http/charges"
    assert (
        seen["BOTH"] == f"{door}/onceproof-http/a/x {door}/onceproof-http/b-c {{other}} {{table:t}}"
    )
