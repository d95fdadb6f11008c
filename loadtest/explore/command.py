"""``loadtest explore``: the ladder within a budget, the outcome, and replays of saved schedules."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from analysis.errors import OnceproofError, RecordingError, UsageError
from analysis.findings import Finding, FindingKind, VerdictWord
from analysis.schedules import explore_page, schedule_svg
from analysis.store import open_evidence
from analysis.text import count
from analysis.verdict import judge, write_verdict
from consumer.clock import Clock
from loadtest.config import Settings
from loadtest.doctor import examine_run
from loadtest.event_loop import run_in_loop
from loadtest.explore.asked import (
    SAMPLING_SHARE,
    SEARCH_SHARE,
    Asked,
    Place,
    asked_json,
)
from loadtest.explore.drawing import draw, schedules_differ, step_name
from loadtest.explore.execution import Executed
from loadtest.explore.ladder import Rung, guarantee, sampling
from loadtest.explore.memo import Covered
from loadtest.explore.model import NondeterministicError, Schedule
from loadtest.explore.outcome import Exploration, Played, outcome_json, outcome_page
from loadtest.explore.saved import Saved, origin_of, with_names
from loadtest.explore.schedule import (
    nearest_passing,
    retold,
    simplest,
    write,
)
from loadtest.explore.session import MOST_STATES, Effort, Explored, Judged, Session, Time
from loadtest.explore.telling import Telling
from loadtest.run import new_run_dir

_SHOW_EVERY_S = 0.25


# --- exploring --------------------------------------------------------------------------


class Stop:
    """Ctrl-C: the first ends the search where it stands, the second ends everything.

    A search in memory does not return to the event loop, so this is no handler of the loop.
    """

    def __init__(self) -> None:
        self.asked = False
        self.opening = True

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def ask(number: int, frame: FrameType | None) -> None:
            if self.asked or self.opening:
                loop.call_soon_threadsafe(task.cancel)
            self.asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Watch:
    """The budget, and what is told of a rung while it runs."""

    def __init__(
        self,
        rung: Rung,
        session: Session,
        stop: Stop,
        clock: Clock,
        telling: Telling,
        spent: _Spent,
    ) -> None:
        self._rung = rung
        self._session = session
        self._stop = stop
        self._clock = clock
        self._telling = telling
        self._spent = spent
        self._began_s = spent.elapsed_s
        self._text = ""
        self._shown_ns = 0

    def time(self) -> Time:
        return Time(
            lambda ends: self._over(SAMPLING_SHARE if ends else SEARCH_SHARE),
            lambda: self._over(SAMPLING_SHARE),
            lambda: self._over(1.0),
        )

    def _over(self, share: float) -> bool:
        now = self._clock.now_ns()
        if self._text and now - self._shown_ns >= _SHOW_EVERY_S * 1e9:
            self._shown_ns = now
            self._telling.progress(
                self._rung,
                self._spent.elapsed_s,
                self._spent.left_s,
                self._text,
                self._session.effort().handler_runs,
            )
        return self._stop.asked or self._spent.is_over(share, self._began_s)

    def on_progress(self, text: str) -> None:
        self._text = text


class _Spent:
    """The budget, from now on."""

    def __init__(self, budget_s: float, clock: Clock) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._began_ns = clock.now_ns()

    @property
    def elapsed_s(self) -> float:
        return (self._clock.now_ns() - self._began_ns) / 1e9

    @property
    def left_s(self) -> float:
        return self._budget_s - self.elapsed_s

    def is_over(self, share: float, since_s: float) -> bool:
        """Whether a share of what was left then is spent."""
        return self.elapsed_s >= since_s + share * (self._budget_s - since_s)


def run_explore(
    settings: Settings, asked: Asked, place: Place, telling: Telling, stop: Stop | None = None
) -> Exploration:
    """Explore, write the run's directory, and tell what it came to.

    :param stop: None leaves signals alone.
    :raises OnceproofError: it could not be carried out.
    """

    if settings.plan is not None or settings.order.has_objects:
        why = "order.plan" if settings.plan is not None else 'order.envelope "s3"'
        raise UsageError(
            f"explore goes without {why}: it makes a few messages of its own, anew for each "
            "schedule, by order.body. Describe the same order there, or use loadtest run."
        )

    async def work() -> Exploration:
        with contextlib.nullcontext() if stop is None else stop.on_signals():
            return await _explore(settings, asked, place, telling, stop or Stop())

    return _finish(settings, asked, telling, work())


def _finish(
    settings: Settings,
    asked: Asked,
    telling: Telling,
    work: Coroutine[Any, Any, Exploration],
) -> Exploration:
    """Do the work and write down what it came to."""
    try:
        outcome = run_in_loop(work)
    finally:
        telling.close()
    told = asked_json(settings, asked)
    _save(outcome.run_dir / "explore.json", outcome_json(outcome, told))
    _save(outcome.run_dir / "report.html", explore_page(outcome_page(outcome, told)))
    if outcome.played is not None:
        _save(outcome.run_dir / "schedule.svg", schedule_svg(outcome.played.drawing))
    return outcome


async def _explore(
    settings: Settings, asked: Asked, place: Place, telling: Telling, stop: Stop
) -> Exploration:
    run_id, run_dir = new_run_dir(place.out, place.clock, holds="explore.json")
    done: list[Explored] = []
    played: Played | None = None
    reasons: list[str] = []
    opened = _Spent(0, place.clock)
    effort: Effort | None = None
    start_up_s = 0.0
    spent = opened
    try:
        async with _session(settings, asked, place, run_id, run_dir, telling) as session:
            stop.opening = False
            start_up_s = opened.elapsed_s
            spent = _Spent(asked.budget_s, place.clock)
            for rung in asked.rungs:
                watch = _Watch(rung, session, stop, place.clock, telling, spent)
                explored = await session.explore(
                    rung, time=watch.time(), on_progress=watch.on_progress
                )
                done.append(explored)
                telling.ended(rung, explored)
                if explored.failure is not None:
                    telling.phase("confirming")
                    found = await _confirm(session, rung, explored.failure)
                    if isinstance(found, str):
                        reasons.append(found)
                    else:
                        played = await _told(session, rung, found, settings, asked, place, run_dir)
                    break
                if not explored.is_clean:
                    reasons.append(_why_not(rung, explored, asked, stop))
                    break
            seconds, effort = spent.elapsed_s, session.effort()
    except asyncio.CancelledError:
        if not stop.asked:
            raise
        seconds = spent.elapsed_s
        reasons = ["interrupted"]
    except OnceproofError as error:
        error.add_note(f"What was recorded is in {run_dir}.")
        raise
    word = VerdictWord.INCONCLUSIVE
    if played is not None:
        word = VerdictWord.FAIL
        reasons = [f"{kind}: {number}" for kind, number in _kinds_of(played.findings).items()]
    elif not reasons:
        word = VerdictWord.PASS
    return Exploration(
        verdict=word,
        reasons=tuple(reasons),
        guarantee=_guarantee(done, asked),
        run_dir=run_dir,
        rungs=tuple(done),
        played=played,
        notes=_notes(done),
        effort=effort,
        seconds=seconds,
        start_up_s=start_up_s,
    )


def _session(
    settings: Settings, asked: Asked, place: Place, run_id: str, run_dir: Path, telling: Telling
) -> Session:
    return Session(
        settings,
        run_dir,
        run_id=run_id,
        endpoint_url=place.endpoint_url,
        copies=max(asked.copies, asked.orders),
        orders=asked.orders,
        conflict=asked.conflict,
        poison=asked.poison,
        batch=asked.batch,
        seed=asked.seed,
        command=place.command,
        clock=place.clock,
        phase=telling.phase,
        warn=telling.warn,
    )


def _guarantee(done: Sequence[Explored], asked: Asked) -> str:
    clean: dict[Rung, Covered | Executed] = {
        one.rung: one.searched for one in done if one.is_clean and one.searched is not None
    }
    told = guarantee(clean, asked=asked.rungs, of=asked.of)
    several = "several" if asked.batch == 1 else f"more than {asked.batch}"
    others = [
        text
        for text, is_asked in (
            ("conflicts in other details", asked.conflict),
            ("other messages that no handler can accept", asked.poison),
        )
        if is_asked  # the seed chose one
    ]
    worth = ""
    if any(isinstance(one, Executed) for one in clean.values()):
        worth = (
            " As the handler does not make the same calls each time, this is less than a proof: "
            "every order of calls that matters was carried out with the values that the handler "
            "had in that execution, and other values may lead it elsewhere."
        )
    told = ", ".join([told.removesuffix("."), *others])
    return (
        f"{told}, {several} messages in one event, and what a process keeps from one run to the "
        f"next (each run is in a fresh process).{worth}"
    )


def _notes(done: Sequence[Explored]) -> tuple[str, ...]:
    notes = dict.fromkeys(note for one in done for note in one.notes)
    return (*notes, *(conditions_that_cannot_fail(done[-1].judged) if done else ()))


def conditions_that_cannot_fail(judged: Sequence[Judged]) -> list[str]:
    """The advice that every set of evidence gives: in another one the condition may have failed,
    or an item had what it asks for."""
    run_dirs = dict.fromkeys(one.run_dir for one in judged)
    told = [{one.place: str(one) for one in examine_run(run_dir)} for run_dir in run_dirs]
    if not told:
        return []
    return [text for place, text in told[0].items() if all(place in one for one in told)]


def _why_not(rung: Rung, explored: Explored, asked: Asked, stop: Stop) -> str:
    """Why a rung without a failure is not clean."""
    told = explored.reason or _what_is_open(rung, explored, asked, stop)
    if explored.sampled is not None and explored.sampled.executed.executions:
        told += f". {sampling(explored.sampled, varies=explored.varies is not None)}"
    return told


def _what_is_open(rung: Rung, explored: Explored, asked: Asked, stop: Stop) -> str:
    covered = explored.covered
    why = f"the budget of {asked.budget_s:g} s was spent"
    if stop.asked:
        why = "interrupted"
    elif covered is not None and covered.states >= MOST_STATES:
        why = f"there are more than {MOST_STATES:,} states"
    searched = explored.searched
    if searched is None:
        return f"{why} in {rung}"
    found = (
        f"{count(searched.states, 'state')} found"
        if isinstance(searched, Covered)
        else count(searched.executions, "execution")
    )
    more = "" if searched.exhausted else ", more to come"
    judged = f", {explored.unjudged} kinds of ending not judged" if explored.unjudged else ""
    return f"{why} in {rung}: {found}{more}{judged}"


# --- a failure --------------------------------------------------------------------------


async def _confirm(session: Session, rung: Rung, found: Judged) -> Judged | str:
    """The simplest schedule that was carried out twice with the findings of this one; or why there
    is none."""
    for schedule in await _candidates(session, rung, found.schedule):
        agreed = await _twice(session, schedule, rung.copies)
        if isinstance(agreed, Judged) and _same(agreed.findings) == _same(found.findings):
            return agreed
    return (
        "non-deterministic: a schedule failed "
        f"({', '.join(sorted(_same(found.findings)))}), and did not fail in the same way when it "
        "was carried out again. Does the handler use something that differs from run to run, such "
        "as another service, a file, or a process that stays?"
    )


async def _candidates(session: Session, rung: Rung, schedule: Schedule) -> list[Schedule]:
    """What ends as this schedule does, the simplest first, itself last."""
    try:
        world = session.world(rung)
        simple = await simplest(world, await retold(world, schedule))
    except (UsageError, NondeterministicError):
        return [schedule]
    return list(dict.fromkeys((simple, schedule)))


async def _twice(session: Session, schedule: Schedule, copies: int) -> Judged | str:
    """The second of two live runs that agree; or how they do not."""
    first, second = [(await session.play([schedule], copies))[0] for _ in range(2)]
    for one in (first, second):
        if one.not_followed is not None:
            return one.not_followed
    if _same(first.findings) != _same(second.findings):
        told = [", ".join(sorted(_same(one.findings))) or "nothing" for one in (first, second)]
        return f"carried out twice, it came to {told[0]} and then to {told[1]}"
    return second


def _same(findings: Sequence[Finding]) -> Counter[FindingKind]:
    return Counter(finding.kind for finding in findings)


def _kinds_of(findings: Sequence[Finding]) -> dict[str, int]:
    return {str(kind): number for kind, number in sorted(_same(findings).items())}


async def _told(
    session: Session,
    rung: Rung,
    found: Judged,
    settings: Settings,
    asked: Asked,
    place: Place,
    run_dir: Path,
) -> Played:
    """A confirmed failure with its drawing, its file, and the nearest schedule that passes."""
    file = run_dir / "schedule.txt"
    states = session.world(rung)
    general = with_names(found.schedule, {real: name for name, real in session.own_names.items()})
    _save(file, write(origin_of(settings, asked, place, states.bounds), general))
    race: tuple[int, int] | None = None
    difference, passing_schedule = None, None
    with contextlib.suppress(UsageError, NondeterministicError):
        passing = await nearest_passing(
            states,
            await retold(states, found.schedule),
            lambda state: not states.suspicions(state),
        )
        if passing is not None:
            (live,) = await session.play([passing.schedule], rung.copies)
            if live.not_followed is None and not live.findings:
                race, passing_schedule = passing.race, passing.schedule
                difference = schedules_differ(
                    found.schedule, passing.schedule, passing.differs_at, race
                )
    played = _drawn(found, file, place, racing=race or ())
    names = [step_name(found.schedule[position], position + 1) for position in race or ()]
    return replace(
        played,
        race=" and ".join(names) or None,
        passing=difference,
        passing_schedule=passing_schedule,
    )


def _drawn(found: Judged, file: Path, place: Place, racing: Collection[int] = ()) -> Played:
    verdict = judge(found.run_dir)
    write_verdict(found.run_dir, verdict)
    with open_evidence(found.run_dir) as evidence:
        drawing = draw(evidence, found.schedule, racing)
    return Played(
        found.schedule, found.run_dir, verdict, drawing, file, _replay_command(file, place)
    )


def _replay_command(file: Path, place: Place) -> str:
    endpoint = f" --endpoint-url {place.endpoint_url}" if place.endpoint_url else ""
    return f"loadtest explore --replay {file}{endpoint}"


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordingError(
            f"{path} could not be written: {error.strerror or error}. Free some space, or choose "
            "another place (--out)."
        ) from error


# --- carrying out a saved one -------------------------------------------------------------------


def run_replay(
    saved: Saved, place: Place, telling: Telling, stop: Stop | None = None
) -> Exploration:
    """Carry a saved schedule out twice, and judge it.

    PASS: it fails no longer. FAIL: it does. INCONCLUSIVE: it cannot be followed, or the two
    times did not agree.

    :raises OnceproofError: it could not be carried out.
    """

    async def work() -> Exploration:
        with contextlib.nullcontext() if stop is None else stop.on_signals():
            return await _replay(saved, place, telling, stop or Stop())

    return _finish(saved.settings, saved.asked, telling, work())


async def _replay(saved: Saved, place: Place, telling: Telling, stop: Stop) -> Exploration:
    asked = saved.asked
    run_id, run_dir = new_run_dir(place.out, place.clock, holds="explore.json")
    spent = _Spent(0, place.clock)
    found: Judged | str = "interrupted"
    effort: Effort | None = None
    start_up_s = 0.0
    try:
        async with _session(saved.settings, asked, place, run_id, run_dir, telling) as session:
            stop.opening = False
            start_up_s = spent.elapsed_s
            telling.phase("carrying it out twice")
            schedule = with_names(saved.schedule, session.own_names)
            found = await _twice(session, schedule, asked.copies)
            seconds, effort = spent.elapsed_s - start_up_s, session.effort()
    except asyncio.CancelledError:
        if not stop.asked:
            raise
        seconds = spent.elapsed_s - start_up_s
    except OnceproofError as error:
        error.add_note(f"What was recorded is in {run_dir}.")
        raise
    played = None
    notes = tuple(f"{text}." for text in saved.changed)
    if isinstance(found, str):
        word = VerdictWord.INCONCLUSIVE
        reasons: tuple[str, ...] = ("; ".join((found, *saved.changed)),)
    else:
        played = _drawn(found, saved.file, place)
        kinds = _kinds_of(played.findings)
        word = VerdictWord.FAIL if kinds else VerdictWord.PASS
        reasons = tuple(f"{kind}: {number}" for kind, number in kinds.items())
    return Exploration(
        verdict=word,
        reasons=reasons,
        guarantee="",
        run_dir=run_dir,
        played=played,
        notes=notes,
        effort=effort,
        seconds=seconds,
        start_up_s=start_up_s,
    )
