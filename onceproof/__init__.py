"""Floods and explorations of a queue consumer, from a test.

    from onceproof import flood

    def test_orders_are_processed_once() -> None:
        flood(code="src", handler="app.handler", orders=50, copies=4).assert_clean()

With pytest the fixtures ``flood`` and ``explore`` do the same, relative to its root folder.

The work is done by a process of its own, which is talked to in JSON. This package imports the
standard library alone, so that no package of the caller's, whatever its name, is ever
mistaken for one of the tester's, nor the other way round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CannotRunError", "NotPassed", "Outcome", "explore", "flood"]

_COMMAND = Path(__file__).with_name("__main__.py")
_PATIENCE_S = 15.0
"""How long a run that is asked to end may take to finish what is under way."""


class CannotRunError(Exception):
    """Nothing was tested: a setting is wrong, or handler or endpoint cannot be used. The message
    names it and the cure."""


class NotPassed(AssertionError):  # noqa: N818 - named as a test result, which it is
    """A verdict other than PASS, told with its findings and where to look."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a flood or an exploration came to."""

    verdict: str  # "PASS", "FAIL" or "INCONCLUSIVE"
    reasons: tuple[str, ...]  # why not PASS, one sentence each
    findings: Mapping[str, int]  # how many of each kind, as in verdict.json
    guarantee: str  # of an exploration: what was covered and what was not; else empty
    run_dir: Path
    report: Path  # report.html
    command: str  # that does it again
    text: str  # all of it as a person would read it: verdict, findings with lanes, files

    def assert_clean(self) -> None:
        """
        :raises NotPassed: there is a finding, or too little was seen to say anything.
        """
        __tracebackhide__ = True
        if self.verdict != "PASS":
            raise NotPassed(self.text)


def flood(
    *,
    code: str | Path | None = None,
    handler: str | None = None,
    config: str | Path | None = None,
    orders: int | None = None,
    copies: int | None = None,
    conflicts: float | None = None,
    poison: float | None = None,
    rate: float | str | None = None,
    burst: bool | None = None,
    concurrency: int | None = None,
    seed: int | None = None,
    fault: str | Sequence[str] = (),
    faults: str | Path | None = None,
    control: bool = False,
    endpoint_url: str | None = None,
    out: str | Path | None = None,
    cwd: str | Path | None = None,
) -> Outcome:
    """Flood a handler, as ``loadtest run`` does with the options of these names.

    :param out: folder for the run's directory; ``runs`` if not given.
    :param cwd: what paths are relative to, and where ``loadtest.toml`` is; the working
        directory if not given.
    :raises CannotRunError: nothing could be tested.
    """
    __tracebackhide__ = True
    flags = {
        "code": code,
        "handler": handler,
        "config": config,
        "orders": orders,
        "copies": copies,
        "conflicts": conflicts,
        "poison": poison,
        "rate": rate,
        "burst": burst,
        "concurrency": concurrency,
        "seed": seed,
        "fault": [fault] if isinstance(fault, str) else list(fault),
        "faults": faults,
        "control": control or None,
        "endpoint_url": endpoint_url,
        "out": out,
    }
    return _answer("run", flags, cwd)


def explore(
    *,
    code: str | Path | None = None,
    handler: str | None = None,
    config: str | Path | None = None,
    copies: int | None = None,
    faults: int | None = None,
    orders: int | None = None,
    conflict: bool = False,
    poison: bool = False,
    batch: int | None = None,
    kinds: Sequence[str] | None = None,
    budget: str | None = None,
    seed: int | None = None,
    endpoint_url: str | None = None,
    out: str | Path | None = None,
    cwd: str | Path | None = None,
) -> Outcome:
    """Explore a handler, as ``loadtest explore`` does with the options of these names.

    :param cwd: as for :func:`flood`.
    :raises CannotRunError: nothing could be tested.
    """
    __tracebackhide__ = True
    flags = {
        "code": code,
        "handler": handler,
        "config": config,
        "copies": copies,
        "faults": faults,
        "orders": orders,
        "conflict": conflict or None,
        "poison": poison or None,
        "batch": batch,
        "kinds": None if kinds is None else ",".join(kinds),
        "budget": budget,
        "seed": seed,
        "endpoint_url": endpoint_url,
        "out": out,
    }
    return _answer("explore", flags, cwd)


def _answer(command: str, flags: Mapping[str, Any], cwd: str | Path | None) -> Outcome:
    __tracebackhide__ = True
    directory = Path.cwd() / (cwd or "")
    # Open for as long as the answer is wanted: the process ends when this one is gone.
    wanted, open_end = os.pipe()
    try:
        # No folder of the caller's is on the path of the process, no PYTHON* variable counts,
        # and Ctrl-C reaches this process alone.
        process = subprocess.Popen(
            [sys.executable, "-P", "-E", str(_COMMAND), command, "--for-tests", *_arguments(flags)],
            cwd=directory,
            stdin=wanted,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        out, err = _said(process)
    finally:
        os.close(wanted)
        os.close(open_end)
    if not out:
        raise CannotRunError(err.strip().removeprefix("error: "))
    sys.stderr.write(err)  # warnings
    told = json.loads(out)
    run_dir = directory / told["run_dir"]
    return Outcome(
        verdict=told["verdict"],
        reasons=tuple(told["reasons"]),
        findings=told["findings"],
        guarantee=told["guarantee"],
        run_dir=run_dir,
        report=run_dir / "report.html",
        command=told["command"],
        text=told["text"],
    )


def _said(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Both streams, at its end; what interrupts this interrupts the process too."""
    __tracebackhide__ = True
    try:
        return process.communicate()
    except BaseException:
        process.terminate()
        try:
            process.communicate(timeout=_PATIENCE_S)
        except BaseException:  # too slow, or interrupted once more
            process.kill()
            process.communicate()
        raise


def _arguments(flags: Mapping[str, Any]) -> list[str]:
    """The options of the command line."""
    arguments = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        match value:
            case None:
                pass
            case bool():
                arguments.append(f"--{flag}" if value else f"--no-{flag}")
            case list():
                arguments += [f"--{flag}={entry}" for entry in value]
            case _:
                arguments.append(f"--{flag}={value}")
    return arguments
