"""Handlers in a folder of Python files, as far as reading them tells. Nothing is imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.found import FoundFunction, FoundMapping, FoundQueue, Unknown

_MAX_FILES = 2_000
_SKIPPED = frozenset({"node_modules", "site-packages", "cdk.out", "tests", "test", "dist", "build"})
_EVENT = frozenset({"event", "_event", "evt", "events", "sqs_event"})
_CONTEXT = frozenset({"context", "_context", "ctx", "lambda_context", "_", "__"})
# What only code that takes messages from a queue has to do with. The names are of Powertools.
_BATCH = frozenset({"BatchProcessor", "AsyncBatchProcessor", "SqsFifoPartialProcessor"})
_QUEUE_WORDS = frozenset({"Records", "batchItemFailures", "SQSEvent"}) | _BATCH
_REPORTS = frozenset({"batchItemFailures"}) | _BATCH
_OF_LAMBDA = ("AWS_", "POWERTOOLS_", "LAMBDA_", "_")


@dataclass(frozen=True, slots=True)
class _Module:
    path: Path
    handlers: tuple[str, ...]
    words: frozenset[str]  # its names and texts
    variables: Mapping[str, bool]  # environment variable -> whether it must be there


def find_handlers(folder: Path) -> tuple[FoundFunction, ...]:
    """Functions that look like handlers; those behind a queue alone, if any looks like it."""
    modules = [*_modules(folder)]
    found = []
    for module in modules:
        code, name = _import_name(module.path, folder)
        for handler in module.handlers:
            queue = FoundMapping(
                FoundQueue("queue", declared=False),
                report_batch_item_failures=bool(module.words & _REPORTS),
            )
            function = FoundFunction(
                name=f"{module.path.relative_to(folder).with_suffix('').as_posix()}.{handler}",
                label=str(module.path.relative_to(folder)),
                handler=f"{name}.{handler}",
                code=str(code.relative_to(folder)),
                environment=_environment(one for one in modules if code in one.path.parents),
                mappings=(queue,) if module.words & _QUEUE_WORDS else (),
            )
            found.append(function)
    behind_queues = tuple(function for function in found if function.mappings)
    return behind_queues or tuple(found)


def folders_with(module: str, folder: Path) -> tuple[Path, ...]:
    """Folders under this one from which ``module``, dotted or with slashes, can be imported."""
    parts = module.replace("/", ".").split(".")
    tail = Path(*parts)
    return tuple(
        sorted(
            {
                path.parents[len(parts) - 1]
                for path in _files(folder)
                if path == path.parents[len(parts) - 1] / tail.with_suffix(".py")
            }
        )
    )


def _files(folder: Path) -> Iterator[Path]:
    """Python files of the project, not of its tests and environments."""
    count = 0
    for parent, names, files in os.walk(folder):
        names[:] = sorted(
            name
            for name in names
            if name not in _SKIPPED
            and not name.startswith(".")
            and not (Path(parent) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith(".py"):
                count += 1
                if count > _MAX_FILES:
                    return
                yield Path(parent) / name


def _modules(folder: Path) -> Iterator[_Module]:
    for path in _files(folder):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # not Python that runs: no handler either
        yield _Module(
            path,
            tuple(_handlers(tree)),
            frozenset(_words(tree)),
            dict(_variables(tree)),
        )


def _handlers(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            if len(names) == 2 and names[0] in _EVENT and names[1] in _CONTEXT:
                yield node.name


def _words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str(text)):
                yield text
            case ast.Name(name) | ast.alias(name):
                yield name


def _variables(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """``os.environ["A"]``, ``os.environ.get("B")``, ``os.getenv("C")``, however imported."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                ast.Name("environ") | ast.Attribute(attr="environ"), ast.Constant(str(name))
            ):
                yield name, True
            case ast.Call(
                ast.Attribute(ast.Name("environ") | ast.Attribute(attr="environ"), "get")
                | ast.Attribute(attr="getenv")
                | ast.Name("getenv"),
                [ast.Constant(str(name)), *default],
            ):
                yield name, not default


def _environment(modules: Iterator[_Module]) -> dict[str, tuple[Unknown]]:
    variables: dict[str, bool] = {}
    for module in modules:
        for name, needed in module.variables.items():
            variables[name] = variables.get(name, False) or needed
    return {
        name: (Unknown(f"${{{name}}}", "the code reads it"),)
        for name, needed in variables.items()
        if needed and not name.startswith(_OF_LAMBDA)
    }


def _import_name(path: Path, folder: Path) -> tuple[Path, str]:
    """The folder to import a file from, and its dotted name there."""
    code, parts = path.parent, [path.stem]
    while code != folder and (code / "__init__.py").exists():
        parts.insert(0, code.name)
        code = code.parent
    return code, ".".join(part for part in parts if part != "__init__") or path.stem
