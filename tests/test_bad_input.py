"""What goes wrong at a user's: a message that names cause and cure, an exit code, no traceback."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import resource
import socket
import venv
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
import pytest

from analysis.errors import RecordingError
from analysis.schema import Message, MessageKind, Row, RunStatus
from consumer.clock import HostClock
from consumer.faults import FaultPlan
from consumer.injector import Injector
from consumer.ledger import Ledger
from consumer.recorder import Recorder
from loadtest.driver import Driver, Sent
from loadtest.plan import Plan, PlannedMessage
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint
from tests.cli import (
    Ended,
    Reply,
    analysis,
    end_of,
    endpoint,
    forward,
    loadtest,
    loadtest_apart,
    names_at,
    only_run,
    processes_of,
    started,
    until,
)
from tests.handlers import write_handlers

QUICK = """
[queue]
visibility_timeout = 1
max_receive_count = 1
[load]
orders = 2
copies = 2
conflicts = 0
poison = 0
concurrency = 2
[expect]
contended_orders = 0
[handler]
timeout = 1
"""


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "loadtest.toml").write_text(QUICK)
    write_handlers(tmp_path / "src")
    return tmp_path


def assert_told(end: Ended, code: int, *words: str) -> None:
    """One message with these words, and nothing that only a programmer understands."""
    assert end.code == code, end.said
    assert "error: " in end.err
    for word in words:
        assert word in end.said
    assert "loadtest/" not in end.err.replace("tests/", ""), "no traceback of the tester's own"


# --- handlers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (
            "broken_import.handler",
            ["Runtime.ImportModuleError", "No module named 'no_such_library'"],
        ),
        ("broken_syntax.handler", ["Runtime.UserCodeSyntaxError", "def handler(event, context)"]),
        ("no_such_module.handler", ["No module named 'no_such_module'"]),
        ("echo.no_such_function", ["Handler 'no_such_function' missing on module 'echo'"]),
        ("raises_at_import.handler", ["KeyError: 'NO_SUCH_VARIABLE'", "raises_at_import.py"]),
        ("exits_at_import.handler", ["exit status 3", "about to go"]),
    ],
)
def test_a_handler_that_does_not_start(
    handler: str, words: list[str], cwd: Path, emulator_url: str
) -> None:
    (cwd / "src" / "raises_at_import.py").write_text("import os\nos.environ['NO_SUCH_VARIABLE']\n")
    arguments = ["--code", "src", "--handler", handler, "--endpoint-url", emulator_url]
    end = loadtest("run", *arguments, cwd=cwd)
    assert_told(end, 4, handler, "could not be started", "--handler", *words)
    info = only_run(cwd).info
    assert info.status is RunStatus.FAILED
    assert words[0] in (info.error or "")
    assert f"loadtest report runs/{only_run(cwd).path.name}" in end.said
    assert info.run_id not in names_at(emulator_url)
    assert processes_of(cwd) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--code", "nowhere"], ["--code: no such directory", "nowhere"]),
        (["--code", "src", "--handler", "app"], ["--handler", "module.function", '"app"']),
        (["--code", "src"], ["handler.handler: is missing: module.function"]),
        (["--orders", "0"], ["--orders: must be at least 1 (got 0)"]),
        (["--rate", "fast"], ["--rate", '"max" or a number', '"fast"']),
        (["--conflicts", "nan"], ["--conflicts", "must be"]),
        (["--config", "no.toml"], ["no.toml: cannot be read: No such file"]),
        (["--endpoint-url", "127.0.0.1:4566"], ["--endpoint-url", "http://127.0.0.1:4566"]),
        (["--endpoint-url", "http://127.0.0.1:x"], ["--endpoint-url", "is no endpoint"]),
        (["--endpoint-url", "http://127.0.0.1:70000"], ["--endpoint-url", "is no endpoint"]),
        (["--endpoint-url", "http://[::1"], ["--endpoint-url", "is no endpoint"]),
        (["--endpoint-url", "https://sqs.eu-west-1.amazonaws.com"], ["is AWS itself"]),
        (["--endpoint-url", "https://SQS.eu-west-1.AmazonAWS.com."], ["is AWS itself"]),
        (["--out", "a_file"], ["--out", "Not a directory", "another folder"]),
    ],
)
def test_a_wrong_setting_is_named(arguments: list[str], words: list[str], cwd: Path) -> None:
    (cwd / "a_file").touch()
    assert_told(loadtest("run", *arguments, cwd=cwd), 2, *words)
    assert not (cwd / "runs").exists(), "nothing was begun"


def test_an_unknown_flag_and_a_wrong_number(cwd: Path) -> None:
    for arguments, word in ((["--no-such"], "No such option"), (["--orders", "x"], "'--orders'")):
        end = loadtest("run", *arguments, cwd=cwd)
        assert (end.code, end.out) == (2, "")
        assert word in end.said


def test_all_that_is_wrong_in_a_file_is_told_at_once(cwd: Path) -> None:
    (cwd / "loadtest.toml").write_text(
        """
colour = "red"
[handler]
timeout = "three"
environment = { AWS_ACCESS_KEY_ID = "mine", TABLE = "{table:oders}" }
[queue]
batch_size = 11
visability_timeout = 3
[[table]]
name = "orders"
key = 7
[load]
orders = -5
rate = 0
conflicts = inf
concurrency = true
"""
    )
    end = loadtest("run", cwd=cwd)
    assert end.code == 2
    lines = end.err.removeprefix("error: ").splitlines()
    assert all(line.startswith("loadtest.toml: ") for line in lines)
    for words in (
        "colour: is not a known setting",
        'handler.timeout: must be a number (got "three")',
        "handler.environment.AWS_ACCESS_KEY_ID: is reserved by Lambda",
        "queue.batch_size: must be at most 10, or with a batching_window",
        "queue.visability_timeout: is not a known setting (did you mean visibility_timeout?)",
        "table[0].key: must be text (got 7)",
        "load.orders: must be at least 1 (got -5)",
        'load.rate: must be "max" or a number',
        "load.conflicts: must be",
        "load.concurrency: must be a whole number (got true)",
    ):
        assert sum(words in line for line in lines) == 1, words


@pytest.mark.parametrize("command", ["report", "analysis"])
def test_a_directory_that_is_no_run(command: str, cwd: Path) -> None:
    end = loadtest("report", "src", cwd=cwd) if command == "report" else analysis(cwd / "src")
    assert end.code == 2
    assert "run.json" in end.said
    assert "Traceback" not in end.err


# --- handlers that run and misbehave ----------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "outcome", "error", "finding"),
    [
        ("sleeps", "timed_out", "Sandbox.Timedout", "dead-lettered-order"),
        ("exits", "crashed", "Runtime.ExitError", "dead-lettered-order"),
        ("not_json", "raised", "Runtime.MarshalError", "dead-lettered-order"),
        ("not_callable", "raised", "TypeError", "dead-lettered-order"),
        ("prints", "returned", None, "lost-order"),
        ("returns_bytes", "returned", None, "lost-order"),
    ],
)
def test_a_misbehaving_handler_gets_a_verdict(
    handler: str, outcome: str, error: str | None, finding: str, cwd: Path, emulator_url: str
) -> None:
    # An environment for each message: none grows too old while it waits for another.
    arguments = ["--code", "src", "--handler", f"{handler}.handler", "--concurrency", "4"]
    end = loadtest("run", *arguments, "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 1, end.said
    assert "FAIL" in end.out
    assert end.err == ""
    assert run.findings() == {finding: 2}
    invocations = run.rows("SELECT outcome, error_type FROM invocations")
    assert Counter((row["outcome"], row["error_type"]) for row in invocations) == {
        (outcome, error): len(invocations)
    }
    assert len(invocations) <= 4, "a message is received once"
    assert run.info.status is RunStatus.FINISHED
    for log in (run.path / "environments").iterdir():
        assert log.stat().st_size < 1_100_000
    assert processes_of(cwd) == []


def test_bytes_do_not_acknowledge_a_batch(cwd: Path, emulator_url: str) -> None:
    config = QUICK.replace("[queue]", "[queue]\nreport_batch_item_failures = true")
    (cwd / "loadtest.toml").write_text(config)
    arguments = ["--code", "src", "--handler", "returns_bytes.handler"]
    end = loadtest("run", *arguments, "--endpoint-url", emulator_url, cwd=cwd)
    assert (end.code, end.err) == (1, "")
    assert only_run(cwd).findings() == {"dead-lettered-order": 2}


# --- endpoints --------------------------------------------------------------------------


def test_nobody_listens(cwd: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert_told(
        loadtest("run", "--endpoint-url", url, cwd=cwd),
        4,
        f"{url} could not be reached",
        "Is it running",
        "--endpoint-url",
    )


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply.error(400, "UnrecognizedClientException"), ["refused the credentials"]),
        (Reply.error(403, "InvalidSignatureException"), ["AWS_SECRET_ACCESS_KEY"]),
        (Reply.error(400, "ExpiredTokenException"), ["AWS_SESSION_TOKEN"]),
        (Reply.error(500, "InternalServerError"), ["failed with HTTP 500", "its own log"]),
        (Reply(503, b"<h1>503</h1>", "text/html"), ["failed with HTTP 503", "its own log"]),
        (Reply(200, b"<html>hello</html>", "text/html"), ["something that is not AWS"]),
        (Reply(200, b"{}"), ["something that is not AWS", "embedded"]),
        (Reply(200, b'{"TableNames": 7'), ["something that is not AWS"]),
        (Reply(404, b"<html>no</html>", "text/html"), ["refused", "404"]),
    ],
)
def test_an_endpoint_that_cannot_be_used(reply: Reply, words: list[str], cwd: Path) -> None:
    with endpoint(lambda *_: reply) as url:
        assert_told(loadtest("run", "--endpoint-url", url, cwd=cwd), 4, url, *words)
    assert only_run(cwd).info.status is RunStatus.FAILED


@pytest.mark.timeout(60, method="thread")  # nothing gentler ends an event loop that waits
def test_an_endpoint_that_never_answers(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.targets.ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        end = loadtest("run", "--endpoint-url", url, cwd=cwd)
    assert_told(end, 4, url, "did not answer within 0.2 s", "its own log")


def test_an_endpoint_that_cannot_decide_a_race(cwd: Path, emulator_url: str) -> None:
    def unconditional(operation: str, body: dict[str, Any]) -> Reply:
        if operation == "PutItem":
            body.pop("ConditionExpression", None)
        return forward(emulator_url, operation, body)

    with endpoint(unconditional) as url:
        end = loadtest("run", "--endpoint-url", url, cwd=cwd)
    words = "16 of 16 simultaneous conditional puts of one key won"
    assert_told(end, 4, url, "does not behave as DynamoDB", words, "another endpoint")
    assert only_run(cwd).info.run_id not in names_at(emulator_url)


_KILLS_THE_EMULATOR = """
import os, signal
from pathlib import Path


def handler(event, context):
    for entry in Path("/proc").glob("[0-9]*"):
        parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        if parent == os.getppid() and b"ministack" in (entry / "cmdline").read_bytes():
            os.kill(int(entry.name), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the process in /proc")
def test_an_embedded_aws_that_dies_is_named(cwd: Path) -> None:
    (cwd / "src" / "kills.py").write_text(_KILLS_THE_EMULATOR)
    # In a process of its own, whose only emulator is the run's.
    end = loadtest_apart(
        "run", "--code", "src", "--handler", "kills.handler", "--orders", "5", cwd=cwd
    )
    assert_told(end, 4, "The embedded AWS had ended", "signal 9", "can still be judged")


def test_an_endpoint_that_breaks_down_in_mid_run(cwd: Path, emulator_url: str) -> None:
    broken: list[str] = []

    def breaks_down(operation: str, body: dict[str, Any]) -> Reply:
        if broken:
            return Reply.error(500, "InternalFailure")
        if operation == "DeleteMessageBatch":
            broken.append(operation)
        return forward(emulator_url, operation, body)

    with endpoint(breaks_down) as url:
        end = loadtest("run", "--quiet", "--endpoint-url", url, cwd=cwd)
    run = only_run(cwd)
    assert_told(end, 4, "5 times in a row", "InternalFailure", "can still be judged")
    assert "warning: not everything could be removed" in end.said, "even when it must be quiet"
    assert run.info.status is RunStatus.FAILED
    assert all(run.info.run_id in table.name for table in run.info.tables if table.role == "orders")
    assert loadtest("report", run.path, cwd=cwd).code == 3
    assert run.verdict.counts.accepted_writes == 2
    # What the broken endpoint kept is still there, under the run's name.
    common: dict[str, Any] = {"endpoint_url": emulator_url, "region_name": "us-east-1"}
    for name in boto3.client("dynamodb", **common).list_tables()["TableNames"]:
        if run.info.run_id in name:
            boto3.client("dynamodb", **common).delete_table(TableName=name)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"AWS_PROFILE": "no-such"}, "no-such"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_SECRET_ACCESS_KEY": None, "AWS_ACCESS_KEY_ID": None}, "no AWS credentials"),
    ],
)
def test_credentials_that_are_not_there(
    settings: dict[str, str | None], word: str, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    # Never asked: the name is not resolved before there are credentials.
    end = loadtest("run", "--endpoint-url", "http://aws.invalid:4566", cwd=cwd)
    assert_told(end, 4, "http://aws.invalid:4566", word, "AWS_PROFILE")


def test_an_embedded_aws_that_does_not_start(cwd: Path) -> None:
    # A second installation beside this one, with a ministack that is broken.
    venv.create(cwd / "broken", symlinks=True)
    (packages,) = (cwd / "broken").glob("lib/python*/site-packages")
    sound = importlib.util.find_spec("ministack")
    assert sound is not None
    assert sound.origin is not None
    here = str(Path(sound.origin).parents[1])
    (packages / "ministack").mkdir()
    (packages / "ministack" / "__init__.py").write_text("raise RuntimeError('it is broken')\n")
    (packages / "rest.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    python = str(cwd / "broken" / "bin" / "python")
    end = loadtest_apart("run", cwd=cwd, python=python)
    assert_told(end, 4, "the embedded AWS (ministack) did not start", "it is broken")
    assert "--endpoint-url" in end.said
    assert processes_of(cwd) == []


# --- a full disk ------------------------------------------------------------------------


def test_a_disk_that_is_full_in_mid_run(cwd: Path, emulator_url: str) -> None:
    arguments = ["--orders", "200", "--rate", "20", "--endpoint-url", emulator_url]
    with started("run", *arguments, cwd=cwd) as process:
        until(lambda: any((cwd / "runs").glob("*")), "a run")
        until(lambda: only_run(cwd).lines("acks"), "acknowledgements")
        # Every further write to a file fails, as on a full disk.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        end = end_of(process)
    run = only_run(cwd)
    assert_told(end, 4, "could not be written", "File too large", "Free some space")
    assert processes_of(cwd) == []
    assert run.info.run_id not in names_at(emulator_url)
    again = analysis(run.path)
    assert (again.code, again.err) == (3, "")
    assert run.verdict.counts.accepted_writes >= 1


def test_a_disk_that_has_no_room_for_the_report(cwd: Path, emulator_url: str) -> None:
    # 40 blocks of 512 or 1024 bytes: enough for the evidence of four messages, no more.
    wrapper = ("sh", "-c", 'ulimit -f 40; exec "$@"', "sh")
    end = loadtest_apart("run", "--endpoint-url", emulator_url, cwd=cwd, wrapper=wrapper)
    run = only_run(cwd)
    assert_told(
        end, 4, "the run is over", "File too large", f"loadtest report runs/{run.path.name}"
    )
    assert run.info.status is RunStatus.FINISHED
    assert loadtest("report", run.path, cwd=cwd).code == 0
    assert (run.path / "report.html").exists()


async def test_a_disk_that_is_full_when_a_message_is_accepted(tmp_path: Path) -> None:
    class Full(Recorder):
        def write(self, row: Row) -> None:
            if isinstance(row, Message) and row.accepted_at is not None:
                raise RecordingError("no space left")
            super().write(row)

    def accept(operation: str, body: dict[str, Any]) -> Reply:
        entries = [{"Id": entry["Id"], "MessageId": "m"} for entry in body["Entries"]]
        return Reply(200, json.dumps({"Successful": entries}).encode())

    plan = Plan((PlannedMessage(1, "o", MessageKind.ORDER, "body", "{}", 0),))
    recorder = Full(tmp_path)
    with endpoint(accept) as url:
        async with Endpoint(url, credentials=LOCAL_CREDENTIALS, connections=2) as target:
            driver = Driver(
                target.sqs,
                f"{url}/queue",
                plan,
                rate_per_s=None,
                ledger=Ledger("run"),
                recorder=recorder,
                clock=HostClock(),
                sent=Sent(),
                injector=Injector(FaultPlan(), recorder, HostClock()),
            )
            with pytest.raises(RecordingError, match="no space left"):
                await driver.run(asyncio.Event())
    recorder.close()
