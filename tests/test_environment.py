"""Environments: real processes on a real runtime client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from analysis.errors import HandlerError
from analysis.schema import Outcome
from consumer.clock import HostClock
from consumer.environment import Environment, HandlerSpec
from consumer.faults import FaultPlan
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.processes import Processes
from consumer.recorder import Recorder
from tests.handlers import write_handlers

EVENT = b'{"Records": [{"body": "x"}]}'


@pytest.fixture(params=["awslambdaric", "minimal"])
def client(request: pytest.FixtureRequest) -> str:
    """AWS's own runtime client, and the one that stands in where it has no wheel."""
    return str(request.param)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return write_handlers(tmp_path / "code")


@asynccontextmanager
async def environment(
    code: Path, name: str, client: str, *, timeout_s: float = 20.0
) -> AsyncIterator[Environment]:
    """One opened environment for ``name.handler``."""
    directory = code.parent / "environments"
    directory.mkdir(exist_ok=True)
    clock = HostClock()
    recorder = Recorder(code.parent / "evidence")
    injector = Injector(FaultPlan(), recorder, clock)
    gateway = Gateway("http://127.0.0.1:9", clock, recorder, (), None, injector)
    spec = HandlerSpec(code, f"{name}.handler", timeout_s, "us-east-1", client=client)
    async with Processes() as processes:
        made = Environment(
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
            await made.open()
            yield made
        finally:
            await made.close()
            await gateway.close()
            recorder.close()


async def test_a_long_error_arrives(code: Path, client: str) -> None:
    async with environment(code, "raises_at_length", client) as one:
        ended = await one.invoke(EVENT, 1)
        again = await one.invoke(EVENT, 2)
    assert (ended.outcome, ended.error_type) == (Outcome.RAISED, "ValueError")
    assert (ended.error_message or "").startswith("word word")
    assert again.outcome is Outcome.RAISED
    assert not again.cold, "the process lives on"


async def test_returns_what_the_handler_returned(code: Path, client: str) -> None:
    async with environment(code, "echo", client) as one:
        ended = await one.invoke(EVENT, 1)
    assert ended.outcome is Outcome.RETURNED
    assert json.loads(ended.response or "") == {"records": 1}
    assert ended.cold


async def test_the_context_is_lambdas(code: Path, client: str) -> None:
    os.environ["TESTER_SECRET"] = "s3cret"
    try:
        async with environment(code, "context", client) as one:
            ended = await one.invoke(EVENT, 1)
    finally:
        del os.environ["TESTER_SECRET"]
    seen = json.loads(ended.response or "")
    assert seen["request_id"] == ended.request_id
    assert seen["arn"] == "arn:aws:lambda:us-east-1:000000000000:function:context-handler"
    assert 0 < seen["left"] <= 20_000
    assert seen["memory"] == "128"
    assert seen["task_root"] == seen["cwd"] == str(code)
    assert seen["secret"] is None, "the tester's own environment must not reach the handler"


async def test_globals_live_until_the_process_is_replaced(code: Path, client: str) -> None:
    async with environment(code, "globals_live", client) as one:
        counts = [(await one.invoke(EVENT, number)).response for number in (1, 2, 3)]
    assert counts == ["1", "2", "3"]


async def test_an_exception_is_reported_with_its_traceback(code: Path, client: str) -> None:
    async with environment(code, "raises", client) as one:
        ended = await one.invoke(EVENT, 1)
        again = await one.invoke(EVENT, 2)
    assert ended.outcome is Outcome.RAISED
    assert ended.error_type == "ValueError"
    assert "no such luck" in (ended.error_message or "")
    assert "raises.py" in (ended.error_message or "")
    assert not again.cold, "an exception does not end the process"


async def test_a_timeout_kills_and_replaces_the_process(code: Path, client: str) -> None:
    async with environment(code, "sleeps", client, timeout_s=0.3) as one:
        first = await one.invoke(EVENT, 1)
        second = await one.invoke(EVENT, 2)
    assert first.outcome is Outcome.TIMED_OUT
    assert first.error_message == "Task timed out after 0.30 seconds"
    assert second.cold, "the process after a timeout is a new one"


async def test_a_dying_process_fails_its_invocation_and_is_replaced(
    code: Path, client: str
) -> None:
    async with environment(code, "exits", client) as one:
        first = await one.invoke(EVENT, 1)
        second = await one.invoke(EVENT, 2)
    assert first.outcome is Outcome.CRASHED
    assert "exit status 7" in (first.error_message or "")
    assert second.cold


async def test_ten_megabytes_of_output_are_bounded_and_counted(code: Path, client: str) -> None:
    async with environment(code, "prints", client) as one:
        ended = await one.invoke(EVENT, 1)
    assert ended.response == '"printed"'
    log = code.parent / "environments" / "environment-1.log"
    assert log.stat().st_size < 1_100_000
    assert "more bytes were not kept" in log.read_text()[-100:]


@pytest.mark.parametrize(
    ("name", "error_type"),
    [("not_json", "Runtime.MarshalError"), ("too_large", "Function.ResponseSizeTooLarge")],
)
async def test_an_unusable_response_fails_the_invocation(
    code: Path, client: str, name: str, error_type: str
) -> None:
    async with environment(code, name, client) as one:
        ended = await one.invoke(EVENT, 1)
    assert ended.outcome is Outcome.RAISED
    assert ended.error_type == error_type


@pytest.mark.parametrize(
    ("name", "response"), [("returns_bytes", "\x00�"), ("returns_none", "null")]
)
async def test_bytes_and_nothing_are_responses(
    code: Path, client: str, name: str, response: str
) -> None:
    async with environment(code, name, client) as one:
        ended = await one.invoke(EVENT, 1)
    assert (ended.outcome, ended.response) == (Outcome.RETURNED, response)


async def test_our_packages_cannot_be_imported_by_accident(code: Path, client: str) -> None:
    async with environment(code, "ours", client) as one:
        assert (await one.invoke(EVENT, 1)).response == "[]"


async def test_the_users_package_of_the_same_name_is_used(code: Path, client: str) -> None:
    (code / "consumer").mkdir()
    (code / "consumer" / "__init__.py").write_text("")
    (code / "consumer" / "gateway.py").write_text("")
    async with environment(code, "ours", client) as one:
        found = json.loads((await one.invoke(EVENT, 1)).response or "")
    assert found == ["consumer", "consumer.gateway"]


async def test_what_a_handler_forked_ends_with_it(code: Path, client: str) -> None:
    async with environment(code, "forks", client) as one:
        pid = int((await one.invoke(EVENT, 1)).response or "")
        assert _is_running(pid)
    await _until(lambda: not _is_running(pid))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken_import", "No module named 'no_such_library'"),
        ("broken_syntax", "expected ':'"),
        ("no_such_module", "No module named 'no_such_module'"),
        ("exits_at_import", "exit status 3"),
    ],
)
async def test_a_handler_that_does_not_start_is_told_with_its_own_words(
    code: Path, client: str, name: str, said: str
) -> None:
    with pytest.raises(HandlerError) as raised:
        async with environment(code, name, client):
            pass
    assert said in str(raised.value)
    assert "--handler" in str(raised.value), "the message names the setting"


async def test_a_missing_function_is_told(code: Path, client: str) -> None:
    (code / "echo.py").write_text("def another(event, context): pass\n")
    with pytest.raises(HandlerError, match="Handler 'handler' missing on module 'echo'"):
        async with environment(code, "echo", client):
            pass


async def test_a_handler_that_is_not_callable_fails_each_invocation(
    code: Path, client: str
) -> None:
    async with environment(code, "not_callable", client) as one:
        ended = await one.invoke(EVENT, 1)
    assert ended.outcome is Outcome.RAISED
    assert "not callable" in (ended.error_message or "")


def _is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the kernel sends no event
            await asyncio.sleep(0.01)
