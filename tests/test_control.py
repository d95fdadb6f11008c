"""``loadtest run --control``: whether the same load would have caught a known race."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from analysis.findings import VerdictWord
from analysis.schema import RunStatus
from analysis.verdict import CONTROL_DIRECTORY, judge
from loadtest.config import fill_names, settings_of
from loadtest.control import control_settings
from loadtest.plan import make_plan
from tests.cli import Run, analysis, loadtest, only_run, verdict_json

QUICK = """
[handler]
timeout = 2
[queue]
visibility_timeout = 2
max_receive_count = 2
[load]
orders = 6
copies = 5
conflicts = 0
poison = 0
concurrency = 4
[expect]
contended_orders = 0
"""

# A number as key, a sort key, claims, other names in the table, a brace in a name, batches.
OTHER_SHAPE = """
[handler]
code = "src"
handler = "accepts.handler"
timeout = 2
[queue]
visibility_timeout = 2
batch_size = 2
report_batch_item_failures = true
[[table]]
name = "purchases"
key = "pk"
key_type = "N"
sort = "sk"
sort_type = "B"
complete_when = { phase = ["DONE"] }
[order]
key = "number"
body = '{"number": {number}, "amount": {amount}, "sku": "{sku}"}'
item = { amount = "cents", sku = "{x}" }
[order.amount]
decimal = [1, 9.99, 2]
[order.sku]
text = [1, 3]
[load]
orders = 10
copies = 6
poison = 0.5
"""


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory, emulator_url: str) -> tuple[Run, str]:
    """A run of the reference handler with a control, and what was printed."""
    cwd = tmp_path_factory.mktemp("control")
    (cwd / "loadtest.toml").write_text(QUICK)
    end = loadtest("run", "--control", "--endpoint-url", emulator_url, cwd=cwd)
    assert end.code == 0, end.said
    return only_run(cwd), end.said


@pytest.fixture
def copied(passed: tuple[Run, str], tmp_path: Path) -> Run:
    shutil.copytree(passed[0].path, tmp_path / "runs" / "copy")
    return Run(tmp_path / "runs" / "copy")


def test_a_pass_says_that_its_load_would_have_caught_a_race(passed: tuple[Run, str]) -> None:
    run, said = passed
    control = run.verdict.control
    assert control is not None
    assert control.caught
    assert control.overwrites > 0
    text = f"this load caught a read-then-write handler ({control.overwrites} overwrites)"
    assert run.rule("control") == text
    assert f"✓ control: {text}" in said
    for name in ("report.html", "summary.md"):
        assert "read-then-write" in (run.path / name).read_text(), name


def test_the_control_is_a_run_of_its_own_with_the_same_plan(passed: tuple[Run, str]) -> None:
    run = passed[0]
    control = Run(run.path / CONTROL_DIRECTORY)
    assert control.info.plan == run.info.plan
    assert control.info.handler == "control.handler"
    assert control.info.status is RunStatus.FINISHED
    assert (run.info.control, control.info.control) == (True, False)
    verdict = judge(control.path)
    assert verdict.verdict is VerdictWord.FAIL
    assert run.verdict.control is not None
    overwrites = {check.kind.value: check.count for check in verdict.checks}["overwrite"]
    assert overwrites == run.verdict.control.overwrites


def test_judging_again_gives_the_same_bytes(copied: Run) -> None:
    before = (copied.path / "verdict.json").read_bytes()
    for command in ("report", "analysis"):
        (copied.path / "verdict.json").unlink()
        if command == "report":
            assert loadtest("report", copied.path, cwd=copied.path.parent).code == 0
        else:
            assert analysis(copied.path).code == 0
        assert (copied.path / "verdict.json").read_bytes() == before


def test_a_control_without_evidence_proves_nothing(copied: Run) -> None:
    shutil.rmtree(copied.path / CONTROL_DIRECTORY)
    verdict = judge(copied.path)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert [rule.name for rule in verdict.rules if not rule.passed] == ["control"]
    assert "was not run" in verdict.reasons[0]


def test_a_load_that_cannot_race_does_not_pass(tmp_path: Path, emulator_url: str) -> None:
    (tmp_path / "loadtest.toml").write_text(QUICK)
    arguments = ("--concurrency", "1", "--endpoint-url", emulator_url, "--json")
    end = loadtest("run", "--control", *arguments, cwd=tmp_path)
    verdict = verdict_json(end.out)
    assert (end.code, verdict.verdict) == (3, VerdictWord.INCONCLUSIVE)
    assert verdict.control is not None
    assert (verdict.control.caught, verdict.control.overwrites) == (False, 0)
    assert "would NOT have caught a read-then-write handler" in verdict.reasons[0]
    end = loadtest("run", *arguments, cwd=tmp_path)
    assert (end.code, verdict_json(end.out).control) == (0, None), "none was asked for"


def test_the_control_fits_any_shape_of_order(tmp_path: Path, emulator_url: str) -> None:
    (tmp_path / "loadtest.toml").write_text(OTHER_SHAPE)
    (tmp_path / "src").mkdir()
    source = "def handler(event, context):\n    return {'batchItemFailures': []}\n"
    (tmp_path / "src" / "accepts.py").write_text(source)
    end = loadtest("run", "--control", "-q", "--endpoint-url", emulator_url, cwd=tmp_path)
    run = only_run(tmp_path)
    assert end.code == 1, "nothing was stored"
    assert run.verdict.control is not None
    assert run.verdict.control.caught
    control = Run(run.path / CONTROL_DIRECTORY)
    kinds = {check.kind.value for check in judge(control.path).checks if check.count}
    assert not kinds & {"wrong-key", "phantom-write", "lost-order", "stuck-message"}
    (item,) = control.rows(
        "SELECT item FROM items WHERE phase = 'after' AND item LIKE '%pk%' LIMIT 1"
    )
    for part in (
        '"pk":{"N":',
        '"sk":{"B":',
        '"cents":{"N":',
        '"{x}":{"S":',
        '"phase":{"S":"DONE"}',
    ):
        assert part in item["item"]


def test_no_name_of_an_order_is_taken_for_a_placeholder() -> None:
    order = {"key": "id", "size": {"integer": [1, 2]}, "item": {"id": "{queue}", "size": "{{a}} {"}}
    settings = settings_of({"order": order}, Path())
    environment = control_settings(settings).handler.environment
    filled = fill_names(environment, {"table:orders": "real-name", "queue": "oops"})
    assert filled == {**environment, "TABLE_NAME": "real-name"}


def test_the_control_finds_orders_in_envelopes_and_stores_them_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        [[table]]
        name = "shop"
        key = "pk"
        sort = "sk"
        [[table.items]]
        role = "orders"
        key = "SHOP#*"
        sort = "ORDER#{id}"
        complete_when = { status = ["DONE"] }
        [order]
        key = "ref.id"
        body = '{"ref": {"id": "{id}", "n": {n}}, "by": "{by}"}'
        envelope = "sns"
        n = { integer = [1, 9] }
        by = { text = [2, 2] }
        item = { by = "who.by" }
    """
    loaded = control_settings(settings_of(tomllib.loads(text), tmp_path))
    variables = fill_names(loaded.handler.environment, {"table:shop": "real"})
    put: list[dict[str, Any]] = []
    table = SimpleNamespace(
        get_item=lambda **_: {},
        put_item=lambda **asked: put.append(asked["Item"]),
    )
    monkeypatch.setattr(boto3, "resource", lambda _: SimpleNamespace(Table=lambda name: table))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("the_control", loaded.handler.code / "control.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plan = make_plan(loaded.order, orders=2, copies=1, poison=1)
    records = [{"messageId": "m", "body": message.body} for message in plan.messages]
    module.handler({"Records": records}, None)
    for message in plan.messages:
        if message.expected_item is not None:
            (item,) = (one for one in put if one["sk"] == f"ORDER#{message.order_key}")
            assert (item["pk"], item["status"]) == ("SHOP#x", "DONE")
            details = json.loads(message.expected_item)
            assert str(item["n"]) == details["n"]["N"]
            assert item["who"] == {"by": details["who"]["M"]["by"]["S"]}
