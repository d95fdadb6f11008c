"""``loadtest run``: flood, consume, record, judge, report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

import consumer
from analysis.errors import (
    EvidenceError,
    OnceproofError,
    RecordingError,
    ScratchError,
    UsageError,
)
from analysis.findings import Verdict
from analysis.report import write_outputs
from analysis.schema import PlanInfo, ResultInfo, RunInfo, RunStatus
from analysis.store import finish_evidence, load_run
from analysis.text import count
from analysis.verdict import CONTROL_DIRECTORY, judge, write_verdict
from consumer.clock import Clock
from consumer.faults import FaultRule
from loadtest import __version__
from loadtest.config import Settings, real_effects
from loadtest.control import control_settings
from loadtest.doctor import Level, examine, examine_run
from loadtest.event_loop import run_in_loop
from loadtest.fault_rules import rule_info, rule_text
from loadtest.plan import Plan, make_plan
from loadtest.plan_function import plan_by
from loadtest.stage import Stage, table_infos
from loadtest.terminal import Reporter, Snapshot

_REFERENCE_CODE = Path(consumer.__file__).parent
_PROGRESS_EVERY_S = 0.25
_GRACE_S = 10.0
"""After Ctrl-C, what is under way may finish for this long."""
_LISTED = 20
_NAMED = 2  # messages that did not settle; the evidence has them all


def new_stamp(clock: Clock) -> str:
    """The name of a new run's directory, ``<UTC time>-<short id>``."""
    now = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def new_run_dir(
    out: Path, clock: Clock, holds: str = "run.json", stamp: str | None = None
) -> tuple[str, Path]:
    """A fresh directory below ``out``; its run id and path.

    :param holds: the file that will say what was asked; empty until then.
    :param stamp: its name, where that was needed before.
    :raises UsageError: it cannot be made or written.
    """
    stamp = stamp or new_stamp(clock)
    run_dir = out / stamp
    try:
        run_dir.mkdir(parents=True)
        (run_dir / holds).touch()
    except OSError as error:
        raise UsageError(
            f"--out: {run_dir} cannot be written ({error.strerror}). Name another folder."
        ) from error
    return f"onceproof-{stamp}", run_dir


def plan_of(settings: Settings) -> Plan:
    """
    :raises UsageError: a plan function of the user's does not make one.
    """
    load = settings.load
    if settings.plan is not None:
        told = {
            "orders": load.orders,
            "copies": load.copies,
            "conflicts": load.conflicts,
            "poison": load.poison,
            "id_prefix": settings.order.id_prefix,
        }
        arguments = {"seed": load.seed, "load": told}
        return plan_by(settings.plan, settings.order, arguments, load.rate_per_s)
    return make_plan(
        settings.order,
        orders=load.orders,
        copies=load.copies,
        conflicts=load.conflicts,
        poison=load.poison,
        rate_per_s=load.rate_per_s,
        arrangement=load.arrangement,
        seed=load.seed,
    )


def run_info(
    settings: Settings,
    plan: Plan,
    *,
    run_id: str,
    endpoint_url: str | None,
    created_at: int,
    command: str,
    control: bool = False,
) -> RunInfo:
    """What is asked, as ``run.json`` keeps it: no secret, and enough to judge and to repeat."""
    load, queue = settings.load, settings.queue
    return RunInfo(
        run_id=run_id,
        tool_version=__version__,
        created_at=created_at,
        command=command,
        control=control,
        target="local" if endpoint_url is None else "endpoint",
        handler=settings.handler.handler,
        code=str(settings.handler.code),
        timeout_s=settings.handler.timeout_s,
        visibility_timeout_s=queue.visibility_timeout_s,
        max_receive_count=queue.max_receive_count,
        batch_size=queue.batch_size,
        report_batch_item_failures=queue.report_batch_item_failures,
        plan=plan_info(settings, plan, load.concurrency),
        order=plan.order or settings.order_info(),
        tables=table_infos(settings),
        result=settings.result_info(),
        expect=settings.expect_info(),
        faults=tuple(map(rule_info, settings.faults.rules)),
        fault_seed=settings.faults.seed,
        effects=settings.effects,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("boto3", "botocore", "ministack", "duckdb")},
        },
    )


def plan_info(settings: Settings, plan: Plan, concurrency: int) -> PlanInfo:
    """The plan, as ``run.json`` keeps it.

    :param concurrency: environments at once; 0 where nobody limits them.
    """
    load = settings.load
    return PlanInfo(
        seed=load.seed,
        orders=plan.orders(),
        copies=load.copies,
        messages=len(plan.messages),
        rate_per_s=load.rate_per_s,
        arrangement=load.arrangement if settings.plan is None else f"by {settings.plan}",
        concurrency=concurrency,
        digest=plan.digest(),
    )


def plan_lines(settings: Settings, plan: Plan, endpoint_url: str | None) -> list[tuple[str, str]]:
    """The resolved plan, as it is printed before the start."""
    load, queue = settings.load, settings.queue
    rate = "as fast as possible" if load.rate_per_s is None else f"{load.rate_per_s:g} a second"
    effects = [f"{effect.name}, one an order by {effect.key}" for effect in settings.effects]
    # Whoever is in the wrong folder must not take its PASS for that of a handler of their own.
    ours = "the reference handler, " if settings.handler.code == _REFERENCE_CODE else ""
    lines = [
        ("handler", f"{ours}{settings.handler.handler} in {settings.handler.code}"),
        ("target", "embedded AWS" if endpoint_url is None else endpoint_url),
        (
            "plan",
            f"{len(plan.messages)} messages: {plan.orders()} orders x {load.copies} copies, "
            f"conflicts {load.conflicts:g}, poison {load.poison:g}, "
            f"{load.arrangement}, {rate}, seed {load.seed}"
            if settings.plan is None
            else f"{len(plan.messages)} messages of {plan.orders()} orders by {settings.plan}, "
            f"{rate}, seed {load.seed}",
        ),
        (
            "consumer",
            f"{load.concurrency} environments, timeout {settings.handler.timeout_s:g} s, "
            f"batches of {queue.batch_size}, visibility {queue.visibility_timeout_s} s, "
            f"{queue.max_receive_count} receives before the dead-letter queue",
        ),
    ]
    return [*lines, *fault_lines(settings.faults.rules), *_listed("effects", effects)]


def fault_lines(rules: Sequence[FaultRule]) -> list[tuple[str, str]]:
    """The faults that are asked for, as they are printed before the start."""
    return _listed("faults", [rule_text(rule) for rule in rules])


def _listed(name: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    shown = list(texts[:_LISTED])
    if len(texts) > _LISTED:
        shown.append(f"and {len(texts) - _LISTED} more")
    return [(name if number == 0 else "", text) for number, text in enumerate(shown)]


class Stops:
    """Ctrl-C: the first stops sending, the second stops now."""

    def __init__(self, reporter: Reporter) -> None:
        self.sending = asyncio.Event()
        self.draining = asyncio.Event()
        self.interrupted = False
        self.opening: asyncio.Task[object] | None = asyncio.current_task()
        """Set while nothing is under way yet: it is then simply cancelled."""
        self._reporter = reporter

    def ask(self) -> None:
        if self.opening is not None:
            # Once: what was opened is being closed and removed then.
            if not self.interrupted:
                self.interrupted = True
                self.opening.cancel()
            return
        if self.interrupted:
            self.draining.set()
            return
        self.interrupted = True
        self.sending.set()
        self._reporter.phase(
            f"stopping: no more messages are sent, those under way have {_GRACE_S:g} s "
            "(Ctrl-C again stops now)"
        )
        asyncio.get_running_loop().call_later(_GRACE_S, self.draining.set)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, self.ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


def run(
    settings: Settings,
    *,
    endpoint_url: str | None,
    out: Path,
    command: str,
    clock: Clock,
    reporter: Reporter,
    control: bool = False,
) -> tuple[Path, Verdict]:
    """Carry out one run; its directory and its verdict.

    :param command: how it was asked for, for the report's "to repeat it".
    :param control: put the same load on a handler with a known race afterwards.
    :raises OnceproofError: when the run could not be carried out; the directory keeps what
        was recorded, and says why.
    """
    # First: what is wrong with them is told before anything is made.
    plan = plan_of(settings)
    twin = control_settings(settings) if control else None
    run_id, run_dir = new_run_dir(out, clock)
    recorded = [run_dir]
    info = _record(
        settings, plan, run_id, run_dir, endpoint_url, command, clock, reporter, control=control
    )
    if twin is not None and info.status is not RunStatus.INTERRUPTED:
        reporter.phase("the same load on the control, a read-then-write handler")
        recorded.append(run_dir / CONTROL_DIRECTORY)
        recorded[-1].mkdir()
        _record(
            twin,
            plan,
            f"{run_id}-control",
            recorded[-1],
            endpoint_url,
            command,
            clock,
            reporter,
            advised=False,  # the settings are the run's own
        )
    return run_dir, judge_recorded(run_dir, recorded, reporter)


def judge_recorded(run_dir: Path, recorded: Sequence[Path], reporter: Reporter) -> Verdict:
    """Judge a run that is over and write its report.

    :param recorded: the directories with evidence that it has.
    """
    reporter.phase("judging")
    try:
        for directory in recorded:
            finish_evidence(directory)
        verdict = judge(run_dir)
        write_verdict(run_dir, verdict)
        write_outputs(run_dir, verdict)
        for one in examine_run(run_dir):
            reporter.warn(str(one))
    except (EvidenceError, ScratchError, OSError) as error:
        # The directory is this run's own: what fails here is the disk, not what was asked.
        raise RecordingError(
            f"the run is over, but its verdict and report could not be written: {error} "
            f"Then: loadtest report {run_dir}"
        ) from error
    return verdict


def _record(
    settings: Settings,
    plan: Plan,
    run_id: str,
    run_dir: Path,
    endpoint_url: str | None,
    command: str,
    clock: Clock,
    reporter: Reporter,
    *,
    control: bool = False,
    advised: bool = True,
) -> RunInfo:
    """Flood and record; how it ended is in the directory's ``run.json`` too."""
    info = run_info(
        settings,
        plan,
        run_id=run_id,
        endpoint_url=endpoint_url,
        created_at=clock.now_ns(),
        command=command,
        control=control,
    )
    write_run_info(run_dir, info)
    reporter.plan(plan_lines(settings, plan, endpoint_url))
    for one in examine(settings, plan) if advised else ():
        if one.level is not Level.HINT:
            reporter.warn(str(one))
    try:
        info = run_in_loop(
            _stoppable_flood(settings, plan, info, run_dir, endpoint_url, clock, reporter)
        )
    except OnceproofError as error:
        write_failure(run_dir, error, clock)
        raise
    finally:
        reporter.close()
    write_run_info(run_dir, info)
    return info


def write_failure(run_dir: Path, error: OnceproofError, clock: Clock) -> None:
    """Put on record that the run ended by this error, and tell with it where that is."""
    # On a full disk this cannot be written either; the first error is the one to tell.
    with contextlib.suppress(RecordingError):
        write_run_info(
            run_dir,
            replace(
                load_run(run_dir),  # it has the real names by now
                status=RunStatus.FAILED,
                ended_at=clock.now_ns(),
                error=str(error),
            ),
        )
    error.add_note(f"What was recorded is in {run_dir}; loadtest report {run_dir} judges it.")


async def _stoppable_flood(
    settings: Settings,
    plan: Plan,
    info: RunInfo,
    run_dir: Path,
    endpoint_url: str | None,
    clock: Clock,
    reporter: Reporter,
) -> RunInfo:
    stops = Stops(reporter)
    with stops.on_signals():
        return await flood(settings, plan, info, run_dir, endpoint_url, clock, reporter, stops)


async def flood(
    settings: Settings,
    plan: Plan,
    info: RunInfo,
    run_dir: Path,
    endpoint_url: str | None,
    clock: Clock,
    reporter: Reporter,
    stops: Stops,
) -> RunInfo:
    """Open the stage, carry out the plan, read the final items; how it ended.

    :raises OnceproofError: it could not be carried out.
    """
    try:
        async with Stage(
            settings,
            run_dir,
            run_id=info.run_id,
            endpoint_url=endpoint_url,
            clock=clock,
            phase=reporter.phase,
            warn=reporter.warn,
        ) as stage:
            stops.opening = None
            info = replace(
                info,
                tables=stage.resources.tables,
                effects=real_effects(settings.effects, stage.resources.names),
                started_at=clock.now_ns(),
            )
            write_run_info(run_dir, info)
            reporter.phase("flooding")
            await _carry_out(stage, settings, plan, stops, clock, reporter)
            await stage.finish()
            injector = stage.injector
            for text in what_fired(settings.faults.rules, injector.fired, injector.opportunities):
                reporter.phase(text)
            ended = finished(info, stage, _status(stage, stops), clock)
            return replace(ended, left_over=tuple(_left_over(stage, plan)))
    except asyncio.CancelledError:
        if not stops.interrupted:
            raise
        return replace(info, status=RunStatus.INTERRUPTED, ended_at=clock.now_ns())


async def _carry_out(
    stage: Stage, settings: Settings, plan: Plan, stops: Stops, clock: Clock, reporter: Reporter
) -> None:
    load = settings.load
    watching = asyncio.create_task(_watch(stage, len(plan.messages), clock, reporter))
    try:
        await stage.carry_out(
            plan, rate_per_s=load.rate_per_s, stop=stops.sending, drain=stops.draining
        )
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        reporter.close()


def _status(stage: Stage, stops: Stops) -> RunStatus:
    if stops.interrupted:
        return RunStatus.INTERRUPTED
    return RunStatus.FINISHED if stage.ledger.is_settled else RunStatus.NOT_DRAINED


def finished(info: RunInfo, stage: Stage, status: RunStatus, clock: Clock) -> RunInfo:
    """The run's description with how it ended."""
    asked = stage.settings.faults.rules
    found = stage.injector.opportunities
    return replace(
        info,
        tables=stage.resources.tables,
        status=status,
        ended_at=clock.now_ns(),
        faults=tuple(rule_info(rule, found[number]) for number, rule in enumerate(asked, 1)),
    )


def what_fired(
    asked: Sequence[FaultRule], fired_by: Counter[int], matched: Counter[int]
) -> Sequence[str]:
    """One sentence for each fault rule: how often it was carried out, or why it never was.

    :param fired_by: by the rule's number; ``matched``: the places where it could have struck.
    """
    rules = list(enumerate(asked, 1))
    said = []
    if len(rules) > _LISTED:
        total, struck = fired_by.total(), len(+fired_by)
        said.append(f"{count(total, 'fault')} fired, by {struck} of {len(rules)} rules")
        rules = [(number, rule) for number, rule in rules if not fired_by[number]]
    for number, rule in rules[:_LISTED]:
        fired, places = fired_by[number], matched[number]
        if fired:
            how = f"fired {count(fired, 'time')}, {count(places, 'place')} matched"
        elif places:
            how = f"never fired: {count(places, 'place')} matched, and at none was it carried out"
        else:
            how = f"never fired: no {rule.about.where} of this run matched"
        said.append(f"fault {rule_text(rule)} {how}")
    if len(rules) > _LISTED:
        said.append(f"and {len(rules) - _LISTED} more fault rules never fired")
    return said


async def _watch(stage: Stage, planned: int, clock: Clock, reporter: Reporter) -> None:
    started_ns = clock.now_ns()
    while True:
        elapsed_s = (clock.now_ns() - started_ns) / 1e9
        tally = stage.tally
        left_s = None
        if tally.settled and elapsed_s > 1:
            # Failed messages come back only after their visibility timeouts.
            left_s = max(
                elapsed_s / tally.settled * (planned - tally.settled),
                (tally.dead_letters_due_at - clock.now_ns()) / 1e9,
            )
        reporter.progress(
            Snapshot(
                elapsed_s=elapsed_s,
                planned=planned,
                sent=stage.sent.accepted,
                in_flight=tally.in_flight,
                processed=tally.processed,
                duplicates=tally.duplicates,
                failed=tally.failed,
                settled=tally.settled,
                dead_lettered=tally.dead_lettered,
                queue_depth=tally.visible,
                left_s=left_s,
                is_told_apart=stage.settings.result_info() != ResultInfo(),
            )
        )
        await asyncio.sleep(_PROGRESS_EVERY_S)


def _left_over(stage: Stage, plan: Plan) -> Sequence[str]:
    """What was never sent, and the first of what was and never settled."""
    said = []
    unsent = len(plan.messages) - stage.sent.accepted - stage.sent.refused
    if unsent:
        said.append(f"{unsent} messages of the plan were never sent")
    unsettled = sorted(stage.ledger.expected - stage.ledger.settled)
    for number in unsettled[:_NAMED]:
        message = plan.messages[number - 1]
        said.append(
            f"message {number} ({message.kind} of order {message.order_key}) was neither "
            "acknowledged nor dead-lettered"
        )
    if len(unsettled) > _NAMED:
        said.append(f"nor were {len(unsettled) - _NAMED} more")
    return said


def write_run_info(run_dir: Path, info: RunInfo) -> None:
    """Replace ``run.json`` in one step: a reader never meets half of it.

    :raises RecordingError: it cannot be written.
    """
    partial = run_dir / "run.json.partial"
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
        partial.replace(run_dir / "run.json")
    except OSError as error:
        raise RecordingError(
            f"{run_dir / 'run.json'} could not be written: {error.strerror or error}. "
            "Free some space, or choose another place (--out), and run again."
        ) from error
