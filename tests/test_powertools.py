"""A consumer built on Powertools for AWS Lambda, as it is and under faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.findings import VerdictWord
from analysis.verdict import read_verdict
from tests.cli import loadtest

CONFIG = Path(__file__).parent.parent / "examples" / "powertools" / "loadtest.toml"
CALM = ("--conflicts", "0", "--poison", "0")


@pytest.mark.parametrize(
    ("arguments", "word", "kinds"),
    [
        pytest.param((), "PASS", set(), id="as-it-is"),
        pytest.param(
            ("--handler", "app.unvalidated", "--poison", "0", "--conflicts", "0.5"),
            "FAIL",
            {"conflict-acknowledged"},
            id="unvalidated",
        ),
        pytest.param(("--faults", "crash.toml", *CALM), "FAIL", {"overwrite"}, id="crash"),
        pytest.param(("--faults", "timeout.toml", *CALM), "FAIL", {"overwrite"}, id="timeout"),
        pytest.param(
            ("--faults", "receipt.toml", *CALM),
            "FAIL",
            {"overwrite", "duplicate-effect"},
            id="receipt",
        ),
    ],
)
def test_powertools(
    tmp_path: Path, emulator_url: str, arguments: tuple[str, ...], word: str, kinds: set[str]
) -> None:
    given = [str(CONFIG.parent / text) if text.endswith(".toml") else text for text in arguments]
    size = ("--orders", "12", "--copies", "3", "--endpoint-url", emulator_url)
    end = loadtest("run", "--config", CONFIG, *size, *given, cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    verdict = read_verdict(run)
    assert verdict.verdict is VerdictWord(word), end.said
    assert {str(check.kind) for check in verdict.checks if check.count} == kinds
