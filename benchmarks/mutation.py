"""Does a test go red when a check is broken? Mutation testing of the SQL in ``analysis/sql``.

    python -m benchmarks.mutation [--only NAME] [--sample N]

General mutation testers change Python, and the judgement stands in SQL. Every mutant is one
small change of one line: a condition dropped, a comparison turned or made strict, a word of
a closed set exchanged, an AND made an OR. The tests of the checks run against a copy of the
tree with that change; a mutant that no test notices survives and is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
SQL = Path("analysis") / "sql"
TESTS = ("tests/test_checks.py", "tests/test_verdict.py")
AT_ONCE = 2

# (what it is called, pattern, replacement); applied to one occurrence at a time.
_CHANGES = (
    ("AND -> OR", r"\bAND\b", "OR"),
    ("OR -> AND", r"\bOR\b", "AND"),
    ("< -> <=", r"(?<![<>=])<(?![=>])", "<="),
    ("> -> >=", r"(?<![<>=])>(?![=>])", ">="),
    ("<= -> <", r"<=", "<"),
    (">= -> >", r">=", ">"),
    ("= -> <>", r"(?<![<>=!])=(?![=>])", "<>"),
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
_CONDITION = re.compile(r"^\s+(AND|OR) .*[^(]$")


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


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether all tests pass with the mutant in this copy of the tree."""
    target = tree / SQL / mutant.file
    target.write_text(mutant.text)
    try:
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(
            argv, cwd=tree, env=environment, capture_output=True, check=False, timeout=600
        )
        return ended.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.copy(ROOT / SQL / mutant.file, target)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="one file, such as overwrite")
    parser.add_argument("--sample", type=int, help="so many of all mutants, chosen with a seed")
    asked = parser.parse_args()
    files = sorted((ROOT / SQL).glob(f"{asked.only or '*'}.sql"))
    found = [mutant for path in files for mutant in mutants(path)]
    if asked.sample is not None:
        found = random.Random(1).sample(found, min(asked.sample, len(found)))
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as directory:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            tree = Path(directory) / str(number)
            for name in ("analysis", "tests", "consumer", "loadtest"):
                shutil.copytree(ROOT / name, tree / name)
            shutil.copy(ROOT / "pyproject.toml", tree)
            trees.put(tree)

        def judge(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                if survives(mutant, tree):
                    survivors.append(mutant)
                    print(f"survives  {mutant}", flush=True)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(judge, found))
    killed = len(found) - len(survivors)
    print(f"{killed} of {len(found)} mutants killed ({killed / max(1, len(found)):.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
