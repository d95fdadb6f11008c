"""Reads the evidence of one run: the only place that opens evidence files.

A run directory becomes a DuckDB database (a scratch one) with one table or view per table of
:mod:`analysis.schema`, whether the run has finished (Parquet) or was killed half way (JSON
lines). Beside them stand what ``run.json`` says about the store:

``run_tables``
    one row per declared table, and per kind of items where a table holds several
    (:mod:`analysis.item_kinds`: ``call_items`` and ``items`` name the kind): resource, role, key,
    sort, claims (it may hold items that are not an order's result: ``complete_when`` is given)
``run_effects``
    one row per declared side effect: effect (its number), name
``same_key(text)``
    an order key in the one spelling that it has: equal numbers are one key where the table's
    key is a number
``details(item)``
    only the attributes that carry the order's details, as canonical text; NULL for no item.
    Two items have the same details exactly when these texts are equal. A missing attribute
    is left out, which an attribute of type NULL is not. The attribute that is the table's
    key is left out too: it says which order, and may do so in its own way (``ORDER#1``).
``item_order_key(item)``
    the text of the attribute that holds the order key, NULL when the item has none
``key_text(resource, item_key)`` and ``sort_text(resource, item_key)``
    the text of the partition and of the sort key. Where the kind of an item has a form with the
    order's id in it, ``key_text`` is what stands there, and there is no ``sort_text``
``complete(resource, item)``
    whether the item counts as an order's result (``complete_when`` of its table)
``differing_fields(answer, item)``
    the fields of the order's body that the answer (JSON text) gives with another value than
    the item; a field that either lacks, and one that is no scalar, is not compared
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import duckdb
import msgspec

from analysis.errors import EvidenceError
from analysis.item_kinds import ORDER_ID, apart, pattern_of
from analysis.schema import (
    NO_ITEM,
    SCHEMA_VERSION,
    TABLES,
    CallItem,
    Effect,
    Fault,
    ItemRow,
    ItemsInfo,
    OrderInfo,
    Row,
    RunInfo,
    RunStatus,
    TableInfo,
    TableRole,
)
from analysis.scratch import lacks_room, scratch_database

RUN_FILE = "run.json"
EVIDENCE_DIRECTORY = "evidence"

_TYPES = {int: "BIGINT", str: "VARCHAR", bool: "BOOLEAN"}

_UNREADABLE = (
    duckdb.IOException,
    duckdb.InvalidInputException,
    duckdb.SerializationException,
    duckdb.ConversionException,
)

_MARK = "onceproof"
"""Key of the entry that says of a Parquet file: made here, of sound rows with different keys."""

_CLOSED = (RunStatus.FINISHED, RunStatus.INTERRUPTED, RunStatus.NOT_DRAINED)
"""Ends at which every row had been written."""

_REFERENCES = (
    ("deliveries", "message_no", "messages"),
    ("calls", "invocation_id", "invocations"),
    ("results", "invocation_id", "invocations"),
    ("results", "message_no", "messages"),
    ("call_items", "call_id", "calls"),
    ("acks", "delivery_id", "deliveries"),
    ("faults", "call_id", "calls"),
    ("effects", "call_id", "calls"),
)
"""Table, column, and the table in which its value must be the key of an earlier row."""

_NUMBER_SPELLING = (
    "coalesce(rtrim(rtrim(TRY_CAST(text AS DECIMAL(38, 10))::VARCHAR, '0'), '.'), text)"
)

Params = Mapping[str, object] | Sequence[object]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The open evidence of one run.

    ``damaged`` names the tables that are missing or of which rows could not be read: what
    rests on the absence of a row there cannot be judged. A torn last line is no damage, for
    nothing was written after it. ``notes`` says both in words.
    """

    run: RunInfo
    notes: tuple[str, ...]
    damaged: frozenset[str]
    connection: duckdb.DuckDBPyConnection

    @property
    def complete(self) -> bool:
        """The run ended by itself, and every row it wrote is here."""
        return self.run.status is RunStatus.FINISHED and not self.notes

    @property
    def ended(self) -> bool:
        """The environments were stopped and the tables read after that."""
        match self.run.status:
            case RunStatus.FINISHED:
                return True
            case RunStatus.INTERRUPTED | RunStatus.NOT_DRAINED:
                return bool(self.scalar("SELECT count(*) > 0 FROM items WHERE phase = 'after'"))
        return False

    def rows(self, sql: str, params: Params = ()) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries by column name.

        :raises EvidenceError: a file turns out to be damaged where the query reads it.
        """
        try:
            cursor = self.connection.execute(sql, params)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except _UNREADABLE as error:
            if lacks_room(error):
                raise
            raise EvidenceError(
                f"run {self.run.run_id}: a table cannot be read ({_first_line(error)}). "
                "Restore the evidence directory from where the run was made."
            ) from error

    def scalar(self, sql: str, params: Params = ()) -> Any:
        """The first column of the first row, ``None`` when there is no row."""
        rows = self.rows(sql, params)
        return next(iter(rows[0].values())) if rows else None


def load_run(run_dir: Path) -> RunInfo:
    """What was asked of the run and how it ended. Unknown fields are ignored.

    :raises EvidenceError: there is no readable ``run.json`` of this schema version.
    """
    path = run_dir / RUN_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be read ({error.strerror or error}). "
            "Give the directory of a run: the one that holds run.json."
        ) from error
    try:
        run = msgspec.json.decode(content, type=RunInfo)
    except msgspec.DecodeError as error:
        raise EvidenceError(
            f"{path}: is not the run.json of a run ({error}). "
            "Restore the file from where the run was made, or run again."
        ) from error
    if run.schema_version != SCHEMA_VERSION:
        raise EvidenceError(
            f"{path}: has schema version {run.schema_version}, this program reads "
            f"{SCHEMA_VERSION}. Judge the run with the version that made it: {run.tool_version}."
        )
    return run


def parquet_options(rows: int) -> str:
    """How a table of so many sound rows, sorted by key, is written, for COPY."""
    mark = f"KV_METADATA {{{_MARK}: {_text(_mark(rows))}}}"
    # Version 2 stores ids and times as differences: a sixth smaller, and quicker to read.
    return f"FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, {mark}"


@contextmanager
def open_evidence(run_dir: Path) -> Iterator[Evidence]:
    """The evidence of a run that has finished, is still going or was killed.

    :raises EvidenceError: ``run.json`` or a table's file cannot be read at all. Single
        unreadable lines and missing files are no error: they are noted.
    """
    run = load_run(run_dir)
    with scratch_database(run_dir) as connection:
        notes: list[str] = []
        damaged: set[str] = set()
        for table in TABLES:
            defects = _open_table(connection, run_dir / EVIDENCE_DIRECTORY, table)
            if defects.absent and table in _unasked(run):
                continue
            notes += defects.notes
            # A line that was cut short says that more is missing, unless all was cut short.
            if defects.damage or (defects.torn and run.status in _CLOSED):
                damaged.add(table.TABLE)
        for child, column, table_name in _REFERENCES:
            # A Parquet file is whole or cannot be read; one of lines may end anywhere.
            lines = run_dir / EVIDENCE_DIRECTORY / f"{table_name}.jsonl"
            missing = _missing(connection, child, column, table_name) if lines.exists() else 0
            if missing:
                notes.append(f"{table_name}: {missing} rows that {child} refers to are missing.")
                damaged.add(table_name)
        _name_kinds(connection, run.tables)
        run = replace(run, tables=apart(run.tables))
        _describe_store(connection, run)
        # From here on a table has no order; the lines of a file had one.
        connection.execute("SET preserve_insertion_order = false")
        yield Evidence(run, tuple(notes), frozenset(damaged), connection)


def finish_evidence(run_dir: Path) -> None:
    """Turn every ``<table>.jsonl`` into ``<table>.parquet``, sorted by key.

    Each table is written under a temporary name, renamed, and only then are its lines
    removed. Lines that cannot be read are not thrown away: that table stays as it is.

    :raises EvidenceError: a file could not be read or written; its lines are still there.
    """
    directory = run_dir / EVIDENCE_DIRECTORY
    with scratch_database(run_dir) as connection:
        for table in TABLES:
            lines = directory / f"{table.TABLE}.jsonl"
            if not lines.exists():
                continue
            target = directory / f"{table.TABLE}.parquet"
            unfinished = directory / f"{table.TABLE}.parquet.tmp"
            try:
                if _find_last_lines(connection, lines, table).notes:
                    continue
                rows = _count(connection, "SELECT count(*) FROM last_lines")
                connection.execute(
                    f"COPY ({_last_lines(lines, table)} ORDER BY {_key(table)}) "
                    f"TO {_text(str(unfinished))} ({parquet_options(rows)})"
                )
                with unfinished.open("rb") as file:
                    os.fsync(file.fileno())  # on disk before the lines go
                unfinished.replace(target)
                lines.unlink()
            except (duckdb.Error, OSError) as error:
                with suppress(OSError):
                    unfinished.unlink()
                raise EvidenceError(
                    f"{lines}: could not be turned into {target.name} ({_first_line(error)}). "
                    "Nothing is lost and the run can be judged as it is; "
                    "free some space or make the directory writable, then try again."
                ) from error


# --- tables ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str  # of DuckDB
    words: tuple[str, ...]  # the closed set of its values; empty: any
    optional: bool
    default: str | None  # SQL literal for a field that was left out


@dataclass(frozen=True, slots=True)
class _Defects:
    notes: tuple[str, ...] = ()
    damage: bool = False
    torn: bool = False  # the last line was not written to its end
    absent: bool = False  # there is no file


def _columns(table: type[Row]) -> list[_Column]:
    hints = get_type_hints(table)
    return [_column(field, hints[field.name]) for field in fields(table)]


def _column(field: Field[Any], hint: Any) -> _Column:
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = (kind for kind in kinds if kind is not types.NoneType)
    words = tuple(str(word) for word in kind) if issubclass(kind, Enum) else ()
    optional = types.NoneType in kinds
    has_default = not optional and field.default is not MISSING
    return _Column(
        name=field.name,
        type=_TYPES[str if words else kind],
        words=words,
        optional=optional,
        default=_text(str(field.default)) if has_default else None,
    )


def _open_table(
    connection: duckdb.DuckDBPyConnection, directory: Path, table: type[Row]
) -> _Defects:
    """Make the table or view; the answer is what was found wrong with it."""
    parquet = directory / f"{table.TABLE}.parquet"
    lines = directory / f"{table.TABLE}.jsonl"
    try:
        # Lines beside a Parquet file are what finish_evidence had no time to remove.
        if parquet.exists():
            return _read_parquet(connection, parquet, table)
        if lines.exists():
            defects = _find_last_lines(connection, lines, table)
            connection.execute(f"CREATE TABLE {table.TABLE} AS {_last_lines(lines, table)}")
            return defects
    except (*_UNREADABLE, OSError) as error:
        if lacks_room(error):
            raise
        path = parquet if parquet.exists() else lines
        raise EvidenceError(
            f"{path}: cannot be read ({_first_line(error)}). Restore it from where the run was "
            "made; without the file the rest can be judged, as incomplete evidence."
        ) from error
    _make_empty(connection, table)
    return _Defects((f"The table {table.TABLE} is missing.",), damage=True, absent=True)


def _unasked(run: RunInfo) -> set[type[Row]]:
    """Tables that this run had nothing to write into, so that none of their rows is missing.

    Else they are as strict as the others: without what the tester did itself a handler would
    be blamed for it, and without the effects none could be found missing.
    """
    asked = {Fault: run.faults, Effect: run.effects}
    return {table for table, rules in asked.items() if not rules}


def _read_parquet(connection: duckdb.DuckDBPyConnection, path: Path, table: type[Row]) -> _Defects:
    source = f"read_parquet({_text(str(path))})"
    present = {row[0] for row in connection.execute(f"DESCRIBE FROM {source}").fetchall()}
    columns, absent = [], []
    for column in _columns(table):
        if column.name in present:
            columns.append(f'"{column.name}"::{column.type} AS "{column.name}"')
        else:
            value = column.default or "NULL"
            columns.append(f'{value}::{column.type} AS "{column.name}"')
            if not column.optional and column.default is None:
                absent.append(column.name)
    if absent:
        _make_empty(connection, table)
        notes = [f"The table {table.TABLE} has no column {name}." for name in absent]
        return _Defects(tuple(notes), damage=True)
    view = f"CREATE OR REPLACE VIEW {table.TABLE} AS SELECT {', '.join(columns)} FROM {source}"
    connection.execute(view)
    if _is_ours(connection, path):
        return _Defects()
    sound, notes = _sound(table), []
    unsound = _count(connection, f"SELECT count(*) FROM {table.TABLE} WHERE NOT ({sound})")
    if unsound:
        connection.execute(f"{view} WHERE {sound}")
        notes.append(f"{path.name}: {unsound} rows could not be read and were left out.")
    doubled = _doubled(connection, table)
    if doubled:
        notes.append(f"{path.name}: {doubled} rows have the key of another row.")
    return _Defects(tuple(notes), damage=bool(notes))


def _mark(rows: int) -> str:
    return f"schema {SCHEMA_VERSION}, {rows} rows"


def _is_ours(connection: duckdb.DuckDBPyConnection, path: Path) -> bool:
    """Whether finish_evidence wrote the file, which saves looking at every value of it again.
    What other programs write has no such mark."""
    file = _text(str(path))
    rows = _count(connection, f"SELECT num_rows FROM parquet_file_metadata({file})")
    marked = f"SELECT count(*) FROM parquet_kv_metadata({file}) WHERE key = {_text(_MARK)}"
    return bool(_count(connection, f"{marked} AND value = {_text(_mark(rows))}::BLOB"))


def _doubled(connection: duckdb.DuckDBPyConnection, table: type[Row]) -> int:
    """Rows with the key of another row. Our files are sorted by key, so neighbours tell."""
    key = _key(table)
    previous = ", ".join(f'lag("{name}") OVER () AS "p_{name}"' for name in table.KEY)
    names = ", ".join(f'"p_{name}"' for name in table.KEY)
    out_of_order = _count(
        connection,
        f"SELECT count(*) FROM (SELECT {key}, {previous} FROM {table.TABLE}) "
        f'WHERE "p_{table.KEY[0]}" IS NOT NULL AND ({key}) <= ({names})',
    )
    if not out_of_order:
        return 0
    return _count(connection, f"SELECT count(*) - count(DISTINCT ({key})) FROM {table.TABLE}")


def _sound(table: type[Row]) -> str:
    """The condition that a row has a value where one must be, and only words of the schema."""
    columns = _columns(table)
    conditions = [f'"{column.name}" IS NOT NULL' for column in columns if not column.optional]
    conditions += [
        f'coalesce("{column.name}" IN ({", ".join(map(_text, column.words))}), true)'
        for column in columns
        if column.words
    ]
    return " AND ".join(conditions)


def _make_empty(connection: duckdb.DuckDBPyConnection, table: type[Row]) -> None:
    definition = ", ".join(f'"{column.name}" {column.type}' for column in _columns(table))
    connection.execute(f"CREATE TABLE {table.TABLE} ({definition})")


def _count(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _find_last_lines(
    connection: duckdb.DuckDBPyConnection, path: Path, table: type[Row]
) -> _Defects:
    """Put the numbers of the lines that count, the last one of each key, into ``last_lines``.

    The file is read twice, once for the keys and once for the rows that count, for reading is
    cheap and no table of all lines has to be held. DuckDB gives a line that it cannot read, or
    a value of another type, as NULL; such a row shows by a NULL where the schema has none.
    """
    connection.execute(
        f"CREATE OR REPLACE TABLE numbered AS SELECT {_key(table)}, line_no, "
        f"{_sound(table)} AS sound FROM ({_lines(path, table)})"
    )
    connection.execute(
        "CREATE OR REPLACE TABLE last_lines AS SELECT max(line_no) AS line_no FROM numbered "
        f"WHERE sound GROUP BY {_key(table)}"
    )
    row = connection.execute(
        "SELECT count(*) FILTER (NOT sound), coalesce(NOT arg_max(sound, line_no), false) "
        "FROM numbered"
    ).fetchone()
    assert row is not None
    unreadable, torn = row[0], row[1] and not _ends_with_newline(path)
    connection.execute("DROP TABLE numbered")
    notes = []
    if unreadable - torn:
        notes.append(f"{path.name}: {unreadable - torn} lines could not be read and were left out.")
    if torn:
        notes.append(f"{path.name}: the last line was not written to its end and was left out.")
    return _Defects(tuple(notes), damage=unreadable > torn, torn=torn)


def _last_lines(path: Path, table: type[Row]) -> str:
    """The rows of the lines in ``last_lines``, as a query.

    Asked as a column, not as a condition: for a condition DuckDB would hold all rows of the
    file in memory and look the numbers up in them, instead of the other way round.
    """
    names = ", ".join(f'"{column.name}"' for column in _columns(table))
    return (
        f"SELECT {names} FROM ("
        f"SELECT *, line_no IN (SELECT line_no FROM last_lines) AS counts "
        f"FROM ({_lines(path, table)})) WHERE counts"
    )


def _lines(path: Path, table: type[Row]) -> str:
    """All lines of a file with their numbers, as a query. It must keep the order of the file."""
    columns = _columns(table)
    read = ", ".join(f"{_text(column.name)}: {_text(column.type)}" for column in columns)
    values = ", ".join(
        f'coalesce("{column.name}", {column.default}::{column.type}) AS "{column.name}"'
        if column.default is not None
        else f'"{column.name}"'
        for column in columns
    )
    return f"""
        SELECT {values}, row_number() OVER () AS line_no
        FROM read_json({_text(str(path))}, format = 'newline_delimited', ignore_errors = true,
            columns = {{{read}}})
    """


def _missing(connection: duckdb.DuckDBPyConnection, child: str, column: str, table: str) -> int:
    """Rows that another table refers to and that are not there. Written before, they must be."""
    return _count(
        connection,
        f"SELECT count(DISTINCT {column}) FROM {child} ANTI JOIN {table} USING ({column}) "
        f"WHERE {column} IS NOT NULL",
    )


def _key(table: type[Row]) -> str:
    return ", ".join(f'"{name}"' for name in table.KEY)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"


# --- what run.json says about the store -----------------------------------------------


def _name_kinds(connection: duckdb.DuckDBPyConnection, tables: Sequence[TableInfo]) -> None:
    """Let the rows of ``call_items`` and ``items`` name the kind of their item, where their table
    holds several."""
    cases = ""
    for table in tables:
        for kind, named in zip(table.items, apart([table]), strict=False):
            forms = ((table.key, kind.key), (table.sort, kind.sort))
            fits = "".join(
                f" AND regexp_matches({_value('item_key', name)}, {_text(pattern_of(form))})"
                for name, form in forms
                if name is not None and form is not None
            )
            cases += f" WHEN resource = {_text(table.name)}{fits} THEN {_text(named.name)}"
        if table.items:
            rest = apart([table])[-1].name
            cases += f" WHEN resource = {_text(table.name)} THEN {_text(rest)}"
    for row in (CallItem, ItemRow) if cases else ():
        # Already there as a table or as a view.
        recorded = f"recorded_{row.TABLE}"
        views = f"SELECT count(*) FROM duckdb_views() WHERE view_name = {_text(row.TABLE)}"
        what = "VIEW" if _count(connection, views) else "TABLE"
        connection.execute(f"ALTER {what} {row.TABLE} RENAME TO {recorded}")
        connection.execute(
            f"CREATE VIEW {row.TABLE} AS SELECT * REPLACE "
            f"(CASE{cases} ELSE resource END AS resource) FROM {recorded}"
        )


def _describe_store(connection: duckdb.DuckDBPyConnection, run: RunInfo) -> None:
    connection.execute("""
        CREATE TABLE run_tables
            (resource VARCHAR, role VARCHAR, "key" VARCHAR, sort VARCHAR, claims BOOLEAN)
    """)
    for table in run.tables:
        connection.execute(
            "INSERT INTO run_tables VALUES (?, ?, ?, ?, ?)",
            (table.name, str(table.role), table.key, table.sort, bool(table.complete_when)),
        )
    connection.execute("CREATE TABLE run_effects (effect BIGINT, name VARCHAR)")
    for number, effect in enumerate(run.effects, 1):
        connection.execute("INSERT INTO run_effects VALUES (?, ?)", (number, effect.name))
    numeric = any(t.key_type == "N" for t in run.tables if t.role is TableRole.ORDERS)
    keys = {
        name
        for table in run.tables
        if table.role is TableRole.ORDERS
        for name in (table.key, table.sort)
    }
    parts = ", ".join(
        f"{_text(msgspec.json.encode(name).decode() + ':')} || {_member('item', name)}"
        for name in sorted(set(run.order.attributes.values()) - keys)
    )
    key_attribute = run.order.attributes.get(run.order.key, run.order.key)
    macros = {
        "details(item)": f"CASE WHEN item <> {_text(NO_ITEM)} "
        f"THEN '{{' || concat_ws(',', {parts or 'NULL'}) || '}}' END",
        "item_order_key(item)": _value("item", key_attribute),
        "key_text(resource, item_key)": _by_table(
            run, {table.name: _key_text(table) for table in run.tables}
        ),
        "sort_text(resource, item_key)": _by_table(
            run,
            {
                table.name: _value("item_key", table.sort)
                for table in run.tables
                if table.sort and not any(map(_bears_id, table.items))
            },
        ),
        "complete(resource, item)": f"coalesce(item <> {_text(NO_ITEM)} AND "
        + _by_table(run, {table.name: _is_complete(table) for table in run.tables}, "true")
        + ", false)",
        "same_key(text)": _NUMBER_SPELLING if numeric else "text",
        "differing_fields(answer, item)": _differing_fields(run.order, run.tables),
    }
    for signature, body in macros.items():
        connection.execute(f"CREATE MACRO {signature} AS {body}")


def _by_table(run: RunInfo, expressions: dict[str, str], otherwise: str = "NULL") -> str:
    cases = " ".join(f"WHEN {_text(name)} THEN {body}" for name, body in expressions.items())
    return f"(CASE resource {cases} ELSE {otherwise} END)" if cases else otherwise


def _bears_id(kind: ItemsInfo) -> bool:
    return ORDER_ID in (kind.key or "") or ORDER_ID in (kind.sort or "")


def _key_text(table: TableInfo) -> str:
    for kind in table.items:
        for name, form in ((table.key, kind.key), (table.sort, kind.sort)):
            if name is not None and ORDER_ID in (form or ""):
                text = _value("item_key", name)
                return f"nullif(regexp_extract({text}, {_text(pattern_of(form or ''))}, 1), '')"
    return _value("item_key", table.key)


def _is_complete(table: TableInfo) -> str:
    conditions = [
        f"{_value('item', name)} IN ({', '.join(map(_text, texts)) or 'NULL'})"
        for name, texts in table.complete_when.items()
    ]
    return " AND ".join(conditions) or "true"


def _differing_fields(order: OrderInfo, tables: Sequence[TableInfo]) -> str:
    """Numbers are compared as numbers, also where a text holds one: many encoders do that.

    An answer may name a field by its path from the object that the order's key is in.
    """
    within = order.key.rpartition(".")[0] + "."
    fields_found, agreements = [], []
    for name, attribute in order.attributes.items():
        pointers = [_pointer(name)]
        if "." in name:
            pointers += [_pointer(*name.split(".")), _pointer(name.removeprefix(within))]
        stored = _value("item", attribute)
        if name == order.key:
            stored = _id_within(stored, attribute, tables)
        kind, given = (
            _first([f"{function}(answer, {pointer})" for pointer in dict.fromkeys(pointers)])
            for function in ("json_type", "json_extract_string")
        )
        agreements.append(f"coalesce({given} = {stored}, true)")
        fields_found.append(
            f"CASE WHEN {kind} NOT IN ('NULL', 'OBJECT', 'ARRAY') "
            f"AND {given} <> {stored} "
            f"AND coalesce(TRY_CAST({given} AS DOUBLE) <> TRY_CAST({stored} AS DOUBLE), true) "
            f"THEN {_text(name)} END"
        )
    listed = f"list_filter([{', '.join(fields_found)}], lambda name: name IS NOT NULL)"
    # Nearly all answers say just what is stored, which is quicker to see.
    same = " AND ".join(agreements) or "true"
    return f"CASE WHEN NOT json_valid(answer) THEN [] WHEN {same} THEN [] ELSE {listed} END"


def _id_within(value: str, attribute: str, tables: Sequence[TableInfo]) -> str:
    """The order's id in the attribute that holds it, where its key has a form."""
    for table in tables:
        for kind in table.items if table.role is TableRole.ORDERS else ():
            form = {table.key: kind.key, table.sort: kind.sort}.get(attribute)
            if form is not None and ORDER_ID in form:
                extracted = f"regexp_extract({value}, {_text(pattern_of(form))}, 1)"
                return f"coalesce(nullif({extracted}, ''), {value})"
    return value


def _places(name: str) -> list[tuple[str, ...]]:
    """Where an attribute may be in an item: by its name, and by its path through maps."""
    if "." not in name:
        return [(name,)]
    first, *others = name.split(".")
    steps = [("L" if part.isdigit() else "M", part) for part in others]
    return [(name,), (first, *(part for step in steps for part in step))]


def _member(item: str, name: str) -> str:
    """One attribute of an item as JSON text."""
    found = [f"json_extract({item}, {_pointer(*place)})" for place in _places(name)]
    return f"{_first(found)}::VARCHAR"


def _value(item: str, name: str) -> str:
    """The text of one scalar attribute: a string, a number, decoded bytes or a boolean."""
    texts = []
    for place in _places(name):
        text, number, boolean, binary = (
            f"json_extract_string({item}, {_pointer(*place, kind)})"
            for kind in ("S", "N", "BOOL", "B")
        )
        texts += [text, number, boolean, f"TRY(decode(from_base64({binary})))"]
    return _first(texts)


def _first(expressions: Sequence[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"coalesce({', '.join(expressions)})"


def _pointer(*names: str) -> str:
    """A JSON pointer (RFC 6901) as an SQL string literal."""
    return _text("".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names))


def _text(value: str) -> str:
    """A value as an SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
