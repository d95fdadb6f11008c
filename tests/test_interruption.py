"""Ctrl-C, SIGTERM and SIGKILL: nothing is left running, and what was recorded is judged."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

import consumer
from analysis.schema import RunStatus
from tests.cli import (
    Run,
    analysis,
    end_of,
    is_running,
    loadtest,
    names_at,
    only_run,
    processes_of,
    read_until,
    started,
    until,
    variable_of,
)

CONFIG = """
[queue]
visibility_timeout = 60
[load]
orders = 500
copies = 3
rate = 60
conflicts = 0
poison = 0
concurrency = 2
[expect]
contended_orders = 0
[handler]
timeout = 60
"""
"""Far more messages than are sent before the interruption."""


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "loadtest.toml").write_text(CONFIG)
    (tmp_path / "src").mkdir()
    return tmp_path


def until_recorded(cwd: Path, table: str, rows: int) -> None:
    until(lambda: any((cwd / "runs").glob("*")), "a run")
    until(lambda: len(only_run(cwd).lines(table)) >= rows, f"{rows} rows of {table}")


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def assert_nothing_left(cwd: Path, url: str) -> None:
    assert processes_of(cwd) == []
    assert only_run(cwd).info.run_id not in names_at(url)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_sending_then_drains_and_judges(
    number: int, cwd: Path, emulator_url: str
) -> None:
    with started("run", "--endpoint-url", emulator_url, cwd=cwd) as process:
        until_recorded(cwd, "acks", 6)
        process.send_signal(number)
        end = end_of(process)
    run = only_run(cwd)
    assert (end.code, end.err) == (3, "")
    assert "stopping: no more messages are sent" in end.said
    assert "INCONCLUSIVE drained: interrupted" in end.said
    assert "messages of the plan were never sent" in end.said
    assert run.info.status is RunStatus.INTERRUPTED
    assert (run.path / "report.html").exists()
    counts = run.verdict.counts
    assert 6 <= counts.deleted == counts.accepted_messages < counts.messages, (
        "what was sent settled"
    )
    assert counts.stored_items >= 2, "the final items were read"
    assert run.findings() == {}
    assert_nothing_left(cwd, emulator_url)


def test_a_second_signal_stops_what_is_under_way(cwd: Path, emulator_url: str) -> None:
    (cwd / "src" / "slow.py").write_text(
        "import time\ndef handler(event, context):\n    time.sleep(50)\n"
    )
    arguments = ["--code", "src", "--handler", "slow.handler", "--endpoint-url", emulator_url]
    with started("run", *arguments, cwd=cwd) as process:
        until_recorded(cwd, "invocations", 2)
        process.send_signal(signal.SIGINT)
        read_until(process, "Ctrl-C again stops now")
        process.send_signal(signal.SIGINT)
        end = end_of(process)
    run = only_run(cwd)
    assert (end.code, end.err) == (3, "")
    assert run.info.status is RunStatus.INTERRUPTED
    last_start, outcomes = (
        run.rows("SELECT max(started_at) AS at FROM invocations")[0]["at"],
        run.rows("SELECT outcome FROM invocations"),
    )
    assert {row["outcome"] for row in outcomes} == {None}, "the handler had not returned"
    assert run.info.ended_at is not None
    assert run.info.ended_at - last_start < 10_000_000_000, "the time of grace was not used up"
    assert_nothing_left(cwd, emulator_url)


def test_a_signal_while_the_embedded_aws_starts(cwd: Path) -> None:
    with started("run", cwd=cwd) as process:
        read_until(process, "starting the embedded AWS")
        process.send_signal(signal.SIGINT)
        end = end_of(process)
    assert (end.code, end.err) == (3, "")
    assert "INCONCLUSIVE" in end.out
    assert "interrupted" in end.out
    assert only_run(cwd).info.status is RunStatus.INTERRUPTED
    assert processes_of(cwd) == []


def test_signals_while_the_handler_starts(cwd: Path, emulator_url: str) -> None:
    (cwd / "src" / "slow.py").write_text("import time\ntime.sleep(50)\n")
    arguments = ["--code", "src", "--handler", "slow.handler", "--endpoint-url", emulator_url]
    with started("run", *arguments, cwd=cwd) as process:
        read_until(process, "starting 2 environments")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        end = end_of(process)
    assert (end.code, end.err) == (3, "")
    assert only_run(cwd).info.status is RunStatus.INTERRUPTED
    assert_nothing_left(cwd, emulator_url)


def test_a_signal_while_judging(cwd: Path, emulator_url: str) -> None:
    arguments = ["--orders", "4", "--rate", "max", "--endpoint-url", emulator_url]
    with started("run", *arguments, cwd=cwd) as process:
        read_until(process, "judging")
        process.send_signal(signal.SIGINT)
        end = end_of(process)
    assert (end.code, end.err) == (3, "interrupted\n")
    run = only_run(cwd)
    assert run.info.status is RunStatus.FINISHED
    assert loadtest("report", run.path, cwd=cwd).code in (0, 3)
    assert run.verdict.counts.stored_items == 4
    assert_nothing_left(cwd, emulator_url)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_lab_leaves_nothing(
    cwd: Path, emulator_url: str, number: signal.Signals
) -> None:
    with started("lab", "--endpoint-url", emulator_url, cwd=cwd) as process:
        until_recorded(cwd, "invocations", 1)
        process.send_signal(number)
        end = end_of(process)
    assert (end.code, end.err.strip()) == (3, "interrupted")
    assert_nothing_left(cwd, emulator_url)


def _stored(run: Run) -> int:
    return sum(row["decision"] == "accepted" for row in run.lines("call_items"))


def _overwritten(run: Run) -> int:
    return sum(row["before"] not in (None, "{}") for row in run.lines("call_items"))


@pytest.mark.parametrize(
    ("handler", "verdict", "code"),
    [("app.handler", "INCONCLUSIVE", 3), ("planted/unconditional.handler", "FAIL", 1)],
)
def test_a_kill_leaves_no_process_and_evidence_to_judge(
    handler: str, verdict: str, code: int, cwd: Path
) -> None:
    home = Path(consumer.__file__).parent
    with started("run", "--code", home, "--handler", handler, cwd=cwd) as process:
        seen = _stored if code == 3 else _overwritten
        until_recorded(cwd, "acks", 6)
        until(lambda: seen(only_run(cwd)) >= 2, "writes")
        children = processes_of(cwd)
        ports = {port for pid in children if (port := variable_of(pid, "GATEWAY_PORT"))}
        assert len(children) == 1 + 1 + 1 + 2, "tester, watchdog, emulator, two environments"
        process.kill()
        end_of(process)
    until(lambda: not any(map(is_running, children)), "the end of every child")
    assert processes_of(cwd) == []
    until(lambda: refuses(int(*ports)), "a port that is free")

    run = only_run(cwd)
    assert run.info.status is RunStatus.RUNNING
    for path in (run.path / "evidence").iterdir():
        whole = path.read_bytes().rpartition(b"\n")[0]
        for line in whole.splitlines():
            json.loads(line)
    end = analysis(run.path)
    assert (end.code, end.err) == (code, "")
    assert end.out.startswith(f"{verdict} {run.info.run_id}")
    assert "still running, or killed" in end.out
    assert set(run.findings()) <= {"overwrite", "double-accept"}
    assert loadtest("report", run.path, cwd=cwd).code == code
    assert (run.path / "report.html").exists()


def test_a_flood_of_a_test_ends_when_the_test_is_killed(cwd: Path, emulator_url: str) -> None:
    (cwd / "asks.py").write_text(
        f"import onceproof\nonceproof.flood(endpoint_url={emulator_url!r})"
    )
    root = str(Path(consumer.__file__).parent.parent)
    with started(cwd=cwd, module="asks", env={"PYTHONPATH": root}) as process:
        until_recorded(cwd, "acks", 6)
        process.kill()
        process.wait()
        until(lambda: not processes_of(cwd), "the end of all processes")
    run = only_run(cwd)
    assert run.info.status is RunStatus.INTERRUPTED
    assert run.verdict.verdict == "INCONCLUSIVE"
    assert_nothing_left(cwd, emulator_url)
