"""Does a test go red when a check is broken? Mutation testing of the SQL in ``analysis/sql``.

    python -m benchmarks.mutation [--only NAME ...] [--sample N] [--sets N]

General mutation testers change Python, and the judgement stands in SQL. Every mutant is one
small change of one line: a condition dropped, a comparison turned or made strict, a word of
a closed set exchanged, an AND made an OR. Nothing outside a copy of the tree is changed.

Each mutant first judges evidence that is opened once: the simulated worlds that hold every
plant, and the histories of ``tests/test_checks.py``, against what the tests there assert. One
that gets through goes to the test files themselves, and only what they let through as well
is printed as surviving. Random worlds, of which ``make test`` draws other ones each time, are
judged besides: a mutant that only they notice is printed as such and counts as not killed.
With a survivor stands where it changed rows that no test looks at, if it did.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import duckdb

from analysis import base, checks
from analysis.store import Evidence, open_evidence
from benchmarks.ground_truth import CUT_OFF, WHOLE, key_of, open_items, score
from tests.histories import write_history, write_rows
from tests.plants import PLANTS
from tests.simulator import EvidenceSet, Setup, evidence_set, random_set
from tests.test_checks import BYSTANDERS, CLEAN, DIRTY, NAMED

ROOT = Path(__file__).parent.parent
SQL = Path("analysis") / "sql"
TESTS = (
    "tests/test_proofs.py",
    "tests/test_verdict.py",
    "tests/test_timing.py",
    "tests/test_checks.py",
    "tests/test_ground_truth.py::test_several_unknown_writes_prove_nothing",
    "tests/test_ground_truth.py::test_no_seam_where_tables_are_joined_in_slices",
    # What these assert of the same histories is judged before.
    "--deselect=tests/test_checks.py::test_finds_exactly",
    "--deselect=tests/test_checks.py::test_blames_nobody",
)
AT_ONCE = 2
WORLDS = 160  # in a random set, as in tests/test_ground_truth.py
MOST_S = 20  # for one mutant and one evidence set, which take less than one
OF_ONE_CHECK = frozenset(f"{check.kind}.sql" for check in checks.CHECKS)
PATTERNS = "patterns.sql"  # reads what was found; all other files come before every check

# (what it is called, pattern, replacement); applied to one occurrence at a time.
_CHANGES = (
    ("AND -> OR", r"(?<!BETWEEN \$first )\bAND\b", "OR"),
    ("OR -> AND", r"\bOR\b", "AND"),
    ("< -> <=", r"(?<![<>=])<(?![=>])", "<="),
    ("> -> >=", r"(?<![<>=])>(?![=>])", ">="),
    ("<= -> <", r"<=", "<"),
    (">= -> >", r">=", ">"),
    ("= -> <>", r"(?<![<>=!:])=(?![=>])", "<>"),
    ("<> -> =", r"<>", "="),
    ("NOT dropped", r"\bNOT (?=\w|\()(?!NULL|MATERIALIZED)", ""),
    ("min -> max", r"\bmin\(", "max("),
    ("max -> min", r"\bmax\(", "min("),
    ("bool_and -> bool_or", r"\bbool_and\(", "bool_or("),
    ("bool_or -> bool_and", r"\bbool_or\(", "bool_and("),
    ("accepted -> rejected", r"'accepted'", "'rejected'"),
    ("unknown -> failed", r"'unknown'", "'failed'"),
    ("deleted -> returned", r"'deleted'", "'returned'"),
)
_NAMED_COLUMNS = ("order_key", "message_nos", "invocation_ids", "call_ids", "flags")
_CONDITION = re.compile(r"^\s+(AND|OR) .*[^(]$")


class Outcome(StrEnum):
    INVALID = "invalid"  # no SQL that DuckDB would run
    KILLED = "killed"
    WORLDS_ONLY = "worlds only"
    SURVIVES = "survives"


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    line_no: int  # from 1
    change: str
    text: str  # the whole mutated file

    def __str__(self) -> str:
        line = self.text.splitlines()[self.line_no - 1].strip()
        return f"{self.file}:{self.line_no} {self.change}: {line}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of one file; comments are left alone."""
    lines = path.read_text().splitlines()
    for index, line in enumerate(lines):
        code, comment, rest = line.partition("--")

        def changed(new: str, index: int = index, tail: str = comment + rest) -> str:
            return "\n".join([*lines[:index], new + tail, *lines[index + 1 :]]) + "\n"

        if _CONDITION.match(code) and code.count("(") == code.count(")"):
            yield Mutant(path.name, index + 1, "condition dropped", changed(""))
        for name, pattern, replacement in _CHANGES:
            for found in re.finditer(pattern, code):
                new = code[: found.start()] + replacement + code[found.end() :]
                yield Mutant(path.name, index + 1, name, changed(new))


# --- evidence that stays open ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answers:
    asserted: frozenset[tuple[str, str]]  # what a test looks at: kinds, or kinds and keys
    rows: tuple[str, ...]  # everything


@dataclass(slots=True)
class Trial:
    """One evidence set, and what the checks say of it with the SQL as it is."""

    name: str
    run_dir: Path
    is_history: bool
    named: str = ""  # the kind whose findings must name exactly these rows
    evidence: Evidence = field(init=False)
    prepared: bool = field(init=False)  # the tables of views.sql are there
    right: dict[str, Answers] = field(init=False)  # by kind of finding
    open_items: frozenset[str] = field(init=False)
    opened: ExitStack = field(default_factory=ExitStack)

    def open(self, prepared: bool) -> None:
        self.opened.close()
        self.evidence = self.opened.enter_context(open_evidence(self.run_dir))
        for setting in ("memory_limit", "max_temp_directory_size"):
            self.evidence.rows(f"SET {setting} = '1GB'")
        if prepared:
            checks.prepare(self.evidence)
        self.prepared = prepared

    def learn(self) -> None:
        self.open(prepared=True)
        self.right = {str(check.kind): self.answer(check) for check in checks.CHECKS}
        self.open_items = frozenset(open_items(self.evidence))

    def answer(self, check: checks.Check) -> Answers:
        if checks._obstacle(check, self.evidence) is not None:
            return Answers(frozenset(), ())
        rows = self.evidence.rows(checks.sql_of(check.kind))
        kind = str(check.kind)
        if self.named:
            named = sorted([str(row[column]) for column in _NAMED_COLUMNS] for row in rows)
            asserted = {(kind, str(named))} if kind == self.named else set()
        elif self.is_history:
            asserted = {(kind, "") for _ in rows}
            told = [checks._finding(check, row).explanation for row in rows]
            asserted |= {(kind, "not known") for words in told if "not known" in words}
        else:
            asserted = {(kind, key_of(row)) for row in rows}
        return Answers(frozenset(asserted), tuple(sorted(map(repr, rows))))

    def noticed(self, mutant: Mutant) -> tuple[bool, str]:
        """Whether what is asserted is no longer so, and in which findings any row differs.

        :raises duckdb.Error: the mutant is no SQL, or takes too long.
        """
        shared = mutant.file not in {*OF_ONE_CHECK, PATTERNS}
        if self.prepared is shared:
            self.open(prepared=not shared)
        connection = self.evidence.connection
        stop = threading.Timer(MOST_S, connection.interrupt)
        stop.start()
        changed = ""
        connection.execute("BEGIN")
        try:
            if shared:
                checks.prepare(self.evidence)
                if not self.is_history and open_items(self.evidence) != self.open_items:
                    return True, "unresolved"
            for check in checks.CHECKS:
                if not shared and mutant.file != f"{check.kind}.sql":
                    continue
                answers, right = self.answer(check), self.right[check.kind]
                if answers.asserted != right.asserted:
                    return True, check.kind
                if answers.rows != right.rows:
                    changed = check.kind
            return False, changed
        finally:
            stop.cancel()
            connection.execute("ROLLBACK")


@dataclass(slots=True)
class _Bench:
    """What one process works with."""

    tree: Path
    fixed: list[Trial]
    random: list[Trial]


_benches: list[_Bench] = []  # one, once the process has started


def _start(snapshot: Path, sets: int) -> None:
    tree = Path(tempfile.mkdtemp(dir=snapshot.parent))
    shutil.copytree(snapshot, tree, dirs_exist_ok=True)
    for module in (checks, base):
        mock.patch.object(module, "files", lambda package: tree / package).start()
    evidence = tree / "evidence"

    def simulated(name: str, made: EvidenceSet) -> Trial:
        faults = score(made).faults
        assert not faults, faults
        write_rows(evidence / name, made.rows, made.run)
        return Trial(name, evidence / name, is_history=False)

    fixed = []
    for report in (True, False):
        setup = Setup(batch_size=3 if report else 1, report_failures=report)
        made = evidence_set(1, setup, 250, PLANTS, share=1)
        fixed.append(simulated(f"every plant {report}", made))
    for name, text, run in (*(case[:3] for case in DIRTY), *CLEAN):
        path = write_history(evidence / str(len(fixed)), text, run)
        fixed.append(Trial(name, path, is_history=True))
    for kind, text, run, _ in NAMED:
        path = write_history(evidence / str(len(fixed)), text + BYSTANDERS, run)
        fixed.append(Trial(f"{kind} {text}", path, is_history=True, named=kind))
    worlds = []
    for seed in range(1, sets + 1):
        plants, statuses = PLANTS if seed % 4 < 2 else (), CUT_OFF if seed % 4 == 3 else WHOLE
        made = random_set(random.Random(seed), WORLDS, plants, statuses)
        worlds.append(simulated(f"seed {seed}", made))
    for trial in (*fixed, *worlds):
        trial.learn()
    _benches.append(_Bench(tree, fixed, worlds))


def _judge(mutant: Mutant) -> tuple[Mutant, Outcome, str]:
    (bench,) = _benches
    target = bench.tree / SQL / mutant.file
    original = target.read_text()
    target.write_text(mutant.text)
    try:
        return mutant, *_outcome(mutant, bench)
    finally:
        target.write_text(original)


def _outcome(mutant: Mutant, bench: _Bench) -> tuple[Outcome, str]:
    remark = ""
    try:
        for trial in bench.fixed:
            killed, kind = trial.noticed(mutant)
            if killed:
                return Outcome.KILLED, f"{trial.name}: {kind}"
            remark = remark or (f"other rows in {trial.name!r}: {kind}" if kind else "")
        by_worlds = ""
        for trial in bench.random:
            killed, kind = trial.noticed(mutant)
            if killed:
                by_worlds = f"{trial.name}: {kind}"
                break
            remark = remark or (f"other rows in {trial.name!r}: {kind}" if kind else "")
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        return Outcome.INVALID, str(error).splitlines()[0]
    except Exception as error:  # a check that fails, or that takes too long, is noticed
        return Outcome.KILLED, type(error).__name__
    red = _red_test(bench.tree)
    if red is not None:
        return Outcome.KILLED, red
    if by_worlds:
        return Outcome.WORLDS_ONLY, by_worlds
    return Outcome.SURVIVES, remark


def _red_test(tree: Path) -> str | None:
    """The first test of the test files that fails in this copy of the tree."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        argv, cwd=tree, env=environment, capture_output=True, check=False, text=True
    )
    if ended.returncode == 0:
        return None
    red = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    assert red is not None, ended.stdout + ended.stderr
    return red[1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=["*"], help="files, such as overwrite")
    parser.add_argument("--sample", type=int, help="so many of all mutants, chosen with a seed")
    parser.add_argument("--sets", type=int, default=24, help=f"random sets of {WORLDS} worlds")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        snapshot = Path(directory) / "snapshot"
        for name in ("analysis", "benchmarks", "tests", "consumer", "loadtest"):
            shutil.copytree(ROOT / name, snapshot / name)
        shutil.copy(ROOT / "pyproject.toml", snapshot)
        files = [path for name in asked.only for path in (snapshot / SQL).glob(f"{name}.sql")]
        # Those of one check first: they share the open tables of views.sql.
        files.sort(key=lambda path: (path.name not in {*OF_ONE_CHECK, PATTERNS}, path.name))
        found = [mutant for path in files for mutant in mutants(path)]
        if asked.sample is not None:
            chosen = random.Random(1).sample(range(len(found)), min(asked.sample, len(found)))
            found = [found[number] for number in sorted(chosen)]
        outcomes: Counter[Outcome] = Counter()
        with ProcessPoolExecutor(
            AT_ONCE, get_context("spawn"), initializer=_start, initargs=(snapshot, asked.sets)
        ) as pool:
            for mutant, outcome, remark in pool.map(_judge, found):
                outcomes[outcome] += 1
                if outcome in (Outcome.WORLDS_ONLY, Outcome.SURVIVES):
                    print(f"{outcome:12}{mutant}" + f"  [{remark}]" * bool(remark), flush=True)
    _say(outcomes)
    return 0


def _say(outcomes: Counter[Outcome]) -> None:
    valid = outcomes.total() - outcomes[Outcome.INVALID]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{outcomes[Outcome.KILLED]} of {valid} mutants killed "
        f"({outcomes[Outcome.KILLED] / max(1, valid):.1%}), {outcomes[Outcome.WORLDS_ONLY]} by "
        f"random worlds only, {outcomes[Outcome.SURVIVES]} survive; {outcomes[Outcome.INVALID]} "
        f"more are no SQL; {(used.ru_utime + used.ru_stime) / 60:.0f} min of CPU"
    )


if __name__ == "__main__":
    sys.exit(main())
