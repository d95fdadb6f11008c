"""What an exploration came to: data, in words, and as ``explore.json``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.findings import CheckReport, CheckStatus, Finding, Verdict, VerdictWord
from analysis.proofs import check_text
from analysis.schedules import LEGEND, Drawing, Page, RungRow, drawing_text
from loadtest.explore.model import Schedule
from loadtest.explore.schedule import switches, write_step
from loadtest.explore.session import Effort, Explored

WIDTH = 100  # columns of the text of an outcome


@dataclass(frozen=True, slots=True)
class Played:
    """A schedule that was carried out twice with the same findings, or none."""

    schedule: Schedule
    evidence: Path  # the directory of the second time
    verdict: Verdict  # on it
    drawing: Drawing
    file: Path  # the saved schedule
    command: str  # that carries it out again
    race: str | None = None  # the two steps whose order decides
    passing: str | None = None  # what differs in the nearest schedule that passes
    passing_schedule: Schedule | None = None

    @property
    def checks(self) -> list[CheckReport]:
        return [check for check in self.verdict.checks if check.status is CheckStatus.FOUND]

    @property
    def findings(self) -> list[Finding]:
        return [finding for check in self.checks for finding in check.findings]


@dataclass(frozen=True, slots=True)
class Exploration:
    """What an exploration came to."""

    verdict: VerdictWord  # PASS: all there is was covered, and nothing failed
    reasons: tuple[str, ...]  # why not PASS, one sentence each
    guarantee: str  # what was covered and what was not, in one sentence
    run_dir: Path
    rungs: tuple[Explored, ...] = ()
    played: Played | None = None  # the schedule that failed, or that was replayed
    notes: tuple[str, ...] = ()
    effort: Effort | None = None  # None: it came to nothing
    seconds: float = 0.0  # after start-up
    start_up_s: float = 0.0

    @property
    def covered(self) -> str:
        """The guarantee, or as much of it as there is when something failed or was cut short;
        empty for nothing."""
        if not any(one.is_clean for one in self.rungs):
            return ""
        label = "Guarantee" if self.verdict is VerdictWord.PASS else "Covered before"
        return f"{label}: {self.guarantee}"

    def text(self, width: int = WIDTH) -> list[str]:
        """All that is to be told, as lines of plain characters."""
        return [*self._body(width), f"{self.verdict}{self._reasons()}", *self._files()]

    def _reasons(self) -> str:
        return "".join(f"  {reason}" for reason in self.reasons)

    def _body(self, width: int) -> Iterator[str]:
        if self.played is not None:
            yield from played_text(self.played, width)
        if self.covered:
            yield self.covered
            yield ""
        for note in self.notes:
            yield f"Note: {note}"
        if self.notes:
            yield ""

    def _files(self) -> Iterator[str]:
        yield f"report    {self.run_dir / 'report.html'}"
        if self.played is not None:
            yield f"schedule  {self.played.file}"
            yield f"again     {self.played.command}"


def outcome_page(outcome: Exploration, asked: Mapping[str, Any]) -> Page:
    """What ``report.html`` says."""
    played = outcome.played
    page = Page(
        run_id=outcome.run_dir.name,
        handler=asked["handler"],
        verdict=outcome.verdict,
        reasons=outcome.reasons,
        covered=outcome.covered,
        rungs=tuple(
            RungRow(
                str(one.rung),
                _word(one),
                one.covered.interleavings if one.covered else None,
                one.covered.states if one.covered else None,
                one.executed.executions if one.executed else None,
                one.sampled.executed.executions if one.sampled else None,
                len(one.judged),
                one.seconds,
            )
            for one in outcome.rungs
        ),
        settings=(
            *((name, _setting_text(value)) for name, value in asked.items() if name != "rungs"),
            ("start-up", f"{outcome.start_up_s:.2f} s"),
            ("after it", f"{outcome.seconds:.2f} s"),
        ),
        notes=outcome.notes,
    )
    if played is None:
        return page
    return replace(
        page,
        drawing=played.drawing,
        race=played.race,
        passing=played.passing,
        replay=played.command,
        findings=tuple(
            (f"{check.kind} ({check.count:,})", tuple(_check_text(check, played)))
            for check in played.checks
        ),
    )


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def played_text(played: Played, width: int) -> Iterator[str]:
    yield from drawing_text(played.drawing, width)
    yield f"    {LEGEND}"
    yield ""
    if played.race is not None:
        yield f"Racing: {played.race}."
    if played.passing is not None:
        yield f"Nearest schedule that passes, carried out too: {played.passing}."
    if played.race is not None or played.passing is not None:
        yield ""
    for check in played.checks:
        yield f"{check.kind} ({check.count:,})"
        for line in _check_text(check, played):
            yield f"  {line}".rstrip()
        yield ""


def _check_text(check: CheckReport, played: Played) -> list[str]:
    return check_text(check, shlex.quote(str(played.evidence)))


def outcome_json(outcome: Exploration, asked: Mapping[str, Any]) -> str:
    """``explore.json``. Interleavings may be larger than 64 bits.

    :param asked: what was asked for.
    """
    played = outcome.played
    told: dict[str, Any] = {
        "verdict": outcome.verdict,
        "exit_code": outcome.verdict.exit_code,
        "reasons": outcome.reasons,
        "guarantee": outcome.guarantee,
        "asked": dict(asked),
        "seconds": round(outcome.seconds, 3),
        "start_up_s": round(outcome.start_up_s, 3),
        "rungs": [_rung(one) for one in outcome.rungs],
        "effort": None if outcome.effort is None else asdict(outcome.effort),
        "notes": outcome.notes,
        "schedule": None,
        "findings": [],
    }
    if played is not None:
        told["schedule"] = {
            "steps": _steps(played.schedule),
            "switches": switches(played.schedule),
            "race": played.race,
            "passing": played.passing,
            "passing_steps": _steps(played.passing_schedule or ()),
            "file": str(played.file),
            "replay": played.command,
            "evidence": str(played.evidence),
        }
        told["findings"] = [
            {
                "kind": finding.kind,
                "order_key": finding.order_key,
                "explanation": finding.explanation,
                "flags": finding.flags,
            }
            for finding in played.findings
        ]
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _word(explored: Explored) -> str:
    return "clean" if explored.is_clean else "failed" if explored.failure else "not finished"


def _rung(explored: Explored) -> dict[str, Any]:
    covered = explored.covered
    told: dict[str, Any] = {
        "copies": explored.rung.copies,
        "faults": explored.rung.faults,
        "clean": explored.is_clean,
        "search": "states" if explored.executed is None else "executions",
        "seconds": round(explored.seconds, 3),
        "judged": len(explored.judged),
        "unjudged": explored.unjudged,
        "reason": explored.reason,
    }
    if covered is not None:
        told |= {
            "exhausted": covered.exhausted,
            "states": covered.states,
            "transitions": covered.transitions,
            "depth": covered.depth,
            "interleavings": covered.interleavings,
            "final_states": covered.final_states,
        }
    if explored.executed is not None:
        told |= {
            "varies": explored.varies,
            "exhausted": explored.executed.exhausted,
            "executions": explored.executed.executions,
            "blocked": explored.executed.blocked,
            "diverged": explored.executed.diverged,
        }
    if explored.sampled is not None:
        odds = explored.sampled.odds
        told["sampled"] = {
            "schedules": explored.sampled.executed.executions,
            "depth": odds.depth,
            "seed": explored.sampled.seed,
            "chance_at_least": [odds.of_all(faults) for faults in range(odds.faults + 1)],
        }
    return told


def _steps(schedule: Sequence[Any]) -> list[str]:
    return [write_step(choice) for choice in schedule]
