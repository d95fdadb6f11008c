"""Evidence that is damaged, foreign or from another version: said clearly, never PASS.

Whatever is done to the files, judging ends with a verdict or an EvidenceError. One loss leaves
no trace: lines that are missing at the end of a file of lines, the cut falling between two of
them, where no other row refers to them. A finished run keeps Parquet, which has its end marked.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import EvidenceError
from analysis.findings import Verdict, VerdictWord
from analysis.schema import SCHEMA_VERSION, TABLES, RunStatus
from analysis.store import finish_evidence
from analysis.verdict import judge, write_verdict
from tests.histories import EFFECTS, RUN, write_history

HISTORY = (
    "send#B3 1<A4 2<A4 1.&2. 1+&2- 1@sns/effect 1>p 2>d 3<A5 3- 3>f dlq#4 "
    "4<#1 4?/did/fault 4>timeout 5<#1 5- 5@sns/effect 5>d 6<X! 6>f dlq#5"
)
SOUND_RUN = replace(RUN, effects=EFFECTS)
# Without them a run says the same: how it went in between, and how it felt.
OPTIONAL = ("queue_samples",)
NAMES = [table.TABLE for table in TABLES if table.TABLE not in OPTIONAL]
KINDS = ("jsonl", "parquet")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories that pass, one of each kind of file."""
    directory = tmp_path_factory.mktemp("sound")
    for kind in KINDS:
        run_dir = write_history(directory / kind, HISTORY, SOUND_RUN)
        if kind == "parquet":
            finish_evidence(run_dir)
        assert judge(run_dir).verdict is VerdictWord.PASS
    return directory


@contextmanager
def copied(run_dir: Path) -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(shutil.copytree(run_dir, Path(directory) / "run"))


def outcome(run_dir: Path) -> Verdict | EvidenceError:
    """Nothing else may come of it; the verdict can be written, and its reasons say something."""
    try:
        verdict = judge(run_dir)
    except EvidenceError as error:
        return error
    write_verdict(run_dir, verdict)
    assert bool(verdict.reasons) is (verdict.verdict is not VerdictWord.PASS)
    return verdict


def is_pass(result: Verdict | EvidenceError) -> bool:
    return isinstance(result, Verdict) and result.verdict is VerdictWord.PASS


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@settings(max_examples=8, deadline=None)
@given(table=st.sampled_from(NAMES), kind=st.sampled_from(KINDS), at=st.floats(0, 1))
def test_a_file_cut_off_anywhere(sound: Path, table: str, kind: str, at: float) -> None:
    with copied(sound / kind) as run_dir:
        path = run_dir / "evidence" / f"{table}.{kind}"
        content = path.read_bytes()
        kept = content[: int(at * len(content))]
        path.write_bytes(kept)
        result = outcome(run_dir)
        at_a_line_end = b"\n" in content[max(0, len(kept) - 1) : len(kept) + 1] or not kept
        whole = kept == content or (kind == "jsonl" and at_a_line_end)
        assert not is_pass(result) or whole
        if not whole and isinstance(result, Verdict):
            assert result.verdict is VerdictWord.INCONCLUSIVE, result.reasons
            assert any(table in note for note in result.notes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", NAMES)
def test_a_table_that_is_missing(sound: Path, table: str, kind: str) -> None:
    with copied(sound / kind) as run_dir:
        (run_dir / "evidence" / f"{table}.{kind}").unlink()
        result = outcome(run_dir)
        assert isinstance(result, Verdict)
        assert result.verdict is VerdictWord.INCONCLUSIVE, result.reasons
        assert f"The table {table} is missing." in result.notes


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just("{"),
    st.just("[]"),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


def is_number(value: object) -> bool:
    try:
        return math.isfinite(float(str(value).lower().replace("true", "1").replace("false", "0")))
    except ValueError:
        return False


@settings(max_examples=8, deadline=None)
@given(data=st.data(), table=st.sampled_from(TABLES[:-1]))
def test_lines_with_other_values(sound: Path, data: st.DataObject, table: Any) -> None:
    """A value that the schema does not allow, in a row that says something."""
    with copied(sound / "jsonl") as run_dir:
        path = run_dir / "evidence" / f"{table.TABLE}.jsonl"
        rows = rows_of(path)
        row = data.draw(st.sampled_from(rows))
        field = data.draw(st.sampled_from(fields(table)))
        row[field.name] = data.draw(VALUES)
        path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in rows))
        result = outcome(run_dir)
        try:
            msgspec.json.decode(json.dumps(row), type=table)
        except (msgspec.DecodeError, UnicodeEncodeError):
            # Text, truth values and numbers are made of what can be read as one; where a
            # value may be missing, a wrong one is missing.
            kind = str(field.type)
            lenient = "None" in kind or field.default is not MISSING
            readable = kind in ("str", "bool") or (kind == "int" and is_number(row[field.name]))
            assert lenient or readable or not is_pass(result)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), table=st.sampled_from(TABLES[:-1]))
def test_parquet_with_other_columns(sound: Path, data: st.DataObject, table: Any) -> None:
    with copied(sound / "parquet") as run_dir:
        path = run_dir / "evidence" / f"{table.TABLE}.parquet"
        field = data.draw(st.sampled_from(fields(table)))
        name, required = field.name, "None" not in str(field.type)
        change, harmless = data.draw(
            st.sampled_from(
                [
                    ('SELECT *, 1 AS "added" FROM {}', True),
                    (
                        f'SELECT * EXCLUDE ("{name}") FROM {{}}',
                        not required or field.default is not MISSING,
                    ),
                    (f'SELECT * REPLACE (NULL::VARCHAR AS "{name}") FROM {{}}', not required),
                    (f"SELECT * REPLACE ('other' AS \"{name}\") FROM {{}}", None),
                    (f'SELECT * REPLACE ([1, 2] AS "{name}") FROM {{}}', None),
                    ("SELECT 1 AS nothing", False),
                    ("FROM {} UNION ALL FROM {}", False),
                ]
            )
        )
        changed = path.with_suffix(".changed")
        query = change.replace("{}", f"'{path}'")
        duckdb.sql(f"COPY ({query}) TO '{changed}' (FORMAT parquet)")
        changed.replace(path)
        result = outcome(run_dir)
        assert harmless is not False or not is_pass(result)


@settings(max_examples=8, deadline=None)
@given(
    table=st.sampled_from(NAMES),
    kind=st.sampled_from(KINDS),
    content=st.sampled_from([b"\x00" * 100, b"PAR1", b"not json\n", b"\xff\xfe\n", b"[]\n"]),
)
def test_rubbish_instead_of_a_table(sound: Path, table: str, kind: str, content: bytes) -> None:
    with copied(sound / kind) as run_dir:
        (run_dir / "evidence" / f"{table}.{kind}").write_bytes(content)
        assert not is_pass(outcome(run_dir))


@settings(max_examples=8, deadline=None)
@given(
    table=st.sampled_from(("deliveries", "invocations", "calls", "acks", "messages")),
    shift=st.integers(-(2**62), 2**62),
    only=st.booleans(),
)
def test_times_out_of_order(sound: Path, table: str, shift: int, only: bool) -> None:
    """Any verdict may come of it; nothing breaks."""
    with copied(sound / "jsonl") as run_dir:
        path = run_dir / "evidence" / f"{table}.jsonl"
        rows = rows_of(path)
        for row in rows[:1] if only else rows:
            for name, value in row.items():
                if name.endswith("_at") and value is not None:
                    row[name] = value + shift
        path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        outcome(run_dir)


@settings(max_examples=8, deadline=None)
@given(content=st.one_of(st.binary(max_size=50), st.text(max_size=20).map(str.encode)))
def test_rubbish_instead_of_run_json(sound: Path, content: bytes) -> None:
    with copied(sound / "parquet") as run_dir:
        (run_dir / "run.json").write_bytes(content)
        result = outcome(run_dir)
        assert isinstance(result, EvidenceError)
        assert "run.json" in str(result)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_run_json_with_other_values(sound: Path, data: st.DataObject) -> None:
    with copied(sound / "parquet") as run_dir:
        path = run_dir / "run.json"
        run = json.loads(path.read_bytes())
        part = data.draw(st.sampled_from([run, run["plan"], run["expect"], run["tables"][0]]))
        name = data.draw(st.sampled_from(sorted(part)))
        if data.draw(st.booleans()):
            del part[name]
        else:
            part[name] = data.draw(VALUES)
        path.write_text(json.dumps(run))
        outcome(run_dir)


def test_run_json_cut_off_anywhere(sound: Path) -> None:
    with copied(sound / "parquet") as run_dir:
        path = run_dir / "run.json"
        content = path.read_bytes()
        for end in range(0, len(content) - 1, 7):
            path.write_bytes(content[:end])
            assert isinstance(outcome(run_dir), EvidenceError)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 2**40])
def test_another_schema_version(tmp_path: Path, version: int) -> None:
    write_history(tmp_path, HISTORY, replace(RUN, schema_version=version, tool_version="9.1"))
    with pytest.raises(EvidenceError, match=rf"version {version}.*made it: 9\.1"):
        judge(tmp_path)


@pytest.mark.parametrize("status", [s for s in RunStatus if s is not RunStatus.FINISHED])
def test_a_run_that_did_not_finish_never_passes(tmp_path: Path, status: RunStatus) -> None:
    verdict = judge(write_history(tmp_path, HISTORY, replace(RUN, status=status)))
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
