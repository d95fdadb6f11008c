"""``loadtest mutants``: every planted bug must be caught, every correct twin left alone.

A bug and its twin run side by side, each under a small flood of its own, on one embedded
AWS that all of them share. A bug that a fault brings out runs once more without the fault:
that it stays hidden then shows that it was the fault. All are judged as any other run. Bugs
that a few copies and one fault show are explored too: in every interleaving of that small
world the bug must be found, and the twin be clean in all of them.
"""

from __future__ import annotations

import asyncio
import difflib
import shutil
import tempfile
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from analysis.errors import OnceproofError, UsageError
from analysis.findings import Verdict, VerdictWord
from analysis.report import write_outputs
from analysis.store import finish_evidence, open_evidence
from analysis.verdict import judge, write_verdict
from consumer.clock import Clock
from consumer.processes import Processes
from loadtest.config import Settings, settings_of
from loadtest.emulator import Emulator
from loadtest.explore.ladder import Rung
from loadtest.explore.session import Session
from loadtest.planted import BASE, CODE, PLANTED, Planted, Smallest
from loadtest.run import Stops, flood, new_run_dir, plan_of, run_info, write_run_info
from loadtest.terminal import Quiet

T = TypeVar("T")

_AT_ONCE = 2
"""Bugs under way together. Most of a flood's time is waiting for what failed to come back."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One handler under one flood."""

    handler: str
    verdict: VerdictWord
    reported: dict[str, int]  # findings by kind
    messages: int
    first_finding_after: int | None
    """Messages that had been delivered when the first finding, in order of time, was there."""
    seconds: float
    run_dir: str | None  # None: as it should be, and not kept


@dataclass(frozen=True, slots=True)
class Exploration:
    """One handler in every interleaving of a small world."""

    handler: str
    copies: int
    conflict: bool  # the second one has other details
    poison: bool  # one of them is a message that no handler can accept
    batch: int  # messages in one event, at most
    faults: tuple[str, ...]  # kinds of the one that may be chosen; empty: none may
    reported: tuple[str, ...]  # kinds of finding of the first schedule that failed
    clean: bool  # everything was covered, and nothing failed
    states: int
    interleavings: int
    live_schedules: int
    seconds: float
    reason: str | None  # why it says nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """One planted bug. Without trials it needs what is not there and was not run."""

    name: str
    kind: str
    reports: tuple[str, ...]
    expected: tuple[str, ...]
    needs: tuple[str, ...]
    bug: Trial | None = None
    twin: Trial | None = None
    faults: tuple[str, ...] = ()  # that bug and twin met
    without: Trial | None = None  # the bug again, without them
    explored: Exploration | None = None
    explored_twin: Exploration | None = None

    @property
    def found_without(self) -> bool:
        """Whether a flood without the fault has shown it too."""
        return self.without is not None and set(self.expected) <= set(self.without.reported)

    @property
    def missed(self) -> bool:
        if self.bug is None:
            return False
        unseen = self.explored is not None and not set(self.expected) & set(self.explored.reported)
        return unseen or not set(self.expected) <= set(self.bug.reported)

    @property
    def blamed(self) -> bool:
        explored = self.explored_twin
        return (self.twin is not None and self.twin.verdict is VerdictWord.FAIL) or (
            explored is not None and bool(explored.reported)
        )

    @property
    def unclear(self) -> bool:
        explored = self.explored_twin
        return (self.twin is not None and self.twin.verdict is VerdictWord.INCONCLUSIVE) or (
            explored is not None and not explored.clean and not explored.reported
        )


@dataclass(frozen=True, slots=True)
class Matrix:
    """What ``--json`` prints."""

    seed: int
    seconds: float
    caught: int
    missed: tuple[str, ...]  # names of bugs
    blamed: tuple[str, ...]  # names of bugs whose twin was blamed
    unclear: tuple[str, ...]  # names of bugs on whose twin there was no verdict
    found_without: tuple[str, ...]  # names of bugs that showed without their fault too
    outcomes: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        if self.missed or self.blamed:
            return VerdictWord.FAIL.exit_code
        return (VerdictWord.INCONCLUSIVE if self.unclear else VerdictWord.PASS).exit_code

    def json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


class Progress(Protocol):
    """Where the matrix tells how it is going."""

    def started(self, name: str) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


def chosen(names: Sequence[str]) -> tuple[Planted, ...]:
    """The planted bugs of these names; all of them without names.

    :raises UsageError: there is no bug of such a name.
    """
    known = {bug.name: bug for bug in PLANTED}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UsageError(f"--only: no planted bug is called {name!r}; {hint}")
    return tuple(bug for bug in PLANTED if not names or bug.name in names)


def settings_for(bug: Planted, function: str, seed: int, *, faults: bool = True) -> Settings:
    """The bug's flood with its ``handler`` or with its twin, ``correct``."""
    merged = {name: dict(section) for name, section in BASE.items()}
    for name, section in bug.settings.items():
        if not isinstance(section, Mapping):
            merged[name] = section  # the list of tables
        elif name == "order" and "key" in section:
            merged[name] = dict(section)  # another shape
        else:
            merged[name] = {**merged.get(name, {}), **section}
    merged["handler"] |= {"code": str(CODE), "handler": f"{bug.name}.{function}"}
    merged["load"] |= {"seed": seed}
    if not faults:
        merged.pop("faults", None)
    return settings_of(merged, CODE)


async def run_matrix(
    bugs: Sequence[Planted], *, seed: int, out: Path, clock: Clock, progress: Progress
) -> Matrix:
    """Run every bug that a flood can show, and its twin.

    :param out: where the directories of runs are; those that went wrong are kept there.
    :raises OnceproofError: a flood could not be carried out.
    """
    began_ns = clock.now_ns()
    slots = asyncio.Semaphore(_AT_ONCE)

    async def outcome(bug: Planted) -> Outcome:
        if bug.needs:
            return Outcome(bug.name, bug.kind, bug.reports, bug.expected, bug.needs)
        async with slots:
            progress.started(bug.name)
            trials = [("handler", True), ("correct", True)]
            if bug.faults:
                trials.append(("handler", False))
            bug_trial, twin_trial, *without = await _all(
                _trial(bug, settings_for(bug, function, seed, faults=faults), out, url, clock)
                for function, faults in trials
            )
            ended = Outcome(
                name=bug.name,
                kind=bug.kind,
                reports=bug.reports,
                expected=bug.expected,
                needs=(),
                bug=bug_trial,
                twin=twin_trial,
                faults=bug.faults,
                without=without[0] if without else None,
            )
            if bug.explore is not None:
                ended = replace(
                    ended,
                    explored=await _explored(bug, bug.explore, "handler", seed, url, clock),
                    explored_twin=await _explored(bug, bug.explore, "correct", seed, url, clock),
                )
            progress.ended(ended)
            return ended

    with tempfile.TemporaryDirectory(prefix="onceproof-") as scratch:
        async with Processes() as processes, Emulator(Path(scratch), processes) as url:
            outcomes = await _all(outcome(bug) for bug in bugs)
    return Matrix(
        seed=seed,
        seconds=_seconds(began_ns, clock),
        caught=sum(outcome.bug is not None and not outcome.missed for outcome in outcomes),
        missed=tuple(outcome.name for outcome in outcomes if outcome.missed),
        blamed=tuple(outcome.name for outcome in outcomes if outcome.blamed),
        unclear=tuple(outcome.name for outcome in outcomes if outcome.unclear),
        found_without=tuple(outcome.name for outcome in outcomes if outcome.found_without),
        outcomes=tuple(outcomes),
    )


async def _explored(
    bug: Planted, world: Smallest, function: str, seed: int, url: str, clock: Clock
) -> Exploration:
    settings = settings_for(bug, function, seed, faults=False)
    with tempfile.TemporaryDirectory(prefix="onceproof-") as directory:
        async with Session(
            settings,
            Path(directory),
            run_id=f"onceproof-{Path(directory).name.rpartition('-')[2]}",
            endpoint_url=url,
            copies=world.copies,
            orders=1,
            conflict=world.conflict,
            poison=world.poison,
            batch=world.batch,
            seed=seed,
            command=f"loadtest mutants --only {bug.name} --seed {seed}",
            clock=clock,
            phase=lambda text: None,
            warn=lambda text: None,
        ) as session:
            found = await session.explore(Rung(world.copies, world.faults, world.kinds))
    findings = found.failure.findings if found.failure is not None else ()
    return Exploration(
        handler=settings.handler.handler,
        copies=world.copies,
        conflict=world.conflict,
        poison=world.poison,
        batch=world.batch,
        faults=tuple(str(kind) for kind in world.kinds),
        reported=tuple(sorted({str(finding.kind) for finding in findings})),
        clean=found.is_clean,
        states=found.covered.states if found.covered is not None else 0,
        interleavings=found.covered.interleavings if found.covered is not None else 0,
        live_schedules=found.effort.live_schedules,
        seconds=round(found.seconds, 1),
        reason=found.reason,
    )


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; when one fails, the others are cancelled and waited for."""
    running = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _trial(bug: Planted, settings: Settings, out: Path, url: str, clock: Clock) -> Trial:
    began_ns = clock.now_ns()
    run_id, run_dir = new_run_dir(out, clock)
    plan = plan_of(settings)
    info = run_info(
        settings,
        plan,
        run_id=run_id,
        endpoint_url=url,
        created_at=clock.now_ns(),
        command=f"loadtest mutants --only {bug.name} --seed {settings.load.seed}",
    )
    write_run_info(run_dir, info)
    reporter = Quiet()
    try:
        info = await flood(settings, plan, info, run_dir, url, clock, reporter, Stops(reporter))
    except OnceproofError as error:
        error.add_note(f"What was recorded of {info.handler} is in {run_dir}.")
        raise
    write_run_info(run_dir, info)
    verdict, first_after = await asyncio.to_thread(_judged, run_dir)
    reported = {str(check.kind): check.count for check in verdict.checks if check.count}
    if settings.handler.handler.endswith(".correct"):
        as_it_should_be = verdict.verdict is VerdictWord.PASS
    else:
        shown = set(bug.expected) <= set(reported)
        as_it_should_be = shown if settings.faults.rules or not bug.faults else not shown
    if as_it_should_be:
        shutil.rmtree(run_dir)
    else:
        write_verdict(run_dir, verdict)
        write_outputs(run_dir, verdict)
    return Trial(
        handler=settings.handler.handler,
        verdict=verdict.verdict,
        reported=reported,
        messages=verdict.counts.messages,
        first_finding_after=first_after,
        seconds=_seconds(began_ns, clock),
        run_dir=None if as_it_should_be else str(run_dir),
    )


def _judged(run_dir: Path) -> tuple[Verdict, int | None]:
    finish_evidence(run_dir)
    verdict = judge(run_dir)
    return verdict, _messages_until_first(run_dir, verdict)


def _messages_until_first(run_dir: Path, verdict: Verdict) -> int | None:
    """Messages delivered when the invocations of the first finding had ended (or, where it
    names none, when its messages had been settled)."""
    with open_evidence(run_dir) as evidence:
        ended = _times(evidence.rows("SELECT invocation_id AS id, ended_at AS at FROM invocations"))
        settled = _times(
            evidence.rows(
                "SELECT message_no AS id, max(acked_at) AS at "
                "FROM deliveries JOIN acks USING (delivery_id) GROUP BY message_no"
            )
        )
        moments = [
            max(known)
            for check in verdict.checks
            for finding in check.findings
            if (
                known := [ended[number] for number in finding.invocation_ids if number in ended]
                or [settled[number] for number in finding.message_nos if number in settled]
            )
        ]
        if not moments:
            return None
        return int(
            evidence.scalar(
                "SELECT count(DISTINCT message_no) FROM deliveries "
                "WHERE queue = 'queue' AND received_at <= ?",
                [min(moments)],
            )
        )


def _times(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    return {row["id"]: row["at"] for row in rows if row["at"] is not None}


def _seconds(began_ns: int, clock: Clock) -> float:
    return round((clock.now_ns() - began_ns) / 1e9, 1)
