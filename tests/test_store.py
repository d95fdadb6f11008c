"""The evidence store: lines and Parquet say the same, and damage is named, not guessed at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from analysis.errors import EvidenceError
from analysis.schema import (
    NO_ITEM,
    TABLES,
    OrderInfo,
    RunStatus,
    TableInfo,
    TableRole,
    item_text,
    typed_value,
)
from analysis.store import Evidence, finish_evidence, load_run, open_evidence
from tests.histories import RUN, write_history
from tests.sample_run import Sample, write_run

HISTORY = "1<A4 1.  2<A4 1+ 2- 1>p 2>d 3<X! 3>f"


def contents(run_dir: Path) -> dict[str, list[dict[str, object]]]:
    with open_evidence(run_dir) as evidence:
        assert evidence.complete
        return {
            table.TABLE: evidence.rows(
                f"FROM {table.TABLE} ORDER BY " + ", ".join(f'"{name}"' for name in table.KEY)
            )
            for table in TABLES
        }


def opened(run_dir: Path, ask: Callable[[Evidence], object]) -> object:
    with open_evidence(run_dir) as evidence:
        return ask(evidence)


def rows_of(run_dir: Path, sql: str) -> list[dict[str, Any]]:
    with open_evidence(run_dir) as evidence:
        return evidence.rows(sql)


def lines(run_dir: Path, table: str) -> Path:
    return run_dir / "evidence" / f"{table}.jsonl"


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


# --- reading --------------------------------------------------------------------------


def test_finished_evidence_says_the_same_as_its_lines(tmp_path: Path) -> None:
    write_run(tmp_path, Sample(orders=20))
    before = contents(tmp_path)
    finish_evidence(tmp_path)
    assert not list((tmp_path / "evidence").glob("*.jsonl"))
    assert {path.stem for path in (tmp_path / "evidence").iterdir()} == {t.TABLE for t in TABLES}
    assert contents(tmp_path) == before
    assert len(before["calls"]) > 100


def test_parquet_counts_where_the_lines_could_not_be_removed_in_time(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    before = contents(tmp_path)
    finish_evidence(tmp_path)
    lines(tmp_path, "calls").write_bytes(b'{"call_id": 77}\n')
    assert contents(tmp_path) == before


def test_the_last_line_of_a_key_counts(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    row = opened(tmp_path, lambda e: e.rows("FROM invocations WHERE invocation_id = 1")[0])
    assert isinstance(row, dict)
    append(lines(tmp_path, "invocations"), msgspec.json.encode(row | {"ended_at": 99}) + b"\n")
    assert opened(tmp_path, lambda e: e.scalar("SELECT count(*) FROM invocations")) == 3
    assert (
        opened(
            tmp_path,
            lambda e: e.scalar("SELECT ended_at FROM invocations WHERE invocation_id = 1"),
        )
        == 99
    )


def test_the_last_line_counts_however_long_the_file_is(tmp_path: Path) -> None:
    write_history(tmp_path, "")
    keys, versions = 100_000, 8  # more than DuckDB gives to one thread
    lines(tmp_path, "acks").write_text(
        "".join(
            f'{{"delivery_id":{key},"acked_at":{version * keys + key},"outcome":"deleted"}}\n'
            for version in range(versions)
            for key in range(keys)
        )
    )
    expected = [(keys, (versions - 1) * keys, versions * keys - 1)]
    count = "SELECT count(*) AS n, min(acked_at) AS first, max(acked_at) AS last FROM acks"
    assert [tuple(row.values()) for row in rows_of(tmp_path, count)] == expected
    finish_evidence(tmp_path)
    assert [tuple(row.values()) for row in rows_of(tmp_path, count)] == expected


def test_types_come_from_the_schema_even_where_all_values_are_missing(tmp_path: Path) -> None:
    write_history(tmp_path, "")
    types = opened(
        tmp_path,
        lambda e: {
            row["column_name"]: row["column_type"] for row in e.rows("DESCRIBE FROM invocations")
        },
    )
    assert types == {
        "invocation_id": "BIGINT",
        "request_id": "VARCHAR",
        "environment": "BIGINT",
        "cold": "BOOLEAN",
        "started_at": "BIGINT",
        "ended_at": "BIGINT",
        "outcome": "VARCHAR",
        "response": "VARCHAR",
        "error_type": "VARCHAR",
        "error_message": "VARCHAR",
    }


def test_parameters_and_empty_answers(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    with open_evidence(tmp_path) as evidence:
        sql = "SELECT order_key FROM messages WHERE message_no = "
        assert evidence.rows(sql + "?", [1]) == [{"order_key": "A"}]
        assert evidence.scalar(sql + "$number", {"number": 3}) == "X!"
        assert evidence.scalar(sql + "9") is None


# --- damage ---------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_and_noted(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    before = contents(tmp_path)
    append(lines(tmp_path, "acks"), b'{"delivery_id": 9, "acked_at": 1')
    with open_evidence(tmp_path) as evidence:
        assert evidence.notes == (
            "acks.jsonl: the last line was not written to its end and was left out.",
        )
        assert not evidence.complete
        # The run came to its end, so there was more after that line.
        assert evidence.damaged == {"acks"}
        assert evidence.rows("FROM acks ORDER BY delivery_id") == before["acks"]


def test_a_torn_last_line_of_a_killed_run_is_no_damage(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY, replace(RUN, status=RunStatus.RUNNING))
    append(lines(tmp_path, "acks"), b'{"delivery_id": 9, "acked_at": 1')
    with open_evidence(tmp_path) as evidence:
        assert not evidence.complete
        assert not evidence.damaged


@pytest.mark.parametrize(
    ("table", "child"),
    [
        ("messages", "deliveries"),
        ("deliveries", "acks"),
        ("invocations", "calls"),
        ("calls", "call_items"),
    ],
)
def test_rows_that_others_refer_to_are_missed(tmp_path: Path, table: str, child: str) -> None:
    write_history(tmp_path, HISTORY)
    lines(tmp_path, table).write_bytes(b"")
    with open_evidence(tmp_path) as evidence:
        assert any(f"that {child} refers to are missing" in note for note in evidence.notes)
        assert table in evidence.damaged


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("FROM {} UNION ALL (FROM {} LIMIT 1)", "1 rows have the key of another row"),
        (
            "SELECT * REPLACE ('maybe' AS decision) FROM {}",
            "rows could not be read and were left out",
        ),
        ("SELECT * REPLACE (NULL AS sent_at) FROM {}", "rows could not be read and were left out"),
    ],
)
def test_a_parquet_file_that_is_not_ours(tmp_path: Path, query: str, words: str) -> None:
    write_history(tmp_path, HISTORY)
    finish_evidence(tmp_path)
    path = tmp_path / "evidence" / "calls.parquet"
    changed = path.with_suffix(".changed")
    duckdb.sql(f"COPY ({query.replace('{}', repr(str(path)))}) TO '{changed}' (FORMAT parquet)")
    changed.replace(path)
    with open_evidence(tmp_path) as evidence:
        assert any(words in note for note in evidence.notes)
        assert evidence.damaged == {"calls"}


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish",
        b"\x00\x00\x00",
        b'{"delivery_id": 9, "acked_at": 1, "outcome": "eaten"}',
        b'{"delivery_id": 9, "acked_at": null, "outcome": "deleted"}',
        b'{"delivery_id": "nine", "acked_at": 1, "outcome": "deleted"}',
        b'{"delivery_id": 9, "acked_at": 1, "outcome": "\xff\xfe"}',
        b'["a", "list"]',
    ],
)
def test_an_unreadable_line_is_counted_and_left_out(tmp_path: Path, line: bytes) -> None:
    write_history(tmp_path, HISTORY)
    before = contents(tmp_path)
    path = lines(tmp_path, "acks")
    path.write_bytes(line + b"\n" + path.read_bytes())
    with open_evidence(tmp_path) as evidence:
        assert evidence.notes == ("acks.jsonl: 1 lines could not be read and were left out.",)
        assert evidence.damaged == {"acks"}
        assert evidence.rows("FROM acks ORDER BY delivery_id") == before["acks"]


def test_a_missing_table_is_empty_and_noted(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    lines(tmp_path, "queue_samples").unlink()
    with open_evidence(tmp_path) as evidence:
        assert evidence.notes == ("The table queue_samples is missing.",)
        assert evidence.damaged == {"queue_samples"}
        assert evidence.rows("FROM queue_samples") == []


def test_a_later_schema_may_add_fields_and_columns(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    path = lines(tmp_path, "acks")
    path.write_bytes(path.read_bytes().replace(b'{"', b'{"new":{"a":[1]},"'))
    run_file = tmp_path / "run.json"
    run_file.write_bytes(run_file.read_bytes().replace(b"{", b'{"new":1,', 1))
    assert contents(tmp_path)["acks"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Give the directory of a run"),
        (b"{", "is not the run.json of a run"),
        (b'{"run_id": 5}', "is not the run.json of a run"),
        (
            msgspec.json.encode(replace(RUN, schema_version=99, tool_version="7.1")),
            "schema version 99.*7.1",
        ),
    ],
)
def test_a_directory_that_is_no_run(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(EvidenceError, match=words):
        load_run(tmp_path)


def test_a_parquet_file_that_was_cut_off(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    finish_evidence(tmp_path)
    path = tmp_path / "evidence" / "calls.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(EvidenceError, match=r"calls\.parquet: cannot be read"):
        opened(tmp_path, lambda e: None)


# --- finishing ------------------------------------------------------------------------


def test_lines_stay_where_they_cannot_be_turned_into_parquet(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    before = contents(tmp_path)
    (tmp_path / "evidence" / "calls.parquet.tmp").mkdir()  # in the way of the new file
    with pytest.raises(EvidenceError, match=r"calls\.jsonl: could not be turned into"):
        finish_evidence(tmp_path)
    (tmp_path / "evidence" / "calls.parquet.tmp").rmdir()
    assert contents(tmp_path) == before
    finish_evidence(tmp_path)
    assert contents(tmp_path) == before


def test_damaged_lines_are_kept_as_they_are(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    append(lines(tmp_path, "acks"), b"rubbish\n")
    finish_evidence(tmp_path)
    assert [path.name for path in (tmp_path / "evidence").glob("*.jsonl")] == ["acks.jsonl"]
    with open_evidence(tmp_path) as evidence:
        assert evidence.damaged == {"acks"}


def test_finishing_twice_changes_nothing(tmp_path: Path) -> None:
    write_history(tmp_path, HISTORY)
    finish_evidence(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "evidence").iterdir()}
    finish_evidence(tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "evidence").iterdir()} == before


# --- what run.json says about the store -----------------------------------------------

AWKWARD = "a/b~\"'"
ORDER = OrderInfo("ref", {"ref": "ref", "quantity": "n", "note": AWKWARD})
TABLES_OF_ALL_KINDS = (
    TableInfo("orders", TableRole.ORDERS, "pk", complete_when={"status": ["DONE", "SENT"]}),
    TableInfo("numbers", TableRole.ORDERS, "pk", key_type="N", sort="sk"),
    TableInfo("bytes", TableRole.ORDERS, "pk", key_type="B"),
)


def evaluate(run_dir: Path, expression: str, **values: object) -> object:
    run = replace(RUN, order=ORDER, tables=TABLES_OF_ALL_KINDS)
    write_history(run_dir, "", run)
    return opened(run_dir, lambda e: e.scalar(f"SELECT {expression}", values))


def item(**attributes: object) -> str:
    names = {"awkward": AWKWARD}
    return item_text({names.get(k, k): typed_value(v) for k, v in attributes.items()})


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (item(ref="a", n=4), item(ref="a", n=4.0, total=5, pk="x"), True),
        (item(ref="a", n=4), item(ref="a", n=5), False),
        (item(ref="a", n=4), item(ref="b", n=4), False),
        (item(ref="a", n=4), item(ref="a", n="4"), False),
        (item(ref="a", n=None), item(ref="a"), False),
        (item(ref="a", awkward="é\n\u001f/\\"), item(ref="a", awkward="é\n\u001f/\\"), True),
        (item(ref="a", awkward="é"), item(ref="a", awkward="e"), False),
        (item(ref="a", n={"b": 1, "a": [1, 2]}), item(ref="a", n={"a": [1, 2], "b": 1.0}), True),
        (item(ref="a", n=[1, 2]), item(ref="a", n=[2, 1]), False),
        (item(ref="a"), NO_ITEM, None),
    ],
)
def test_details_are_equal_exactly_when_the_orders_fields_are(
    tmp_path: Path, one: str, other: str, equal: bool | None
) -> None:
    found = evaluate(tmp_path, "details($one) = details($other)", one=one, other=other)
    assert found is equal


def test_the_tables_key_is_no_detail(tmp_path: Path) -> None:
    write_history(tmp_path, "")
    one, other = item(id="A", quantity=4), item(id="ORDER#A", quantity=4)
    assert opened(tmp_path, lambda e: e.scalar("SELECT details(?) = details(?)", [one, other]))


@pytest.mark.parametrize(
    ("resource", "text", "complete"),
    [
        ("orders", item(pk="a", status="DONE"), True),
        ("orders", item(pk="a", status="CLAIMED"), False),
        ("orders", item(pk="a"), False),
        ("numbers", item(pk=1), True),
        ("numbers", NO_ITEM, False),
        ("numbers", None, False),
    ],
)
def test_complete(tmp_path: Path, resource: str, text: str | None, complete: bool) -> None:
    found = evaluate(tmp_path, "complete($resource, $item)", resource=resource, item=text)
    assert found is complete


@pytest.mark.parametrize(
    ("resource", "key", "partition", "sort"),
    [
        ("orders", item(pk="A'b"), "A'b", None),
        ("numbers", item(pk=7, sk="x"), "7", "x"),
        ("bytes", item(pk=b"order-1"), "order-1", None),
        ("bytes", item(pk=b"\xff\xfe"), None, None),
        ("elsewhere", item(pk="a"), None, None),
    ],
)
def test_keys_as_text(
    tmp_path: Path, resource: str, key: str, partition: str | None, sort: str | None
) -> None:
    assert evaluate(
        tmp_path,
        "[key_text($resource, $key), sort_text($resource, $key)]",
        resource=resource,
        key=key,
    ) == [partition, sort]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        ('{"ref": "a", "quantity": 4, "note": "n"}', []),
        ('{"ref": "a", "quantity": 4.0, "other": 5}', []),
        ('{"ref": "a", "quantity": "4"}', []),
        ('{"quantity": null}', []),
        ('{"quantity": 5}', ["quantity"]),
        ('{"ref": "b", "quantity": 5}', ["ref", "quantity"]),
        ('{"note": "m"}', ["note"]),
        ("{}", []),
        ('{"ref": "b", "cut off', []),
    ],
)
def test_differing_fields(tmp_path: Path, answer: str, fields: list[str]) -> None:
    stored = item(ref="a", n=4, awkward="n")
    found = evaluate(tmp_path, "differing_fields($a, $s)", a=answer, s=stored)
    assert found == fields


def test_a_run_has_ended_when_its_tables_were_read_again(tmp_path: Path) -> None:
    for status, ended in [
        (RunStatus.FINISHED, True),
        (RunStatus.INTERRUPTED, True),
        (RunStatus.NOT_DRAINED, True),
        (RunStatus.RUNNING, False),
        (RunStatus.FAILED, False),
    ]:
        run_dir = tmp_path / status
        write_history(run_dir, "1<A4 1+ 1>p", replace(RUN, status=status))
        assert opened(run_dir, lambda e: e.ended) is ended
    lines(tmp_path / RunStatus.INTERRUPTED, "items").write_bytes(b"")
    assert opened(tmp_path / RunStatus.INTERRUPTED, lambda e: e.ended) is False
