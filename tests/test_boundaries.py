"""Who may import whom. The judge shares no code with what it judges, handlers know nothing
of the tester, and pure modules do no input or output."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"analysis", "consumer", "loadtest", "onceproof"}
HANDLERS = [
    ROOT / "consumer" / "app.py",
    ROOT / "consumer" / "control.py",
    ROOT / "consumer" / "function_recorder.py",
    *sorted((ROOT / "consumer" / "planted").rglob("*.py")),
]
PURE = ["loadtest/plan.py", "loadtest/orders.py", "analysis/schema.py", "analysis/findings.py"]
IMPURE_MODULES = {"asyncio", "boto3", "duckdb", "aiohttp"}


def imports(source: str, package: str) -> Iterator[str]:
    """Full names of everything a module of ``package`` imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # "from analysis import schema" imports analysis.schema.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def forbidden_for_analysis(name: str) -> bool:
    return top(name) in OURS - {"analysis"}


def forbidden_for_consumer(name: str) -> bool:
    allowed = within(name, "consumer", "analysis.schema", "analysis.errors")
    return top(name) in OURS and not allowed


def forbidden_for_handlers(name: str) -> bool:
    return top(name) not in {*sys.stdlib_module_names, "boto3", "botocore"}


def forbidden_for_pure(name: str) -> bool:
    return top(name) in IMPURE_MODULES


def top(name: str) -> str:
    return name.partition(".")[0]


def within(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def imports_of(path: Path) -> list[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return list(imports(path.read_text(), package))


def modules_of(package: str) -> list[Path]:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules, f"no modules in {package}"
    return modules


def test_analysis_imports_neither_consumer_nor_loadtest() -> None:
    for path in modules_of("analysis"):
        assert not list(filter(forbidden_for_analysis, imports_of(path))), path


def test_consumer_imports_only_schema_and_errors_of_analysis() -> None:
    for path in modules_of("consumer"):
        assert not list(filter(forbidden_for_consumer, imports_of(path))), path


def test_what_a_test_imports_is_the_standard_library_and_pytest() -> None:
    allowed = {*sys.stdlib_module_names, "onceproof", "pytest"}
    for path in modules_of("onceproof"):
        names = set(map(top, imports_of(path))) - allowed
        assert names == ({"loadtest"} if path.name == "__main__.py" else set()), path


@pytest.mark.parametrize("path", HANDLERS, ids=lambda path: path.name)
def test_handlers_import_only_the_standard_library_and_boto(path: Path) -> None:
    assert not list(filter(forbidden_for_handlers, imports_of(path)))


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_nothing_that_does_io(name: str) -> None:
    assert not list(filter(forbidden_for_pure, imports_of(ROOT / name)))


@pytest.mark.parametrize("package", ["analysis", "consumer"])
def test_packages_import_nothing_by_themselves(package: str) -> None:
    assert (ROOT / package / "__init__.py").read_text() == ""


# --- the check itself must be able to fail ------------------------------------------------


@pytest.mark.parametrize(
    ("source", "package", "names"),
    [
        ("import a.b, c as d", "p", ["a.b", "c"]),
        ("from a import b", "p", ["a.b"]),
        ("from a.b import c as d, e", "p", ["a.b.c", "a.b.e"]),
        ("from . import x", "p", ["p.x"]),
        ("from .x import y", "p.q", ["p.q.x.y"]),
        ("from ..x import y", "p.q", ["p.x.y"]),
        ("def f():\n    import a", "p", ["a"]),
        ("if TYPE_CHECKING:\n    from a import b", "p", ["a.b"]),
    ],
)
def test_imports_are_found(source: str, package: str, names: list[str]) -> None:
    assert list(imports(source, package)) == names


def test_wrong_directions_are_found() -> None:
    assert forbidden_for_analysis("consumer.app.handler")
    assert forbidden_for_analysis("loadtest")
    assert not forbidden_for_analysis("analysis.schema")
    assert forbidden_for_consumer("analysis.store.Evidence")
    assert forbidden_for_consumer("analysis.schema_of_others")
    assert forbidden_for_consumer("loadtest.plan")
    assert not forbidden_for_consumer("analysis.schema.Call")
    assert not forbidden_for_consumer("consumer.clock.Clock")
    assert not forbidden_for_consumer("aiohttp.web")
    assert forbidden_for_handlers("analysis.schema.Call")
    assert forbidden_for_handlers("consumer.clock")
    assert forbidden_for_handlers("aiohttp")
    assert not forbidden_for_handlers("boto3.dynamodb.types")
    assert not forbidden_for_handlers("__future__.annotations")
    assert forbidden_for_pure("asyncio.Event")
    assert not forbidden_for_pure("json")
