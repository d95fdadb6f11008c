"""The wheel in an environment of its own, used as a project would that has packages of the
tester's names itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest import __version__

ROOT = Path(__file__).parent.parent
CLASHING = ("analysis", "consumer", "loadtest", "tests")

HANDLER = """
import json
import os

import boto3

from analysis import NAME as ANALYSIS
from loadtest import NAME as LOADTEST

assert ANALYSIS == LOADTEST == "theirs"
TABLE = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])


def racy(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        if "Item" not in TABLE.get_item(Key={"id": order["id"]}, ConsistentRead=True):
            TABLE.put_item(Item=order)


def adds_once(event, context):
    import consumer.rules  # late, and theirs

    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            TABLE.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
        except TABLE.meta.client.exceptions.ConditionalCheckFailedException:
            found = TABLE.get_item(Key={"id": order["id"]}, ConsistentRead=True)["Item"]
            assert found == order
"""

TESTS = """
import sys

import analysis
import consumer.rules
import loadtest
import tests.names

LOAD = {"orders": 6, "copies": 4, "conflicts": 0, "poison": 0, "concurrency": 4}


def test_ours_are_ours():
    for module in (analysis, consumer, loadtest, tests):
        assert module.NAME == "theirs"
    heavy = {"aioboto3", "boto3", "duckdb", "matplotlib", "pydantic", "rich", "typer"}
    assert not heavy & set(sys.modules)


def test_a_flood_finds_the_race(flood):
    flood(code="functions", handler="orders.racy", **LOAD).assert_clean()


def test_an_exploration_covers_all(explore):
    outcome = explore(code="functions", handler="orders.adds_once", copies=2)
    outcome.assert_clean()
    assert outcome.guarantee.startswith("2 copies of one order")


def test_what_is_wrong_is_told(flood):
    flood(code="nowhere", handler="orders.racy", orders=0)
"""


@dataclass(frozen=True, slots=True)
class Installed:
    wheel: Path
    bin: Path  # of the environment
    project: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """A command of the environment, in the project's folder."""
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.project), "COLUMNS": "100"}
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.project,
            env=variables,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel installed, with what it depends on borrowed from this environment, beside a
    project that is installed as an editable one: found behind everything that is installed."""
    folder = tmp_path_factory.mktemp("packaging")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, ROOT],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    bin_dir = folder / "env" / "bin"
    subprocess.run(
        [*pip, "--python", bin_dir / "python", "install", "--no-deps", "--no-index", wheel],
        check=True,
    )
    project = folder / "project"
    for package in CLASHING:
        home = project if package == "tests" else project / "src"
        (home / package).mkdir(parents=True)
        (home / package / "__init__.py").write_text("NAME = 'theirs'\n")
    (project / "src" / "consumer" / "rules.py").touch()
    (project / "functions").mkdir()
    (project / "functions" / "orders.py").write_text(HANDLER)
    (project / "tests" / "names.py").touch()
    (project / "tests" / "test_orders.py").write_text(TESTS)
    (project / "pytest.ini").write_text("[pytest]\nonceproof_out = results\n")
    (site,) = (folder / "env" / "lib").glob("*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "project.pth").write_text(f"{project / 'src'}\n")
    return Installed(wheel, bin_dir, project)


def test_the_wheel_puts_one_name_on_the_path_and_has_everything(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"onceproof", f"onceproof-{__version__}.dist-info"}
    for package in ("analysis", "consumer", "loadtest"):
        kept = {
            f"onceproof/packages/{path.relative_to(ROOT)}"
            for path in (ROOT / package).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert f"onceproof/packages/{package}/py.typed" in kept
        assert kept <= set(names)
    assert "onceproof/py.typed" in names
    said = installed.run("loadtest", "--version")
    assert (said.stdout, said.stderr) == (f"onceproof {__version__}\n", "")
    theirs = "import analysis, consumer, loadtest; print(analysis.NAME, loadtest.NAME)"
    assert installed.run("python", "-c", theirs).stdout == "theirs theirs\n"


def test_the_pytest_plugin_in_a_project_with_packages_of_the_same_names(
    installed: Installed,
) -> None:
    end = installed.run("python", "-m", "pytest", "-n", "2", "--junitxml=junit.xml")
    said = end.stdout
    assert end.returncode == 1, said + end.stderr
    assert "2 failed, 2 passed" in said

    assert "E       onceproof.NotPassed: FAIL  findings: overwrite " in said
    assert "So: B replaced the order that A had stored" in said
    assert ". waiting  - handler  = call, the step's number where it was answered" in said
    assert "again   loadtest run --code=functions --handler=orders.racy --orders=6" in said
    for internal in ("__init__.py:", "subprocess.py", "pytest_plugin.py:"):
        assert internal not in said, "no traceback of the plugin's own"
    assert "CannotRunError: --code: no such directory: " in said
    assert "--orders: must be at least 1 (got 0)" in said

    reports = {
        case.get("name"): prop.get("value")
        for case in ET.parse(installed.project / "junit.xml").getroot().iter("testcase")
        for prop in case.iter("property")
        if prop.get("name") == "onceproof_report"
    }
    assert set(reports) == {"test_a_flood_finds_the_race", "test_an_exploration_covers_all"}
    for report in reports.values():
        assert report is not None
        assert report.startswith("results/")
        assert f"report  {report}" in said or "explor" in (installed.project / report).read_text()
    flood = (installed.project / (reports["test_a_flood_finds_the_race"] or "")).parent
    assert json.loads((flood / "verdict.json").read_text())["verdict"] == "FAIL"
