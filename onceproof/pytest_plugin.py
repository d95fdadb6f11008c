"""The pytest plugin: the fixtures ``flood`` and ``explore``.

Loaded in every pytest of an environment that has onceproof: so it imports little.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import onceproof
from onceproof import Outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    folder = "Folder for the directories of floods and explorations (runs if not given)"
    group = parser.getgroup("onceproof")
    group.addoption("--onceproof-out", metavar="DIR", help=f"{folder}; wins over the setting.")
    parser.addini("onceproof_out", f"{folder}, relative to the root folder.", default="")


@pytest.fixture
def flood(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Flood a handler: onceproof.flood, with paths relative to pytest's root folder."""
    return _fixture(request, onceproof.flood)


@pytest.fixture
def explore(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Explore a handler: onceproof.explore, with paths relative to pytest's root folder."""
    return _fixture(request, onceproof.explore)


def _fixture(
    request: pytest.FixtureRequest, work: Callable[..., Outcome]
) -> Callable[..., Outcome]:
    config = request.config
    root = config.rootpath
    out = config.getoption("--onceproof-out") or config.getini("onceproof_out") or None

    @functools.wraps(work)
    def run(**settings: Any) -> Outcome:
        __tracebackhide__ = True
        outcome = work(**{"out": out, "cwd": root, **settings})
        report = outcome.report
        shown = report.relative_to(root) if report.is_relative_to(root) else report
        request.node.user_properties.append(("onceproof_report", str(shown)))
        return outcome

    return run
