"""Handlers with packages, layers and variables of their own; secrets stay out of what is kept."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli import Ended, loadtest, only_run

VERSION = "{}.{}".format(*sys.version_info[:2])
SECRET = 'pa"ss/wörd\\1'

HANDLER = """
import json, os
import boto3
import botocore.exceptions
import editable_package, layered, over, packaged
from consumer.parts import NAME  # a package of the user's, named as one of ours
table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])


def handler(event, context):
    order = json.loads(event["Records"][0]["body"])
    secret = os.environ["PAYMENT_TOKEN"]
    print("with", secret, json.dumps({"token": secret}))
    order["note"] = f"{NAME} {packaged.NAME} {editable_package.NAME} {layered.NAME} {over.NAME}"
    order["seen"] = os.environ["GREETING"] + secret
    try:
        table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
    return {"token": secret}
"""

CONFIG = """
[handler]
code = "src"
handler = "app.handler"
layers = ["layers/one", "layers/two"]
env_file = ".env"
[handler.environment]
TABLE_NAME = "{table:orders}"
[load]
orders = 4
copies = 3
conflicts = 0
poison = 0
concurrency = 3
[expect]
contended_orders = 0
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_environment(folder: Path, version: str = VERSION) -> Path:
    """A virtual environment's folder; its site-packages."""
    write(folder / "pyvenv.cfg", f"home = {sys.base_prefix}/bin\nversion = {version}.1\n")
    packages = folder / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    return packages


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose packages are in a virtual environment beside its code."""
    write(tmp_path / "src" / "app.py", HANDLER)
    packages = write_environment(tmp_path / "src" / ".venv")
    write(packages / "packaged.py", 'NAME = "packaged"')
    write(packages / "editable.pth", str(tmp_path / "elsewhere"))
    write(tmp_path / "elsewhere" / "editable_package.py", 'NAME = "editable"')
    write(tmp_path / "elsewhere" / "consumer" / "__init__.py", "")
    write(tmp_path / "elsewhere" / "consumer" / "parts.py", 'NAME = "own consumer"')
    layers = tmp_path / "layers"
    inner = f"python/lib/python{VERSION}/site-packages"
    write(layers / "one" / inner / "layered.py", 'NAME = "layered"')
    write(layers / "one" / "python" / "over.py", 'NAME = "under"')
    write(layers / "two" / "python" / "over.py", 'NAME = "over"')
    variables = "AWS_SECRET_ACCESS_KEY=never-passed-on\nexport GREETING='hello '\n"
    write(tmp_path / ".env", f"{variables}PAYMENT_TOKEN='{SECRET}'\nTABLE_NAME=not-this\n")
    write(tmp_path / "loadtest.toml", CONFIG)
    return tmp_path


def assert_kept_secret(folder: Path) -> None:
    forms = [SECRET, SECRET.replace("\\", "\\\\").replace('"', '\\"'), "ss/w"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert not any(form.encode() in content for form in forms), path


def test_packages_layers_and_variables_reach_the_handler_and_secrets_no_file(
    project: Path, emulator_url: str
) -> None:
    end = loadtest("run", "--endpoint-url", emulator_url, cwd=project)
    assert end.code == 0, end.said
    run = only_run(project)
    (row,) = run.rows(
        "SELECT DISTINCT json_extract_string(item, '$.note.S') AS note, "
        "json_extract_string(item, '$.seen.S') AS seen FROM items "
        "WHERE phase = 'after' AND resource LIKE '%orders'"
    )
    assert row["note"] == "own consumer packaged editable layered over"
    assert row["seen"] == "hello [left out: PAYMENT_TOKEN]"
    logs = "".join(path.read_text() for path in (run.path / "environments").glob("*.log"))
    assert 'with [left out: PAYMENT_TOKEN] {"token": "[left out: PAYMENT_TOKEN]"}' in logs
    assert_kept_secret(run.path)


def test_they_are_there_when_it_is_explored(project: Path, emulator_url: str) -> None:
    arguments = ("--copies", "2", "--faults", "0", "--endpoint-url", emulator_url)
    app = project / "src" / "app.py"
    app.write_text(HANDLER.replace(', ConditionExpression="attribute_not_exists(id)"', ""))
    end = loadtest("explore", *arguments, cwd=project)
    assert end.code == 1, end.said
    assert "[left out: PAYMENT_TOKEN]" in (only_run(project).path / "schedule.txt").read_text()
    assert_kept_secret(only_run(project).path)
    assert SECRET not in end.said
    again = loadtest("explore", "--replay", only_run(project).path / "schedule.txt", cwd=project)
    assert again.code == 1, again.said


def test_requirements_are_installed_once_and_into_no_environment(
    project: Path, emulator_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    wheel = project / "wheels" / "packaged-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    about = "packaged-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("packaged.py", 'NAME = "from a wheel"')
        file.writestr("editable_package.py", 'NAME = "there too"')
        file.writestr("consumer/__init__.py", "")
        file.writestr("consumer/parts.py", 'NAME = "own consumer"')
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: packaged\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    (project / "src" / ".venv").rename(project / "unused")
    write(project / "src" / "requirements.txt", "boto3  # is there\n-r more.txt\n")
    write(project / "src" / "more.txt", "../wheels/packaged-1.0-py3-none-any.whl\n")

    def run() -> Ended:
        return loadtest("run", "--endpoint-url", emulator_url, "--out", "runs", cwd=project)

    first, second = run(), run()
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert "installing requirements.txt for the handler" in first.said
    assert "installing" not in second.said
    (folder,) = (project / "cache" / "onceproof" / "packages").iterdir()
    assert (folder / "packaged.py").exists()
    write(project / "src" / "more.txt", "./is-not-there-1.0-py3-none-any.whl\n")
    end = run()
    assert end.code == 4
    assert "requirements.txt could not be installed for the handler" in end.said
    assert "is-not-there" in end.said
    assert "dependencies = false" in end.said
    assert list(folder.parent.iterdir()) == [folder], "nothing is left of what failed"


def test_an_environment_of_another_version_runs_by_its_own_interpreter(
    project: Path, emulator_url: str
) -> None:
    environment = project / "src" / ".venv"
    for part in sorted(environment.rglob("*"), reverse=True):
        part.unlink() if part.is_file() else part.rmdir()
    write_environment(environment, "3.99")
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(Path(sys.base_prefix, "bin", "python3"))
    source = "import sys\ndef handler(event, context):\n    print('PREFIX', sys.prefix)\n"
    write(project / "src" / "app.py", source)
    end = loadtest("run", "--endpoint-url", emulator_url, cwd=project)
    assert end.code == 1, "it stores nothing"
    logs = (only_run(project).path / "environments").glob("*.log")
    assert f"PREFIX {environment}" in "".join(path.read_text() for path in logs)


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("layers/two", "src", 2, "handler.layers: has no folder"),
        ('".env"', '"no.env"', 2, "handler.env_file: "),
        ('".env"', "7", 2, "handler.env_file: must be a path (got 7)"),
        ("layers =", 'dependencies = "src"\nlayers =', 2, "is no virtual environment and no req"),
        ("layers =", 'dependencies = "old"\nlayers =', 4, "old is for Python 3.9, and "),
        ("layers =", 'dependencies = "odd"\nlayers =', 4, "does not say which version"),
        ("layers =", "dependencies = false\nlayers =", 4, "No module named 'editable_package'"),
    ],
)
def test_what_cannot_be_used_is_named(
    project: Path, emulator_url: str, old: str, new: str, code: int, words: str
) -> None:
    write_environment(project / "old", "3.9")
    write(project / "odd" / "pyvenv.cfg", "home = /usr/bin\n")
    write(project / "loadtest.toml", CONFIG.replace(old, new))
    end = loadtest("run", "--endpoint-url", emulator_url, cwd=project)
    assert end.code == code, end.said
    assert words in end.said
