"""Help, completion and colours of the command line."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from loadtest.__main__ import app
from tests.cli import loadtest

GROUP = typer.main.get_command(app)
COMMANDS = sorted(GROUP.list_commands(typer.Context(GROUP)))  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_a_terminal_and_has_an_example_that_is_understood(
    name: str, tmp_path: Path
) -> None:
    end = loadtest(name, "--help", cwd=tmp_path)
    assert (end.code, end.err) == (0, "")
    assert max(map(len, end.out.splitlines())) <= 80
    paragraphs = [" ".join(text.split()) for text in re.split(r"\n\s*\n", end.out)]
    examples = [text for text in paragraphs if re.match(r"(?!Usage)[A-Z][^:]*: loadtest ", text)]
    assert any(text.startswith(f"Example: loadtest {name}") for text in examples)
    for example in examples:
        _, _, line = example.partition(": loadtest ")
        chosen, *arguments = shlex.split(line)
        command = GROUP.get_command(typer.Context(GROUP), chosen)  # type: ignore[attr-defined]
        command.make_context(chosen, arguments)  # raises where one is not understood


def test_the_help_names_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    said = loadtest("--help", cwd=tmp_path).said
    for name in COMMANDS:
        assert f"│ {name} " in said
    assert "Exit codes: 0 PASS, 1 FAIL, 2 wrong use or configuration, 3 INCONCLUSIVE, 4" in said


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", "complete -o default -F _loadtest_completion loadtest"),
        ("zsh", "#compdef loadtest"),
        ("fish", "complete --command loadtest"),
    ],
)
def test_completion_is_printed_and_changes_nothing(
    shell: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_LOADTEST_COMPLETE", f"source_{shell}")
    end = loadtest(cwd=tmp_path)
    assert (end.code, words in end.out) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_completion_knows_commands_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_LOADTEST_COMPLETE", "complete_bash")
    for line, completed in (("loadtest ch", "check"), ("loadtest check --up", "--update-baseline")):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        assert loadtest(cwd=tmp_path).out.split() == [completed]


def test_no_color_is_obeyed_on_a_terminal(tmp_path: Path) -> None:
    terminal, inner = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "loadtest", "run", "--orders", "0"]
    text = b""
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | variables, stdout=inner, stderr=inner
    ):
        os.close(inner)
        try:
            while chunk := os.read(terminal, 65_536):
                text += chunk
        except OSError:  # Linux's way to say that the other end is closed
            pass
        os.close(terminal)
    assert b"\x1b[1m" in text, "it was taken for a terminal: an error is bold, and else red"
    assert not re.search(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|9[0-7])(?:;[0-9]+)*m", text)
    assert b"--orders: must be at least 1 (got 0)" in text
