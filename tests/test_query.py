"""``loadtest sql``: the evidence answers questions, and nothing else."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from analysis.errors import EvidenceError, UsageError
from analysis.query import ask, tables_of
from analysis.schema import TABLES
from analysis.store import finish_evidence
from loadtest.__main__ import app
from loadtest.terminal import print_answer, print_tables
from tests.histories import write_history

RACE = "1<A4 2<A4 1r 2r 1+/any 2+/any 1>p 2>p"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_history(tmp_path, RACE)
    finish_evidence(tmp_path)
    return tmp_path


def rows_of(run_dir: Path, statement: str) -> list[tuple[object, ...]]:
    with ask(run_dir, statement) as answer:
        return list(answer.rows())


def test_tables_views_and_macros_can_be_asked(run_dir: Path) -> None:
    assert rows_of(run_dir, "SELECT count(*) FROM calls") == [(4,)]
    assert rows_of(run_dir, "FROM fates SELECT message_no, fate ORDER BY ALL") == [
        (1, "deleted"),
        (2, "deleted"),
    ]
    statement = "SELECT action, decision FROM item_calls WHERE invocation_id IN (1)"
    assert rows_of(run_dir, statement) == [("read", "accepted"), ("put", "accepted")]
    statement = "SELECT details(after) FROM call_items WHERE action = 'put' LIMIT 1"
    assert rows_of(run_dir, statement) == [('{"quantity":{"N":"4"}}',)]


def test_a_run_that_was_killed_can_be_asked(tmp_path: Path) -> None:
    assert rows_of(write_history(tmp_path, RACE), "SELECT count(*) FROM inserts") == [(1,)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE calls", "give one SELECT statement, not DROP"),
        ("SELECT 1; SELECT 2", "not SELECT, SELECT"),
        ("SELECT 1; DELETE FROM messages", "not SELECT, DELETE"),
        ("COPY calls TO 'calls.csv'", "not COPY"),
        ("SET threads = 1", "not SET"),
        ("-- nothing", "not nothing"),
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM calls", '"nothing" not found'),
        ("SELECT * FROM nothing", "nothing does not exist"),
        ("FROM read_text('/etc/hostname')", "Cannot access file"),
        ("SELECT CAST(operation AS INTEGER) FROM calls", "Could not convert"),
    ],
)
def test_anything_else_is_refused(run_dir: Path, statement: str, said: str) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=said):
        rows_of(run_dir, statement)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_a_mistake_is_answered_with_what_there_is(run_dir: Path) -> None:
    with pytest.raises(UsageError) as raised, ask(run_dir, "SELECT * FROM calls_items"):
        pass
    text = str(raised.value)
    assert "  call_items: call_id, resource, item_key, action, condition" in text
    assert "worked out from them: item_calls, " in text


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"run\.json"):
        rows_of(tmp_path, "SELECT 1")


def test_every_table_and_view_has_a_line_of_meaning(run_dir: Path) -> None:
    tables = {table.name: table for table in tables_of(run_dir)}
    assert {table.TABLE for table in TABLES} < tables.keys()
    assert {"item_calls", "writes", "inserts", "fates", "outcomes", "stored"} < tables.keys()
    assert not [table.TABLE for table in TABLES if not tables[table.TABLE].meaning]
    assert tables["results"].meaning == (
        "what an invocation reported for one of its messages, where that can be told"
    )
    columns = {column.name: column.meaning for column in tables["call_items"].columns}
    assert columns["action"] == "put | update | delete | read | check"
    assert columns["decision"].endswith("what the store did with this item")
    assert columns["before"] == "canonical item text; {} for no item; NULL: not known"


# --- the command --------------------------------------------------------------------------


def test_the_command_writes_csv_into_a_pipe(run_dir: Path) -> None:
    statement = "SELECT item_key, condition, before FROM item_calls ORDER BY call_id DESC LIMIT 1"
    result = CliRunner().invoke(app, ["sql", str(run_dir), statement])
    assert result.exit_code == 0
    assert list(csv.reader(io.StringIO(result.stdout))) == [
        ["item_key", "condition", "before"],
        ['{"id":{"S":"A"}}', "", '{"id":{"S":"A"},"quantity":{"N":"4"}}'],
    ]


def test_the_command_lists_tables_without_a_statement(run_dir: Path) -> None:
    result = CliRunner().invoke(app, ["sql", str(run_dir)])
    assert result.exit_code == 0
    for table in TABLES:
        assert f"\n{table.TABLE}  " in f"\n{result.stdout}"


def test_bad_sql_is_wrong_use(run_dir: Path) -> None:
    result = CliRunner().invoke(app, ["sql", str(run_dir), "SELEC"])
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2


def test_a_terminal_gets_an_aligned_table_of_visible_text(tmp_path: Path) -> None:
    write_history(tmp_path, "1<A4 1+ 1>p 2<\x1b[2J7 2+ 2>p")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, no_color=True, highlight=False)
    with ask(tmp_path, "SELECT message_no AS n, order_key FROM messages ORDER BY 1") as answer:
        print_answer(console, answer)
    text = screen.getvalue()
    assert "\\u001b[2J" in text
    assert "\x1b[2J" not in text
    assert "2 rows" in text
    with ask(tmp_path, "SELECT * FROM range(5000)") as answer:
        print_answer(console, answer)
    assert "1,000 rows; there are more" in screen.getvalue()
    print_tables(console, tables_of(tmp_path))
    assert "one wire attempt by the handler" in screen.getvalue()
