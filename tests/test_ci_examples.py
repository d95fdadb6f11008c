"""The pipelines of ``examples/ci``: what they say is carried out, on a small project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.handlers import HANDLERS

ROOT = Path(__file__).parent.parent
SETTINGS = """
[handler]
code = "src"
handler = "stores.handler"
[load]
orders = 8
copies = 4
conflicts = 0
poison = 0
concurrency = 4
[thresholds]
handler_p50 = "<= 1.5x"
end_to_end_p50 = "<= 30"
"""


def pipeline(name: str) -> tuple[str, Any]:
    text = (ROOT / "examples" / "ci" / name).read_text()
    return text, yaml.safe_load(text)


def lines_of(jobs: Any) -> list[str]:
    (job,) = jobs["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "stores.py").write_text(HANDLERS["stores"])
    (tmp_path / "loadtest.toml").write_text(SETTINGS)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "loadtest"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P {ROOT / "onceproof"} "$@"\n')
    command.chmod(0o755)
    return tmp_path


def carried_out(line: str, project: Path) -> str:
    """A line of a pipeline, as its runner's shell would take it."""
    variables = os.environ | {
        "PATH": f"{project / 'bin'}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(project / "step.md"),
    }
    end = subprocess.run(
        ["bash", "-e", "-c", line],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert end.returncode == 0, end.stdout + end.stderr
    return end.stdout


def test_the_pipelines_do_what_they_say(project: Path) -> None:
    text, jobs = pipeline("github-actions.yml")
    install, flood, compare, summary = lines_of(jobs)
    assert install == "pip install onceproof"
    carried_out(flood, project)
    (once,) = re.findall(r"^# +(loadtest .*--update-baseline)$", text, re.MULTILINE)
    carried_out(once, project)
    said = carried_out(compare, project)
    assert "✓ handler_p50: " in said
    assert said.endswith("\nPASS\n")
    carried_out(summary, project)
    assert (project / "step.md").read_text().startswith("## onceproof: PASS\n")
    assert "| ✓ | handler_p50 | at most 1.5x the baseline | " in (project / "step.md").read_text()
    (job,) = jobs["jobs"].values()
    kept = [step["with"]["path"] for step in job["steps"] if "upload" in step.get("uses", "")]
    assert kept == ["runs/"]
    assert list(project.glob("runs/*/report.html"))

    other, gitlab = pipeline("gitlab-ci.yml")
    assert once in other
    assert gitlab["onceproof"]["script"] == [install, flood, compare]
    (junit,) = project.glob(gitlab["onceproof"]["artifacts"]["reports"]["junit"])
    assert "onceproof.thresholds" in junit.read_text()
