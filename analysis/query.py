"""Questions of one's own, asked of the evidence in SQL (``loadtest sql``).

The statement sees the tables of :mod:`analysis.schema`, what the checks work out from them
(``sql/base.sql``, ``sql/places.sql``, ``sql/views.sql``) and ``item_calls``. One SELECT, nothing
else: the evidence cannot be changed, and no other file can be read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import get_args, get_type_hints

import duckdb

from analysis.checks import prepare, sql_of
from analysis.errors import EvidenceError, UsageError
from analysis.schema import TABLES, Row
from analysis.store import EVIDENCE_DIRECTORY, Evidence, open_evidence

_BATCH = 1_000  # rows fetched at a time
_ITEM_CALLS = "item_calls"

# The calls with the items they touched, as proofs tell them.
_ITEM_CALLS_SQL = f"""
CREATE VIEW {_ITEM_CALLS} AS
SELECT call_id, invocation_id, c.sent_at, c.answered_at, operation, action, item_key, condition,
    coalesce(i.decision, c.decision) AS decision, before, after
FROM calls c LEFT JOIN call_items i USING (call_id)
ORDER BY c.sent_at, call_id, item_key
"""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # of DuckDB
    meaning: str  # may be empty: the name says it


@dataclass(frozen=True, slots=True)
class TableText:
    """A table or view that a statement can name."""

    name: str
    meaning: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement; read them while the evidence is open."""

    columns: tuple[str, ...]
    cursor: duckdb.DuckDBPyConnection

    def rows(self) -> Iterator[tuple[object, ...]]:
        """:raises UsageError: a value that the statement makes on the way has no result."""
        try:
            while rows := self.cursor.fetchmany(_BATCH):
                yield from rows
        except duckdb.Error as error:
            raise UsageError(str(error).strip()) from error


@contextmanager
def ask(run_dir: Path, statement: str) -> Iterator[Answer]:
    """The answer to one SELECT.

    :raises UsageError: it is not one SELECT, or DuckDB cannot carry it out.
    :raises EvidenceError: the directory cannot be read as evidence.
    """
    with _opened(run_dir, statement) as evidence:
        connection = evidence.connection
        try:
            _require_one_select(connection, statement)
            connection.execute(statement)
        except duckdb.Error as error:
            raise UsageError(f"{str(error).strip()}\n{_tables_hint(evidence)}") from error
        columns = tuple(column[0] for column in connection.description or ())
        yield Answer(columns, connection)


def tables_of(run_dir: Path) -> list[TableText]:
    """Everything that can be asked for.

    :raises EvidenceError: the directory cannot be read as evidence.
    """
    with _opened(run_dir, None) as evidence:
        meanings = {table.TABLE: _first_sentence(table.__doc__ or "") for table in TABLES}
        meanings[_ITEM_CALLS] = "calls with the items they touched, in order of time"
        meanings |= _view_meanings()
        notes = {table.TABLE: _column_notes(table) for table in TABLES}
        return [
            TableText(
                name,
                meanings.get(name, ""),
                tuple(
                    Column(
                        row["column_name"],
                        row["column_type"],
                        notes.get(name, {}).get(row["column_name"], ""),
                    )
                    for row in evidence.rows(f'DESCRIBE "{name}"')
                ),
            )
            for name in _names(evidence, meanings)
        ]


@contextmanager
def _opened(run_dir: Path, statement: str | None) -> Iterator[Evidence]:
    """The evidence, with the views where the statement may name one (None: always)."""
    views = _view_meanings()
    with open_evidence(run_dir) as evidence:
        evidence.rows(_ITEM_CALLS_SQL)
        if statement is None or any(re.search(rf"\b{name}\b", statement) for name in views):
            try:
                prepare(evidence)
            except duckdb.Error as error:
                raise EvidenceError(
                    f"{run_dir}: what the checks share could not be worked out "
                    f"({str(error).strip()}). Ask of the evidence's own tables."
                ) from error
        directory = str((run_dir / EVIDENCE_DIRECTORY).resolve()).replace("'", "''")
        evidence.rows(f"SET allowed_directories = ['{directory}']")
        evidence.rows("SET enable_external_access = false")
        evidence.rows("SET lock_configuration = true")
        yield evidence


def _require_one_select(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    found = connection.extract_statements(statement)
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(entry.type.name for entry in found) or "nothing"
        raise UsageError(
            f"the evidence can only be read: give one SELECT statement, not {kinds}. "
            "Without a statement, the tables and columns are listed."
        )


def _tables_hint(evidence: Evidence) -> str:
    lines = []
    for table in TABLES:
        lines.append(f"  {table.TABLE}: {', '.join(field.name for field in fields(table))}")
    shared = ", ".join([_ITEM_CALLS, *_view_meanings()])
    return "\n".join(["There are:", *lines, f"  worked out from them: {shared}"])


def _names(evidence: Evidence, meanings: dict[str, str]) -> list[str]:
    there = {row["name"] for row in evidence.rows("SHOW TABLES")}
    return [name for name in meanings if name in there]


# --- meanings, from where they are written down -----------------------------------------


def _column_notes(table: type[Row]) -> dict[str, str]:
    """The words a field may hold, and the comment behind it in the schema."""
    comments = dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(table), re.M))
    notes = {}
    for name, hint in get_type_hints(table).items():
        words = [str(word) for kind in (hint, *get_args(hint)) for word in _words(kind)]
        parts = (
            " | ".join(words),
            comments.get(name, "").replace("None", "NULL").replace("NO_ITEM", "{} for no item"),
        )
        notes[name] = "; ".join(filter(None, parts))
    return notes


def _words(kind: object) -> list[StrEnum]:
    return list(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else []


def _view_meanings() -> dict[str, str]:
    """What the checks share, each with the first sentence of the comment above it."""
    meanings = {}
    comment: list[str] = []
    for line in "\n".join(map(sql_of, ("base", "places", "views"))).splitlines():
        if line.startswith("--"):
            text = line.removeprefix("--").strip()
            if text.endswith("---"):  # a heading
                comment = []
            else:
                comment.append(text)
        elif match := re.match(r"CREATE (?:TABLE|VIEW) (\w+)", line):
            meanings[match[1]] = _first_sentence(" ".join(comment))
            comment = []
        elif not line:
            comment = []
    return meanings


def _first_sentence(text: str) -> str:
    """Without its full stop, in lower case at the start: a line in a list."""
    sentence = re.split(r"[.;](?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
    return sentence[:1].lower() + sentence[1:]
