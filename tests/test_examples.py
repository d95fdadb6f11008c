"""The consumers under ``examples``: each gets the verdict that its page promises."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from analysis.findings import VerdictWord
from tests.cli import loadtest, only_run

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ["batch", "powertools", "single_table", "fifo_receipts", "stock"]
CALM = ("--conflicts", "0", "--poison", "0")


@pytest.mark.parametrize(
    ("name", "arguments", "word", "kinds"),
    [
        ("batch", CALM, "PASS", set()),
        ("single_table", ("--fault", "lost-reply=0.2", *CALM), "PASS", set()),
        ("fifo_receipts", ("--fault", "crash=0.3", *CALM), "PASS", set()),
        ("stock", CALM, "FAIL", {"overwrite"}),
    ],
)
def test_an_example_gets_the_verdict_of_its_page(
    tmp_path: Path,
    emulator_url: str,
    name: str,
    arguments: tuple[str, ...],
    word: str,
    kinds: set[str],
) -> None:
    config = EXAMPLES / name / "loadtest.toml"
    size = ("--orders", "12", "--copies", "3", "--concurrency", "4")
    place = ("--endpoint-url", emulator_url)
    end = loadtest("run", "--config", config, *size, *place, *arguments, cwd=tmp_path)
    verdict = only_run(tmp_path).verdict
    assert verdict.verdict is VerdictWord(word), end.said
    assert {str(check.kind) for check in verdict.checks if check.count} == kinds
    if name == "stock":
        assert "condition attribute_not_exists(id): cannot fail" in end.said


def test_explore_names_the_race_of_the_wrong_one(tmp_path: Path, emulator_url: str) -> None:
    config = EXAMPLES / "stock" / "loadtest.toml"
    place = ("--endpoint-url", emulator_url, "--json")
    end = loadtest("explore", "--config", config, *place, cwd=tmp_path)
    assert end.code == 1, end.said
    assert json.loads(end.out)["verdict"] == "FAIL"


@pytest.mark.parametrize("name", NAMES)
def test_its_settings_are_those_of_its_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What ``init`` takes from the template, handler to queue, stands in its file."""
    told = loadtest("init", EXAMPLES / name, "--out", "-", cwd=EXAMPLES / name).out

    def settings(text: str) -> set[str]:
        lines = [re.sub(r"\s+# .*", "", line).strip() for line in text.splitlines()]
        used = [line for line in lines if line and not line.startswith("#")]
        return set(used[: next(i for i, line in enumerate(used) if line.startswith("[[table"))])

    assert settings(told) <= settings((EXAMPLES / name / "loadtest.toml").read_text())


def test_from_an_empty_folder_to_a_verdict(tmp_path: Path, emulator_url: str) -> None:
    """Two commands, as the README has it."""
    for part in ("src", "events"):
        shutil.copytree(EXAMPLES / "batch" / part, tmp_path / part)
    shutil.copy(EXAMPLES / "batch" / "template.yaml", tmp_path)
    assert loadtest("init", cwd=tmp_path).code == 0
    size = (
        "--orders",
        "12",
        "--poison",
        "0.1",
        "--concurrency",
        "4",
        "--endpoint-url",
        emulator_url,
    )
    end = loadtest("run", *size, cwd=tmp_path)
    assert end.code == 0, end.said
