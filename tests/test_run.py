"""``loadtest run`` and ``loadtest report`` from the outside: what a user gets."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

import consumer
from analysis.schema import TABLES, RunStatus
from tests.cli import (
    Run,
    analysis,
    loadtest,
    loadtest_apart,
    names_at,
    only_run,
    processes_of,
    verdict_json,
)
from tests.handlers import write_handlers

QUICK = """
[queue]
visibility_timeout = 2
max_receive_count = 2
[load]
orders = 4
copies = 3
conflicts = 0
poison = 0
concurrency = 2
[expect]
contended_orders = 0
[handler]
timeout = 2
"""
"""A run of it takes about a second. Tests append to it, first to the handler's table."""

PLAN = ("--orders", "8", "--conflicts", "0.25", "--poison", "0.5", "--seed", "7")
PLANTED = Path(consumer.__file__).parent / "planted"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run of the reference handler on an embedded AWS, and what was printed."""
    cwd = tmp_path_factory.mktemp("reference")
    (cwd / "loadtest.toml").write_text(QUICK)
    end = loadtest_apart("run", *PLAN, cwd=cwd)
    assert (end.code, end.err) == (0, ""), end.out
    assert processes_of(cwd) == []
    return only_run(cwd), end.out


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A folder with a quick configuration and a folder of handlers."""
    (tmp_path / "loadtest.toml").write_text(QUICK)
    write_handlers(tmp_path / "src")
    return tmp_path


def configure(cwd: Path, text: str) -> None:
    (cwd / "loadtest.toml").write_text(text)


def assert_nothing_left(cwd: Path, url: str) -> None:
    assert only_run(cwd).info.run_id not in names_at(url)
    assert processes_of(cwd) == []


# --- the whole line ---------------------------------------------------------------------


def test_a_run_leaves_its_evidence_verdict_and_reports(reference: tuple[Run, str]) -> None:
    run, _ = reference
    assert run.info.status is RunStatus.FINISHED
    kept = {path.name for path in (run.path / "evidence").iterdir()}
    assert kept == {f"{table.TABLE}.parquet" for table in TABLES}
    names = {path.name for path in run.path.iterdir() if path.is_file()}
    assert names == {"run.json", "verdict.json", "report.html", "junit.xml", "summary.md"}
    assert {path.suffix for path in (run.path / "plots").iterdir()} == {".svg", ".png"}
    assert (run.path / "emulator" / "emulator.log").exists()
    logs = {path.name for path in (run.path / "environments").iterdir()}
    assert logs == {f"environment-{slot}.log" for slot in range(1, 3)}, "no temporary folder stays"


def test_the_counts_are_those_of_the_plan(reference: tuple[Run, str]) -> None:
    run, _ = reference
    counts = run.verdict.counts
    assert (counts.orders, counts.copies, counts.conflicts, counts.poison) == (8, 16, 2, 4)
    assert counts.messages == counts.accepted_messages == 30
    assert counts.accepted_writes == counts.stored_items == counts.processed == 8
    assert (counts.failed_writes, counts.unknown_writes, counts.unsettled) == (0, 0, 0)
    # What was stored first is the order; whatever says something else is refused.
    stored = {
        item["id"]["S"]: item["quantity"]["N"]
        for row in run.rows("SELECT item FROM items WHERE resource = 'orders' AND phase = 'after'")
        for item in [json.loads(row["item"])]
    }
    sent = [
        (row["order_key"], json.loads(row["expected_item"] or '{"quantity": {"N": ""}}'))
        for row in run.rows("SELECT order_key, expected_item FROM messages")
    ]
    kept = sum(stored.get(key) == details["quantity"]["N"] for key, details in sent)
    assert counts.deleted == kept
    assert counts.dead_lettered == 30 - kept
    assert counts.duplicates >= kept - 8


def test_the_terminal_shows_plan_verdict_and_report(reference: tuple[Run, str]) -> None:
    run, out = reference
    said = " ".join(out.split())
    assert "30 messages: 8 orders x 3 copies, conflicts 0.25, poison 0.5, burst" in said
    assert "sent 30/30" in said or "sent 0/30" in said, "progress"
    assert "accepted writes 8 8 items stored" in said
    for rule in run.verdict.rules:
        assert f"✓ {rule.name}: " in said
    assert "PASS" in said
    assert f"report runs/{run.path.name}/report.html" in said


@pytest.mark.parametrize("again", ["report", "analysis"])
def test_judging_again_gives_the_same_bytes(
    reference: tuple[Run, str], again: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "runs" / "copy")
    shutil.copytree(reference[0].path, run.path)
    before = (run.path / "verdict.json").read_bytes()
    (run.path / "verdict.json").unlink()
    (run.path / "report.html").unlink()
    if again == "report":
        assert loadtest("report", "runs/copy", cwd=tmp_path).code == 0
        assert (run.path / "report.html").exists()
    else:
        assert analysis(run.path).code == 0
    assert (run.path / "verdict.json").read_bytes() == before


def test_json_is_all_that_is_printed(cwd: Path, emulator_url: str) -> None:
    end = loadtest("run", "--json", "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 0, end.err
    assert end.out == (run.path / "verdict.json").read_text()
    assert verdict_json(end.out).verdict == "PASS"
    assert "flooding" in end.err, "progress goes elsewhere"
    again = loadtest("report", "--json", run.path, cwd=cwd)
    assert (again.code, again.out, again.err) == (0, end.out, "")
    assert_nothing_left(cwd, emulator_url)


def test_quiet_is_one_line(cwd: Path, emulator_url: str) -> None:
    configure(cwd, QUICK.replace("contended_orders = 0", ""))
    end = loadtest("run", "-q", "--concurrency", "1", "--endpoint-url", emulator_url, cwd=cwd)
    assert (end.code, end.err) == (3, "")
    assert end.out.count("\n") == 1
    assert end.out.startswith("INCONCLUSIVE exposure: 0 of 4 (0.0%)")
    assert_nothing_left(cwd, emulator_url)


def test_the_same_seed_gives_the_same_plan(
    reference: tuple[Run, str], cwd: Path, emulator_url: str
) -> None:
    configure(cwd, QUICK.replace(" = 2\n", " = 1\n"))
    loadtest("run", *PLAN, "-q", "--endpoint-url", emulator_url, cwd=cwd)
    assert only_run(cwd).info.plan.digest == reference[0].info.plan.digest


# --- handlers with bugs, and settings ---------------------------------------------------


@pytest.mark.parametrize("bug", ["read_then_write", "unconditional"])
def test_a_planted_bug_fails(bug: str, cwd: Path, emulator_url: str) -> None:
    configure(cwd, QUICK + '[result]\nprocessed = "processed"\nduplicate = "duplicate"\n')
    arguments: list[str | Path] = ["--code", PLANTED, "--handler", f"{bug}.handler"]
    arguments += ["--orders", "6", "--copies", "6", "--conflicts", "0.5", "--concurrency", "4"]
    end = loadtest("run", *arguments, "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 1, end.err
    assert {"overwrite", "conflict-acknowledged"} <= set(run.findings())
    assert "FAIL" in end.out
    assert "overwrite (" in end.out
    assert "So: B replaced the order that A had stored" in end.out, "a finding is proved"
    before = (run.path / "verdict.json").read_bytes()
    (run.path / "verdict.json").unlink()
    assert loadtest("report", run.path, cwd=cwd).code == 1
    assert (run.path / "verdict.json").read_bytes() == before
    assert_nothing_left(cwd, emulator_url)


def test_a_rate_and_no_burst(cwd: Path, emulator_url: str) -> None:
    arguments = ["--rate", "40", "--no-burst", "--orders", "4"]
    end = loadtest("run", *arguments, "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 0, end.out
    assert (run.info.plan.arrangement, run.info.plan.rate_per_s) == ("interleaved", 40)
    rows = run.rows("SELECT order_key, intended_at FROM messages ORDER BY message_no")
    first_round = [row["order_key"] for row in rows[:4]]
    assert len(set(first_round)) == 4, "the copies of one order do not stand together"
    steps = {after["intended_at"] - row["intended_at"] for row, after in itertools.pairwise(rows)}
    assert steps == {25_000_000}
    assert "of 12 later, 99 % within" in run.rule("send lag")


@pytest.mark.parametrize("partial", [False, True])
def test_a_batch_handler_is_judged_right(partial: bool, cwd: Path, emulator_url: str) -> None:
    name = "batch_reports" if partial else "batch_all_or_nothing"
    report = f"batch_size = 5\nreport_batch_item_failures = {str(partial).lower()}\n"
    quick = QUICK.replace("max_receive_count = 2", "max_receive_count = 1")
    configure(cwd, quick.replace("[queue]\n", f"[queue]\n{report}"))
    arguments = ["--code", "src", "--handler", f"{name}.handler", "--copies", "8"]
    # Without partial failures one bad record would take its whole batch to the dead letters.
    bad = ["--conflicts", "0.5", "--poison", "0.5"] if partial else []
    end = loadtest("run", *arguments, *bad, "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 0, end.out
    assert run.verdict.counts.stored_items == 4
    assert run.verdict.counts.dead_lettered >= (4 if partial else 0)
    (most,) = run.rows(
        "SELECT max(n) AS n FROM (SELECT count(*) AS n FROM deliveries GROUP BY invocation_id)"
    )
    assert most["n"] == 5


def test_a_batch_handler_that_reports_nothing_fails(cwd: Path, emulator_url: str) -> None:
    report = "batch_size = 5\nreport_batch_item_failures = true\n"
    configure(cwd, QUICK.replace("[queue]\n", f"[queue]\n{report}"))
    arguments = ["--code", "src", "--handler", "batch_swallows.handler"]
    bad = ["--conflicts", "0.5", "--poison", "0.5"]
    end = loadtest("run", *arguments, *bad, "--endpoint-url", emulator_url, cwd=cwd)
    assert end.code == 1
    found = only_run(cwd).findings()
    assert {"conflict-acknowledged", "poison-acknowledged"} <= set(found)
    assert found["poison-acknowledged"] == 2


def test_other_names_a_composite_key_and_paths_relative_to_the_file(
    cwd: Path, emulator_url: str
) -> None:
    (cwd / "settings").mkdir()
    (cwd / "settings" / "shop.toml").write_text(
        QUICK
        + """
code = "../src"
handler = "composite.handler"
environment = { PURCHASES = "{table:purchases}" }
[[table]]
name = "purchases"
key = "pk"
sort = "sk"
[order]
key = "number"
body = '{"number": "{number}", "count": {count}}'
count = { integer = [1, 99] }
item = { number = "pk", count = "pieces" }
[result]
processed = "done"
duplicate = "again"
"""
    )
    arguments = ["--config", "settings/shop.toml", "--endpoint-url", emulator_url]
    end = loadtest("run", *arguments, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 0, end.out
    assert run.info.code == str(cwd / "settings" / ".." / "src")
    counts = run.verdict.counts
    assert (counts.stored_items, counts.processed, counts.duplicates) == (4, 4, 8)
    rows = run.rows("SELECT item FROM items WHERE phase = 'after' AND resource LIKE '%-purchases'")
    assert {tuple(json.loads(row["item"])) for row in rows} == {("pieces", "pk", "sk")}
    assert_nothing_left(cwd, emulator_url)


# --- what must not be there -------------------------------------------------------------


def test_no_secret_and_no_receipt_handle_is_kept(
    reference: tuple[Run, str], cwd: Path, emulator_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMIsecretOfTheTester")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "FwoGZXIvYXdzTokenOfTheTester")
    told = cwd / "told"
    told.mkdir()
    (cwd / "src" / "tells.py").write_text(
        (cwd / "src" / "stores.py").read_text().replace("def handler", "def stores")
        + "def handler(event, context):\n"
        "    open(os.path.join(os.environ['TOLD'], context.aws_request_id), 'w').write(\n"
        "        event['Records'][0]['receiptHandle'])\n"
        "    print(event)\n"
        "    return stores(event, context)\n"
    )
    configure(
        cwd,
        QUICK + 'code = "src"\nhandler = "tells.handler"\n'
        f'environment = {{ TABLE_NAME = "{{table:orders}}", TOLD = "{told}", '
        'API_KEY = "sk-live-4242" }\n',
    )
    end = loadtest("run", "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 0, end.out
    handles = [path.read_text() for path in told.iterdir()]
    assert len(handles) == 12
    secrets = ["sk-live-4242", "secretOfTheTester", "TokenOfTheTester", *handles]
    assert [text for text in secrets if run.holds(text) or text in end.out + end.err] == []
    logs = [path.read_text() for path in (run.path / "environments").iterdir()]
    assert any("'body': " in log for log in logs), "the rest of the handler's output is kept"
    assert "EVENT" in (reference[0].path / "environments" / "environment-1.log").read_text()


def test_a_handler_has_a_folder_of_its_own_for_temporary_files(
    cwd: Path, emulator_url: str
) -> None:
    arguments = ["--code", "src", "--handler", "temporary_files.handler"]
    end = loadtest("run", *arguments, "--endpoint-url", emulator_url, cwd=cwd)
    run = only_run(cwd)
    assert end.code == 0, end.out
    log = (run.path / "environments" / "environment-1.log").read_text()
    (line,) = {line for line in log.splitlines() if line.startswith("FOLDERS")}
    assert line.split()[1:] == [str(run.path / "environments" / "tmp-1")] * 3
