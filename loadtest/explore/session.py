"""An exploration: the real handler and the real store, searched in memory, and every kind of
ending that was found carried out once for real and judged.

What is opened once serves any number of rungs: the store, the process that has imported the
handler, and all that was learned of both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from botocore.credentials import Credentials as BotocoreCredentials

from analysis.findings import Finding, Verdict
from analysis.schema import Phase, RunStatus
from analysis.verdict import judge
from consumer.clock import Clock
from consumer.explore_environment import Zygote
from consumer.faults import NO_FAULTS
from consumer.gate import ParallelCallsError, WireCall
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.processes import Processes
from consumer.recorder import Recorder
from consumer.redaction import Redaction
from consumer.signing import Signer
from loadtest.config import Settings, real_effects
from loadtest.dependencies import packages_of
from loadtest.emulator import Emulator
from loadtest.explore import dpor
from loadtest.explore.cast import LEARNING, Cast, Receives
from loadtest.explore.execution import Executed, Execution, WorldExecution
from loadtest.explore.ladder import Rung
from loadtest.explore.live import EpochClock, Followed, NotFollowedError, Stagehand, fault_plan
from loadtest.explore.memo import Covered, Judge, Representative, search
from loadtest.explore.model import Choice, NondeterministicError, Schedule
from loadtest.explore.oracles import Known, RealHandler, RealStore, SettingsMeaning
from loadtest.explore.pct import Sampled, sample
from loadtest.explore.requests import Reader, outline
from loadtest.explore.world import MAX_CALLS, Bounds, Learned, World
from loadtest.fault_rules import rule_info
from loadtest.plan import Plan, PlannedMessage
from loadtest.run import run_info, write_run_info
from loadtest.stage import handler_spec, table_infos
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint

_TOGETHER = 25
"""Schedules in one set of evidence: few enough that a check shows all its findings."""

_ALARMS = 3
"""Suspicious schedules that are played as soon as each is found; later ones are gathered."""

MOST_STATES = 1_000_000
"""More states than these are not searched for, but sampled: they would not fit into memory."""

SAMPLED_DEPTH = 3
"""Of the failures that sampling promises to meet: orderings of steps that bring one about. Most
races need one or two (Burckhardt and others, ASPLOS 2010)."""

_AT_ONCE = 2
"""Schedules under way together: one run computes while another waits for the store."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A schedule that was carried out for real."""

    schedule: Schedule
    run_dir: Path
    findings: tuple[Finding, ...] = ()
    not_followed: str | None = None  # what a run did instead; nothing was judged then
    differs: str | None = None  # the first call whose values were others than expected
    cut: bool = False  # a run was ended since it had made all the calls that it may make


@dataclass(frozen=True, slots=True)
class Effort:
    """What it took, so far, in the whole session."""

    handler_runs: int  # processes forked to learn
    store_questions: int  # calls made at the store to learn
    store_requests: int  # all that was sent to it for that
    live_schedules: int
    live_s: float  # carrying them out
    judging_s: float


@dataclass(frozen=True, slots=True)
class Explored:
    """What exploring one rung came to."""

    rung: Rung
    seconds: float
    effort: Effort
    covered: Covered | None = None  # None: see reason
    judged: tuple[Judged, ...] = ()
    unjudged: int = 0  # kinds of ending for which no time was left
    reason: str | None = None  # why this rung says nothing
    notes: tuple[str, ...] = field(default=())
    varies: str | None = None
    """Why it was not searched by states: the call that is not the same each time."""
    executed: Executed | None = None  # it was searched by executions
    sampled: Sampled | None = None  # the search was not finished, and this is what came then

    @property
    def searched(self) -> Covered | Executed | None:
        return self.covered if self.executed is None else self.executed

    @property
    def failure(self) -> Judged | None:
        """The first schedule that failed, confirmed by the checks."""
        return next((one for one in self.judged if one.findings), None)

    @property
    def is_clean(self) -> bool:
        """Whether all there is was covered, and nothing failed."""
        return (
            self.searched is not None
            and self.searched.exhausted
            and self.unjudged == 0
            and self.reason is None
            and self.failure is None
        )


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Time:
    """When the parts of exploring a rung are over. Each is asked now and then."""

    search: Callable[[bool], bool] = lambda ends: False  # told whether its end is in sight
    sampling: Callable[[], bool] = _never  # of what the search could not finish
    judging: Callable[[], bool] = _never  # of what no longer looks suspicious


class _Findings:
    """Carries schedules out for real as a search finds them, and keeps what came of it."""

    def __init__(self, session: Session, copies: int) -> None:
        self.judged: list[Judged] = []
        self._session = session
        self._copies = copies
        self._suspicious: list[Schedule] = []

    @property
    def failed(self) -> bool:
        return any(one.findings for one in self.judged)

    @property
    def stray(self) -> str | None:
        return next((one.not_followed for one in self.judged if one.not_followed), None)

    async def suspect(self, representative: Representative) -> bool:
        """Whether it fails, or one of those that had to wait."""
        self._suspicious.append(representative.schedule)
        if len(self.judged) >= _ALARMS and len(self._suspicious) < _TOGETHER:
            return False  # suspicions have been wrong so far: some are gathered first
        return await self._judge(self._suspicious)

    async def judge_suspicious(self) -> None:
        """Those that had to wait."""
        if self._suspicious and not self.failed:
            await self._judge(self._suspicious)

    async def judge_others(
        self, representatives: Sequence[Representative], out_of_time: Callable[[], bool]
    ) -> int:
        """Up to a failure, or to one that was not followed.

        :returns: how many were left.
        """
        done = {one.schedule for one in self.judged}
        left = [one.schedule for one in representatives if one.schedule not in done]
        while left and not self.failed and self.stray is None and not out_of_time():
            await self._judge(left)
        return len(left)

    async def _judge(self, left: list[Schedule]) -> bool:
        """Take some, and say whether one of them fails."""
        played = await self._session.play(left[:_TOGETHER], self._copies)
        del left[:_TOGETHER]
        self.judged.extend(played)
        return any(one.findings for one in played)


class Session:
    """An asynchronous context manager; inside it, :meth:`explore` takes rung after rung.

    :param directory: for logs and evidence.
    :param endpoint_url: None starts the embedded emulator.
    :param copies: the most that will be asked for.
    :param batch: messages in one event, at most.
    :raises OnceproofError: when something cannot be opened; what was opened before it is
        closed again.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        *,
        run_id: str,
        endpoint_url: str | None,
        copies: int,
        orders: int,
        conflict: bool,
        poison: bool,
        batch: int,
        seed: int,
        command: str,
        clock: Clock,
        phase: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._faults = fault_plan(seed)
        self._settings = replace(settings, faults=self._faults)
        self._directory = directory
        self._run_id = run_id
        self._batch = batch
        self._endpoint_url = endpoint_url
        self._seed = seed
        self._command = command
        self._clock = clock
        self._phase = phase
        self._warn = warn
        self._cast = Cast(
            settings.order,
            copies=copies,
            orders=orders,
            conflict=conflict,
            poison=poison,
            seed=seed,
        )
        self._messages = self._cast.messages(LEARNING, copies)
        self._varies: NondeterministicError | None = None
        self._executions_runs = self._executions_calls = 0
        self._performances = 0
        self._sets = 0
        self._live_ns = 0
        self._judging_ns = 0
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opening:
            await self._open(opening)
            self._stack = opening.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        processes = await stack.enter_async_context(Processes())
        url = self._endpoint_url
        if url is None:
            self._phase("starting the embedded AWS")
            emulator = Emulator(self._directory / "emulator", processes)
            url = await stack.enter_async_context(emulator)
        self._url = url
        credentials = LOCAL_CREDENTIALS if self._endpoint_url is None else None
        endpoint = await stack.enter_async_context(
            Endpoint(url, credentials=credentials, connections=16)
        )
        self._endpoint = endpoint
        prefix = "" if self._endpoint_url is None else f"{self._run_id}-"
        await endpoint.self_test(prefix)
        stack.push_async_callback(self._remove)
        resources = await endpoint.create(
            prefix,
            table_infos(settings),
            visibility_timeout_s=settings.queue.visibility_timeout_s,
            max_receive_count=settings.queue.max_receive_count,
            fifo=settings.queue.fifo,
            effects=settings.effects,
        )
        self._tables = resources.tables
        self._effects = real_effects(settings.effects, resources.names)
        self._signer = None
        if self._endpoint_url is not None:
            given = endpoint.credentials
            self._signer = Signer(
                BotocoreCredentials(given.access_key, given.secret_key, given.token)
            )
        packages = await packages_of(settings.handler, self._phase)
        self._redaction = Redaction(settings.handler.secrets)
        self._phase("importing the handler")
        self._zygote = Zygote(
            handler_spec(settings, packages, endpoint.region, resources.names),
            directory=self._directory,
            redaction=self._redaction,
            processes=processes,
            door_url=await self._import_door(stack),
        )
        stack.push_async_callback(self._zygote.close)
        await self._zygote.open()
        self._receives = Receives(
            resources.queue,
            settings.handler.timeout_s,
            self._seed,
            self._clock,
            self._zygote.pinned_clock,
        )
        known = Known(Reader(self._tables, self._effects, self._redaction))
        self._store = RealStore(url, known, self._tables, endpoint.region, self._signer)
        stack.push_async_callback(self._store.close)
        self._known = known
        self._handler = self._new_handler()
        stack.push_async_callback(self._handler.close)
        self._learned = Learned(self._handler, self._store)
        self._meaning = SettingsMeaning(
            self._messages,
            self._tables,
            settings.order_info(),
            [effect.name for effect in self._effects],
        )
        self._items = await self._store.items()

    def _new_handler(self, *, strict: bool = True) -> RealHandler:
        return RealHandler(
            self._zygote,
            self._receives,
            self._messages,
            self._known,
            report_batch_item_failures=self._settings.queue.report_batch_item_failures,
            result_fields=self._settings.result_info(),
            strict=strict,
        )

    async def _import_door(self, stack: contextlib.AsyncExitStack) -> str:
        """Where the handler finds AWS while it is imported. What it does then is over before
        anything is explored, so it is part of no evidence that is judged."""
        recorder = Recorder(self._directory / "import", self._redaction)
        stack.callback(recorder.close)
        injector = Injector(NO_FAULTS, recorder, self._clock)
        gateway = Gateway(
            self._url,
            self._clock,
            recorder,
            self._tables,
            self._signer,
            injector,
            self._effects,
            _never_asked,
        )
        stack.push_async_callback(gateway.close)
        return await gateway.open_door(_Importing())

    async def _remove(self) -> None:
        if self._endpoint_url is not None:  # what is embedded goes with its process
            await self._endpoint.remove()

    # --- exploring ---

    @property
    def own_names(self) -> Mapping[str, str]:
        """What stands in requests of this session alone, by what stands for it in a saved
        schedule."""
        prefix = "" if self._endpoint_url is None else f"{self._run_id}-"
        return {"<run>": prefix, "<endpoint>": urlsplit(self._url).netloc}

    def world(self, rung: Rung) -> World:
        """The states of a rung, with all that is known of handler and store."""
        return self._world(self._learned, rung)

    def _world(self, learned: Learned, rung: Rung) -> World:
        bounds = Bounds(
            self._cast.bodies[: rung.copies],
            rung.faults,
            rung.limits(),
            self._settings.queue.max_receive_count,
            batch=self._batch,
        )
        return World(learned, bounds, self._meaning, self._items)

    async def explore(
        self,
        rung: Rung,
        *,
        time: Time | None = None,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> Explored:
        """Cover one rung, up to its first confirmed failure.

        By states where the handler does the same each time; by executions, here and in all
        rungs to come, where it does not. What neither has finished in its time is sampled.

        :param time: None: there is no end to it.
        :param on_progress: told how far it has come.
        :raises OnceproofError: the handler, the store or the evidence failed.
        """
        began_ns = self._clock.now_ns()
        time = time or Time()
        findings = _Findings(self, rung.copies)
        covered: Covered | None = None
        executed: Executed | None = None
        sampled: Sampled | None = None
        unjudged, reason = 0, None

        found, ends = 0, False

        def states_told(states: int, waiting: int, left: int | None) -> None:
            nonlocal found, ends
            found, ends = states, left is not None
            about = "" if left is None else f", about {left:,} left"
            on_progress(f"{states:,} states, {waiting:,} waiting{about}")

        def executions_told(executions: int, waiting: int) -> None:
            on_progress(f"{executions:,} executions, {waiting:,} waiting, more to come of them")

        def samples_told(executions: int, steps: int) -> None:
            on_progress(f"{executions:,} schedules sampled")

        try:
            if self._varies is None:
                try:
                    covered = await search(
                        self.world(rung),
                        out_of_time=lambda: found >= MOST_STATES or time.search(ends),
                        on_progress=states_told,
                        judge=findings.suspect,
                    )
                except NondeterministicError as error:
                    await self._let_vary(error)
                    findings = _Findings(self, rung.copies)
            if self._varies is not None:
                executed = await dpor.search(
                    partial(self._execution, rung),
                    out_of_time=lambda: time.search(False),
                    on_progress=executions_told,
                    judge=findings.suspect,
                    alike=_alike,
                )
            await findings.judge_suspicious()
            searched = covered if executed is None else executed
            assert searched is not None
            endings = searched.representatives
            if not searched.exhausted and not findings.failed and not time.sampling():
                sampled = await self._sample(rung, time.sampling, samples_told, findings.suspect)
                await findings.judge_suspicious()
                endings += sampled.executed.representatives
            unjudged = await findings.judge_others(endings, time.judging)
            if executed is not None and executed.first_diverged is not None:
                reason = (
                    "the handler varies so much that a schedule could not be carried out again: "
                    f"{executed.first_diverged}"
                )
            elif self._varies is not None and not _same_outline(self._varies):
                reason = f"the handler makes other calls each time: {self._varies}"
            elif findings.stray is not None:
                reason = f"a schedule, carried out for real, was left: {findings.stray}"
            if self._handler.calls + self._executions_calls == 0:
                findings = _Findings(self, rung.copies)  # whatever came of it says nothing
                reason = (
                    "the handler made no AWS call through the gateway, so there was nothing whose "
                    "order could be chosen. Does it take its endpoint from the environment "
                    "(AWS_ENDPOINT_URL), and is it the right handler?"
                )
        except (NondeterministicError, ParallelCallsError) as error:
            reason = str(error)
        return Explored(
            rung,
            (self._clock.now_ns() - began_ns) / 1e9,
            self.effort(),
            covered,
            tuple(findings.judged),
            unjudged,
            reason,
            self._notes(findings.judged),
            None if self._varies is None else str(self._varies),
            executed,
            sampled,
        )

    async def _let_vary(self, why: NondeterministicError) -> None:
        """From now on the handler's values may differ from run to run. What is then learned of
        it serves to tell a failure simply, not to search."""
        self._varies = why
        handler = self._new_handler(strict=False)
        self._stack.push_async_callback(handler.close)
        self._learned = Learned(handler, self._store)

    async def _execution(self, rung: Rung) -> Execution:
        """One execution with runs of its own, at the real store."""
        handler = self._new_handler(strict=False)

        async def close() -> None:
            self._executions_runs += handler.runs
            self._executions_calls += handler.calls
            await handler.close()

        return WorldExecution(self._world(Learned(handler, self._store), rung), close)

    async def _sample(
        self,
        rung: Rung,
        out_of_time: Callable[[], bool],
        on_progress: Callable[[int, int], None],
        judge: Judge,
    ) -> Sampled:
        async def begin() -> Execution:
            if self._varies is not None:
                return await self._execution(rung)
            return WorldExecution(world)

        world = self.world(rung)
        return await sample(
            begin,
            seed=self._seed,
            depth=SAMPLED_DEPTH,
            faults=rung.faults,
            kinds=len(rung.kinds),
            out_of_time=out_of_time,
            on_progress=on_progress,
            judge=judge,
        )

    def effort(self) -> Effort:
        return Effort(
            self._handler.runs + self._executions_runs,
            self._store.questions,
            self._store.requests,
            self._performances,
            self._live_ns / 1e9,
            self._judging_ns / 1e9,
        )

    def _notes(self, judged: Sequence[Judged]) -> tuple[str, ...]:
        notes = []
        if self._varies is not None:
            notes.append(
                "What the handler does could not be remembered, so every order of calls was "
                f"carried out with runs of its own: {self._varies}"
            )
        if not self._zygote.pinned_clock:
            notes.append(
                "The handler's clock was the host's: a redelivery comes sooner, by that clock, "
                "than the visibility timeout. For leases and deadlines: "
                "pip install 'onceproof[clock]'."
            )
        if self._zygote.shares_chance:
            notes.append(
                "The import of the handler draws random values, an id perhaps. All runs have the "
                "same ones here, as if one environment had made them all."
            )
        for text in sorted(self._handler.unpinned):
            notes.append(f"Ids or times in this call differ from run to run: {text[:200]}")
        for text in sorted(self._handler.equal):
            notes.append(
                "Not covered: a run had two equal calls under way at once, and which of the two "
                f"went on first was not chosen: {text[:200]}"
            )
        differs = next((one.differs for one in judged if one.differs is not None), None)
        if any(one.cut for one in judged):
            notes.append(
                f"A run that had made {MAX_CALLS} calls was ended there, as by its timeout. What "
                "it would have done later was not explored."
            )
        if differs is not None and self._varies is None:
            notes.append(
                "Values in calls, carried out for real, were others than expected, and were not "
                f"compared. The first: {differs[:200]}"
            )
        return tuple(notes)

    async def play(self, schedules: Sequence[Schedule], copies: int) -> list[Judged]:
        """Carry schedules out for real, in one set of evidence, and judge them.

        One that is not followed among others is played once more alone: what the others
        left in the store may have led it astray.

        :raises OnceproofError: the handler, the store or the evidence failed.
        :raises ParallelCallsError: see :func:`next_step`.
        """
        judged = await self._play(schedules, copies)
        if len(schedules) > 1:
            for number, one in enumerate(judged):
                if one.not_followed is not None:
                    (judged[number],) = await self._play([one.schedule], copies)
                    if judged[number].not_followed is not None:
                        break  # it is the handler, not the others
        return judged

    async def _play(self, schedules: Sequence[Schedule], copies: int) -> list[Judged]:
        self._sets += 1
        run_dir = self._directory / f"live-{self._sets:03}"
        run_dir.mkdir(parents=True)
        began_ns = self._clock.now_ns()
        numbers, followed = await self._carry_out(schedules, copies, run_dir)
        played_ns = self._clock.now_ns()
        verdict = await asyncio.to_thread(judge, run_dir)
        self._live_ns += played_ns - began_ns
        self._judging_ns += self._clock.now_ns() - played_ns
        return [
            _judged(schedule, run_dir, one, _findings(verdict, messages))
            for schedule, messages, one in zip(schedules, numbers, followed, strict=True)
        ]

    async def _carry_out(
        self, schedules: Sequence[Schedule], copies: int, run_dir: Path
    ) -> tuple[list[list[PlannedMessage]], list[Followed | NotFollowedError]]:
        """The messages of each schedule, and how it was followed."""
        settings = self._settings
        await self._store.hold(dict(self._items))
        clock = EpochClock(self._clock)
        recorder = Recorder(run_dir / "evidence", self._redaction)
        try:
            async for row in self._endpoint.items(Phase.BEFORE):
                recorder.write(row)
            stagehand = Stagehand(
                self._url,
                self._zygote,
                self._cast,
                self._receives,
                recorder,
                clock,
                tables=self._tables,
                effects=self._effects,
                signer=self._signer,
                faults=self._faults,
                max_receive_count=settings.queue.max_receive_count,
                report_batch_item_failures=settings.queue.report_batch_item_failures,
                result_fields=settings.result_info(),
                token_salt=self._run_id,
            )
            performances = range(self._performances + 1, self._performances + 1 + len(schedules))
            self._performances += len(schedules)
            messages = [
                self._cast.messages(performance, copies, 1 + number * copies)
                for number, performance in enumerate(performances)
            ]
            started_at = clock.now_ns()
            try:
                followed = await self._all(
                    stagehand, list(zip(performances, schedules, messages, strict=True))
                )
            finally:
                await stagehand.close()
            async for row in self._endpoint.items(Phase.AFTER):
                recorder.write(row)
        finally:
            recorder.close()
            await self._store.items()
            await self._store.hold(dict(self._items))
        info = run_info(
            settings,
            Plan(tuple(one for each in messages for one in each)),
            run_id=self._run_id,
            endpoint_url=self._endpoint_url,
            created_at=started_at,
            command=self._command,
        )
        found = stagehand.injector.opportunities
        write_run_info(
            run_dir,
            replace(
                info,
                tables=self._tables,
                effects=self._effects,
                status=RunStatus.FINISHED,
                started_at=started_at,
                ended_at=clock.now_ns(),
                faults=tuple(
                    rule_info(rule, found[number])
                    for number, rule in enumerate(self._faults.rules, 1)
                ),
            ),
        )
        return messages, followed

    async def _all(
        self,
        stagehand: Stagehand,
        plays: Sequence[tuple[int, Schedule, Sequence[PlannedMessage]]],
    ) -> list[Followed | NotFollowedError]:
        """Carry all of them out, a few at once."""
        rooms = asyncio.Semaphore(_AT_ONCE)

        async def one(
            performance: int, schedule: Schedule, messages: Sequence[PlannedMessage]
        ) -> Followed | NotFollowedError:
            async with rooms:
                try:
                    return await stagehand.play(performance, schedule, messages)
                except NotFollowedError as error:
                    return error

        playing = [asyncio.create_task(one(*play)) for play in plays]
        try:
            return await asyncio.gather(*playing)
        finally:
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Importing:
    """Stands behind a door while the handler is imported."""

    slot: int = 0
    current_invocation: int | None = None

    async def kill(self) -> None: ...


def _judged(
    schedule: Schedule,
    run_dir: Path,
    followed: Followed | NotFollowedError,
    findings: tuple[Finding, ...],
) -> Judged:
    if isinstance(followed, NotFollowedError):
        return Judged(schedule, run_dir, not_followed=str(followed))
    if followed.cut and findings:
        told = f"it fails, but one of its runs was ended for having made {MAX_CALLS} calls"
        return Judged(schedule, run_dir, not_followed=told, cut=True)
    return Judged(schedule, run_dir, findings, differs=followed.differs, cut=followed.cut)


def _same_outline(varies: NondeterministicError) -> bool:
    """Whether the two calls, or answers, differ in values alone."""
    return outline(varies.remembered) == outline(varies.now)


def _alike(before: Choice, now: Choice) -> bool:
    """Whether a run makes the same call as before, its values apart."""
    if before.call is None or now.call is None:
        return before.call is now.call
    return outline(before.call) == outline(now.call)


def _never_asked(occupant: object, asked: WireCall) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def _findings(verdict: Verdict, messages: Sequence[PlannedMessage]) -> tuple[Finding, ...]:
    """Those that are about these messages."""
    keys = {message.order_key for message in messages}
    numbers = {message.message_no for message in messages}
    return tuple(
        finding
        for check in verdict.checks
        for finding in check.findings
        if finding.order_key in keys or numbers.intersection(finding.message_nos)
    )
