"""The planted bugs: that they are what they say, and ``loadtest mutants``."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from analysis.findings import FindingKind
from loadtest import mutants
from loadtest.mutants import chosen, settings_for
from loadtest.planted import CODE, PLANTED, BugKind, Planted
from tests.cli import loadtest

MODULES = {path.stem: ast.parse(path.read_text()) for path in CODE.glob("[!_]*.py")}
each = pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)


def test_every_module_is_registered_once() -> None:
    assert sorted(MODULES) == sorted(bug.name for bug in PLANTED)


def test_every_kind_is_covered() -> None:
    assert {bug.kind for bug in PLANTED} == set(BugKind)


@each
def test_a_bug_has_a_twin_and_names_its_reports(bug: Planted) -> None:
    module = MODULES[bug.name]
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert {"handler", "correct"} <= functions
    text = ast.get_docstring(module) or ""
    assert text.startswith(f"Planted bug ({bug.kind}): ")
    told = text.partition("Reports: ")[2]
    assert tuple(re.findall(r"\b[A-Z]\d{1,2}\b(?= )", " ".join(told.split()))) == tuple(
        sorted(bug.reports, key=told.index)
    )
    assert len(bug.reports) > 0


@each
def test_what_is_expected_is_a_kind_of_finding(bug: Planted) -> None:
    assert bug.expected
    assert set(bug.expected) <= {str(kind) for kind in FindingKind}


@each
@pytest.mark.parametrize("function", ["handler", "correct"])
def test_settings_are_valid(bug: Planted, function: str) -> None:
    settings = settings_for(bug, function, seed=5)
    assert settings.handler.handler == f"{bug.name}.{function}"
    assert settings.load.seed == 5
    messages = settings.load.orders * settings.load.copies
    assert messages <= 96, "every finding of a small flood is listed, so the first is among them"


def test_bugs_are_chosen_by_name() -> None:
    assert chosen(()) == PLANTED
    assert [bug.name for bug in chosen(["stale_read", "fresh_key"])] == ["fresh_key", "stale_read"]


def test_an_unknown_name_is_wrong_use(tmp_path: Path) -> None:
    end = loadtest("mutants", "--only", "read_than_write", cwd=tmp_path)
    assert end.code == 2
    assert "did you mean read_then_write?" in end.said


def test_bugs_are_caught_and_twins_left_alone(tmp_path: Path) -> None:
    names = ("unconditional", "stale_read")
    only = [word for name in names for word in ("--only", name)]
    end = loadtest("mutants", *only, "--seed", "3", "--json", cwd=tmp_path)
    assert end.code == 0, end.err
    matrix = json.loads(end.out)
    assert (matrix["seed"], matrix["caught"], matrix["missed"], matrix["blamed"]) == (3, 2, [], [])
    found = {outcome["name"]: outcome for outcome in matrix["outcomes"]}
    assert set(found) == set(names)
    caught = found["unconditional"]
    assert caught["expected"] == ["overwrite", "conflict-acknowledged"]
    assert set(caught["expected"]) <= set(caught["bug"]["reported"])
    assert caught["bug"]["messages"] == 108
    assert 0 < caught["bug"]["first_finding_after"] < 108, "long before the end"
    assert (caught["twin"]["verdict"], caught["twin"]["reported"]) == ("PASS", {})
    assert caught["without"] is None, "it needs no fault"
    assert set(caught["explored"]["reported"]) >= {"overwrite"}, "two copies show it"
    explored = caught["explored_twin"]
    assert (explored["clean"], explored["copies"], explored["faults"]) == (True, 2, [])
    assert explored["interleavings"] > 0
    assert found["stale_read"]["faults"] == ["stale-read"]
    assert "overwrite" in found["stale_read"]["bug"]["reported"]
    assert found["stale_read"]["without"]["reported"] == {}, "hidden without the fault"
    assert matrix["found_without"] == []
    assert "unconditional: overwrite" in end.err, "progress, beside the JSON"
    assert list((tmp_path / "runs").iterdir()) == [], "only what went wrong is kept"


def test_a_miss_and_a_blamed_twin_end_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    swapped = (CODE / "unconditional.py").read_text()
    swapped = swapped.replace("def handler(", "def wrong(").replace("def correct(", "def handler(")
    (tmp_path / "src" / "swapped.py").write_text(swapped.replace("def wrong(", "def correct("))
    load = {"orders": 5, "conflicts": 0.0, "poison": 0.0, "concurrency": 2}
    bug = Planted("swapped", BugKind.GUARD, ("G1",), ("overwrite",), settings={"load": load})
    monkeypatch.setattr(mutants, "PLANTED", (bug, *chosen(["request_token"])))
    monkeypatch.setattr(mutants, "CODE", tmp_path / "src")
    end = loadtest("mutants", cwd=tmp_path)
    assert end.code == 1, end.err
    assert "swapped: MISSED, expected overwrite, reported nothing, twin BLAMED: over" in end.said
    assert "✗ no overwrite" in end.said
    assert "request_token needs clock overwrite" in end.said
    assert "0 of 1 bugs caught, 1 correct twins blamed" in end.said
    kept = sorted((tmp_path / "runs").iterdir())
    assert len(kept) == 2
    for run_dir in kept:
        assert f"runs/{run_dir.name}" in end.said
        assert (run_dir / "report.html").exists()
