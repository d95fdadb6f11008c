"""``loadtest explore`` as a user has it: real processes, the real store, files, exit codes."""

from __future__ import annotations

import json
import re
import signal
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import consumer
import onceproof
from tests.cli import Ended, loadtest, processes_of, read_until, started

PLANTED = Path(consumer.__file__).parent / "planted"
RACY = (PLANTED / "read_then_write.py").read_text()

IDLE = "def handler(event, context): return {}\n"
BY_PROCESS = """
    import json, os, boto3
    table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
    def handler(event, context):
        order = json.loads(event["Records"][0]["body"])
        if not table.get_item(Key={"id": order["id"]}, ConsistentRead=True).get("Item"):
            table.put_item(Item=order | {"process": os.getpid()})
    """
RAISES = """
    import json, os, boto3
    table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
    new = "attribute_not_exists(id)"
    def handler(event, context):
        order = json.loads(event["Records"][0]["body"])
        table.put_item(Item=order, ConditionExpression=new)
    """

BETTER_LATER = """
    import json, os, boto3
    from pathlib import Path
    table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
    seen = Path(__file__).parent / "seen"
    def handler(event, context):
        order = json.loads(event["Records"][0]["body"])
        ids = {order["id"], *(seen.read_text().split() if seen.exists() else ())}
        seen.write_text(" ".join(ids))
        table.put_item(Item=order | ({"quantity": 0} if len(ids) <= MOST else {}))
    """


def better_after(orders: int) -> str:
    """A handler that stores the first so many order ids with a wrong quantity."""
    return BETTER_LATER.replace("MOST", str(orders))


def write_handler(directory: Path, text: str) -> None:
    (directory / "src").mkdir(exist_ok=True)
    (directory / "src" / "app.py").write_text(textwrap.dedent(text))


def explored(directory: Path, url: str, *arguments: str) -> Ended:
    own = ("--code", "src", "--handler", "app.handler") if (directory / "src").exists() else ()
    return loadtest("explore", "--endpoint-url", url, *own, *arguments, cwd=directory)


def only_run(directory: Path) -> Path:
    (run,) = (directory / "runs").iterdir()
    return run


def result_of(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run / "explore.json").read_text())
    return told


def test_a_race_of_two_copies_is_found_drawn_saved_and_replayed(
    tmp_path: Path, emulator_url: str
) -> None:
    write_handler(tmp_path, RACY)
    found = explored(tmp_path, emulator_url, "--copies", "2")
    assert found.code == 1, found.said
    run = only_run(tmp_path)
    file = run.relative_to(tmp_path) / "schedule.txt"
    for part in (
        "copy 1: order",
        "copy 2: a copy of order",
        "Racing: step 2 (copy 2, GetItem) and step 5 (copy 1, PutItem).",
        "so that step 5 comes before step 2",
        "without a condition: accepted, no item ->",
        "overwrite (1)",
        "So: B replaced the order that A had stored",
        f"loadtest explore --replay {file}",
    ):
        assert part in found.said, part
    lanes = [line[4:20].rstrip() for line in found.out.splitlines() if line[2:3].isdigit()]
    assert lanes[:6] == ["r", "|       r", "|       +", "|       d", "+", "d"]

    told = result_of(run)
    assert (told["verdict"], told["exit_code"]) == ("FAIL", 1)
    assert [finding["kind"] for finding in told["findings"]] == ["overwrite"]
    assert told["schedule"]["switches"] == 2
    assert told["effort"]["live_schedules"] <= 4
    assert len(told["schedule"]["passing_steps"]) == 5

    picture = ET.fromstring((run / "schedule.svg").read_text())
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    page = (run / "report.html").read_text()
    assert "FAIL" in page
    assert "racing" in page
    assert "So: B replaced" in page

    again = loadtest(
        *("explore", "--replay", file, "--endpoint-url", emulator_url, "--json"), cwd=tmp_path
    )
    assert again.code == 1, again.said
    replayed = json.loads(again.out)
    assert [finding["kind"] for finding in replayed["findings"]] == ["overwrite"]
    assert replayed["schedule"]["steps"][1].startswith("copy 2: dynamodb:GetItem")

    # What the handler does now is another thing, and the file says where it stops to fit.
    write_handler(tmp_path, (Path(consumer.__file__).parent / "app.py").read_text())
    changed = loadtest("explore", "--replay", file, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert changed.code == 3
    assert "step 1, copy 1, receive 1: expected dynamodb:GetItem" in changed.said
    assert "got dynamodb:PutItem" in changed.said
    assert "the code in" in changed.said


def test_a_schedule_that_still_fits_changed_code_is_judged(
    tmp_path: Path, emulator_url: str
) -> None:
    write_handler(tmp_path, RAISES)
    arguments = ("--copies", "1", "--faults", "1", "--kinds", "crash")
    found = explored(tmp_path, emulator_url, *arguments)
    assert found.code == 1, found.said
    assert "the process is killed" in found.said
    assert "receive 2, a visibility timeout later" in found.said
    file = only_run(tmp_path) / "schedule.txt"
    write_handler(tmp_path, f"# Tidied.\n{textwrap.dedent(RAISES)}")
    again = loadtest("explore", "--replay", file, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert again.code == 1, again.said
    assert "has changed since; whether it still fits" in again.said


def test_messages_in_one_event_are_drawn_saved_and_replayed(
    tmp_path: Path, emulator_url: str
) -> None:
    write_handler(tmp_path, (PLANTED / "batch_stops_early.py").read_text())
    (tmp_path / "loadtest.toml").write_text(
        "[queue]\nreport_batch_item_failures = true\nmax_receive_count = 2\n"
        "[order]\nkey = 'id'\nquantity = { integer = [1, 10] }\nconflict = ['quantity']\n"
    )
    world = ("--copies", "3", "--orders", "2", "--conflict", "--batch", "2")
    found = explored(tmp_path, emulator_url, *world)
    assert found.code == 1, found.said
    for part in (
        "copy 3: order",
        "1 +       |               one event of copy 1 and copy 2: PutItem",
        "3 d       |               returned, deleted\n            b               reports failed",
        "one event of copy 2 (receive 2) and",
        "lost-order (1)",
    ):
        assert part in found.out, part
    run = only_run(tmp_path)
    assert result_of(run)["asked"]["batch"] == 2
    text = (run / "schedule.txt").read_text()
    assert "\nbatch: 2\n" in text
    assert "\ncopy 1 + copy 2: dynamodb:PutItem" in text
    assert text.endswith("\ncopy 2, receive 2 + copy 3 ends\n")
    file = run.relative_to(tmp_path) / "schedule.txt"
    again = loadtest("explore", "--replay", file, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert again.code == 1, again.said
    right = ("--handler", "app.correct", "--copies", "2", "--poison", "--batch", "2")
    clean = loadtest(
        *("explore", "--endpoint-url", emulator_url, "--code", "src", *right), cwd=tmp_path
    )
    assert clean.code == 0, clean.said
    words = " ".join(clean.said.split())
    assert (
        "2 copies of one order, one message that no handler can accept, in events of up to 2 in "
        "any order, no fault: 7 interleavings in 19 states covered, none failed; not covered: "
        "more than 2 copies, any fault, other messages that no handler can accept, more than 2 "
        "messages in one event" in words
    )


def test_a_replay_that_does_not_agree_with_itself_says_nothing(
    tmp_path: Path, emulator_url: str
) -> None:
    write_handler(tmp_path, better_after(99))
    found = explored(tmp_path, emulator_url, "--copies", "1")
    assert found.code == 1, found.said
    file = only_run(tmp_path) / "schedule.txt"
    (tmp_path / "src" / "seen").unlink()
    write_handler(tmp_path, better_after(1))
    again = loadtest("explore", "--replay", file, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert again.code == 3, again.said
    assert "carried out twice, it came to" in again.said


def test_the_reference_handler_gets_its_guarantee(tmp_path: Path, emulator_url: str) -> None:
    clean = explored(tmp_path, emulator_url, "--copies", "2")
    assert clean.code == 0, clean.said
    run = only_run(tmp_path)
    told = result_of(run)
    assert told["guarantee"] in clean.said
    assert told["guarantee"].startswith("2 copies of one order, no fault: 1 interleaving in ")
    assert "none failed; not covered: more than 2 copies, any fault, " in told["guarantee"]
    assert told["rungs"][0]["exhausted"] is True
    assert told["guarantee"].partition(";")[0] in (run / "report.html").read_text()
    assert processes_of(tmp_path) == []


def test_a_spent_budget_is_no_pass(tmp_path: Path, emulator_url: str) -> None:
    spent = explored(tmp_path, emulator_url, "--budget", "1ms", "--json")
    assert spent.code == 3, spent.said
    told = json.loads(spent.out)
    assert told["verdict"] == "INCONCLUSIVE"
    assert "the budget of 0.001 s was spent in 1 copy with no fault" in told["reasons"][0]
    assert told == result_of(only_run(tmp_path))


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (IDLE, "made no AWS call through the gateway"),
        # One order id to learn by, one that is carried out first.
        (better_after(2), "non-deterministic: a schedule failed"),
    ],
    ids=["idle", "better-later"],
)
def test_what_cannot_be_explored_is_inconclusive_and_says_why(
    tmp_path: Path, emulator_url: str, handler: str, reason: str
) -> None:
    write_handler(tmp_path, handler)
    ended = explored(tmp_path, emulator_url, "--copies", "2", "--quiet")
    assert ended.code == 3
    assert ended.said.startswith("INCONCLUSIVE")
    assert reason in ended.said


def test_a_race_of_a_handler_that_varies_is_found_by_executions(
    tmp_path: Path, emulator_url: str
) -> None:
    write_handler(tmp_path, BY_PROCESS)
    found = explored(tmp_path, emulator_url, "--copies", "2")
    assert found.code == 1, found.said
    for part in (
        "FAILED 2 copies with no fault: 2 executions, ",
        "Racing: step 2 (copy 2, GetItem) and step ",
        "What the handler does could not be remembered",
        "copy 1, receive 1: call 2 differs between two runs",
    ):
        assert part in found.said, part
    (rung,) = result_of(only_run(tmp_path))["rungs"]
    assert (rung["search"], rung["executions"], rung["clean"]) == ("executions", 2, False)
    file = only_run(tmp_path) / "schedule.txt"
    again = loadtest("explore", "--replay", file, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert again.code == 1, again.said


def test_a_handler_that_cannot_be_imported_ends_with_4(tmp_path: Path, emulator_url: str) -> None:
    write_handler(tmp_path, "raise ValueError('no settings')\n")
    ended = explored(tmp_path, emulator_url)
    assert ended.code == 4
    assert "ValueError: no settings" in ended.said


HEAD = """\
onceproof schedule, version 1
handler: app.handler
code: sha256:0
tool: 0.1.0
bodies: 1 1
faults: 0
kinds:
max receive count: 3
max calls: 40
world: {world}

copy 1 ends
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello\n", "is not a schedule"),
        ("onceproof schedule, version 9\n", "is a schedule of version 9"),
        (HEAD.replace("bodies: 1 1", "bodies: one"), "'bodies' has 'one'"),
        (HEAD.replace("{world}", "nothing"), "'world' must be JSON with code, config, orders"),
        (
            HEAD.replace(
                "{world}",
                '{"code": ".", "config": null, "orders": 1, "conflict": false, "seed": 1, '
                '"settings": "sha256:0"}',
            ),
            "was made with other settings",
        ),
    ],
    ids=["foreign", "version", "bodies", "world", "settings"],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "schedule.txt").write_text(text)
    ended = loadtest("explore", "--replay", "schedule.txt", cwd=tmp_path)
    assert ended.code == 2
    assert reason in ended.said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--copies", "5"), "--copies: must be from 1 to 4 (got 5)"),
        (("--faults", "4"), "--faults: must be from 0 to 3"),
        (("--kinds", "crash,fire"), "there is no kind 'fire'"),
        (("--budget", "soon"), "'soon' is no time"),
        (("--copies", "1", "--conflict"), "2 messages at least are needed"),
        (("--copies", "2", "--conflict", "--poison"), "3 messages at least are needed"),
        (("--batch", "9"), "--batch: must be from 1 to 4"),
        (("--replay", "nowhere.txt"), "nowhere.txt cannot be read: No such file"),
    ],
)
def test_wrong_use_is_told(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    ended = loadtest("explore", *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert reason in ended.said


def test_ctrl_c_tells_what_was_covered(tmp_path: Path) -> None:
    with started("explore", "--budget", "10m", cwd=tmp_path) as process:
        said = read_until(process, "clean        1 copy with no fault")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3, out + err
    words = " ".join((said + out).split())
    assert "INCONCLUSIVE interrupted in 1 copy with at most 1 fault" in words
    assert "Covered before: 1 copy of one order, no fault: 1 interleaving" in words
    assert processes_of(tmp_path) == []


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (example,) = [one for one in examples if "explore" in one]
    monkeypatch.chdir(tmp_path)
    write_handler(tmp_path, (Path(consumer.__file__).parent / "app.py").read_text())
    names: dict[str, Any] = {}
    exec(example, names)
    names["test_every_interleaving_of_three_copies"](onceproof.explore)
    assert result_of(only_run(tmp_path))["rungs"][0]["interleavings"] == 63
    names["test_orders_are_processed_once"](
        mock.create_autospec(onceproof.flood, return_value=mock.Mock(spec=onceproof.Outcome))
    )


def test_a_test_can_explore(
    tmp_path: Path, emulator_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_handler(tmp_path, RACY)
    racy = onceproof.explore(
        handler="app.handler", code="src", copies=2, endpoint_url=emulator_url, cwd=tmp_path
    )
    assert (racy.verdict, racy.findings) == ("FAIL", {"overwrite": 1})
    assert racy.report == only_run(tmp_path) / "report.html"
    with pytest.raises(onceproof.NotPassed) as error:
        racy.assert_clean()
    said = str(error.value)
    assert said.startswith("FAIL  overwrite: 1\n")
    assert "copy 1  copy 2" in said
    replay = f"loadtest explore --replay runs/{racy.run_dir.name}/schedule.txt"
    assert racy.command == f"{replay} --endpoint-url {emulator_url}"
    assert f"again     {racy.command}" in said
    with pytest.raises(onceproof.CannotRunError, match=r"^--copies: must be from 1 to 4 "):
        onceproof.explore(copies=9, cwd=tmp_path)
    assert capsys.readouterr() == ("", "")
