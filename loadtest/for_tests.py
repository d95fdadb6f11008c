"""What ``run`` and ``explore`` tell the package ``onceproof``, which calls them for a test."""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from analysis.findings import CheckStatus, Verdict, VerdictWord
from analysis.proofs import check_text
from loadtest.explore.outcome import Exploration

FLAG = "--for-tests"


def end_with_caller() -> None:
    """From now on end as after Ctrl-C when the caller is gone, who holds standard input open."""

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def run_answer(run_dir: Path, verdict: Verdict, command: str) -> str:
    """A flood's outcome as JSON.

    :param command: that repeats it.
    """
    return _answer(
        verdict.verdict,
        verdict.reasons,
        {check.kind: check.count for check in verdict.checks if check.count},
        run_dir,
        command,
        [_first_line(verdict.verdict, verdict.reasons), *_run_text(run_dir, verdict, command)],
    )


def _run_text(run_dir: Path, verdict: Verdict, command: str) -> Iterator[str]:
    for check in verdict.checks:
        if check.status is CheckStatus.FOUND:
            yield ""
            yield f"{check.kind} ({check.count:,})"
            for line in check_text(check, shlex.quote(str(run_dir))):
                yield f"  {line}".rstrip()
    for note in verdict.notes:
        yield f"Note: {note}"
    yield ""
    yield f"report  {run_dir / 'report.html'}"
    yield f"again   {command}"


def explore_answer(outcome: Exploration, command: str) -> str:
    """An exploration's outcome as JSON.

    :param command: that repeats it; a failure is repeated by its schedule.
    """
    played = outcome.played
    again = command if played is None else played.command
    first = _first_line(outcome.verdict, outcome.reasons)
    text = [first, "", *(line for line in outcome.text() if line != first)]
    if played is None:
        text.append(f"again     {command}")
    findings = Counter[str](finding.kind for finding in (played.findings if played else ()))
    return _answer(
        outcome.verdict,
        outcome.reasons,
        findings,
        outcome.run_dir,
        again,
        text,
        outcome.guarantee,
    )


def _first_line(verdict: VerdictWord, reasons: tuple[str, ...]) -> str:
    return f"{verdict}{''.join(f'  {reason}' for reason in reasons)}"


def _answer(
    verdict: VerdictWord,
    reasons: tuple[str, ...],
    findings: Mapping[str, int],
    run_dir: Path,
    command: str,
    text: list[str],
    guarantee: str = "",
) -> str:
    told = {
        "verdict": verdict,
        "reasons": reasons,
        "findings": findings,
        "guarantee": guarantee,
        "run_dir": str(run_dir),
        "command": command,
        "text": "\n".join(text),
    }
    return json.dumps(told) + "\n"
