"""The page of a run, and everything else that is written beside it.

``report.html`` is one file without outside references or scripts. It is made from the
evidence and ``verdict.json`` alone, and is the same for the same evidence but for the time
of rendering at its foot. Everything that came from messages, items or errors is foreign: it
is bounded, made visible (:func:`analysis.text.visible`) and escaped by the template.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.checks import sql_of
from analysis.errors import EvidenceError
from analysis.exposure import most_contended
from analysis.findings import (
    MAX_GROUPS,
    MAX_SHOWN,
    CheckReport,
    CheckStatus,
    Counts,
    Finding,
    FindingGroup,
    Proof,
    Verdict,
)
from analysis.junit import write_junit
from analysis.lanes import (
    Axis,
    Lane,
    LaneCall,
    Lanes,
    Mark,
    Wanted,
    actor_lane,
    call_text,
    lane_name,
    orders_lanes,
    overlaps,
    steps_axis,
)
from analysis.plots import PALETTE, Plot, render_plots
from analysis.proofs import fault_line, faults_text, group_head, step_time
from analysis.schema import AckOutcome, Observation, RunInfo
from analysis.store import Evidence, open_evidence
from analysis.summary import write_summary
from analysis.text import count, duration_text, milliseconds, quoted, visible
from analysis.verdict import read_verdict

MOST_BYTES = 5_000_000  # of report.html; a page that would be larger shows fewer findings
CONTENDED = 3
MOST_IDS = 12  # evidence ids named beside one finding

# Groups of a kind with proof and lanes, and findings told in a sentence: the first pair whose
# page is small enough.
_LIMITS = ((MAX_GROUPS, MAX_SHOWN), (2, MAX_SHOWN), (1, 20), (0, 3))

_NEAR = 0.05  # of a track's width: marks closer than this go on rows of their own
_ROW = 20  # height of a row of marks, in px

_SIGNS = {
    CheckStatus.CLEAN: ("yes", "✓"),
    CheckStatus.FOUND: ("no", "✗"),
    CheckStatus.NOT_OBSERVABLE: ("open", "-"),
    CheckStatus.CRASHED: ("open", "!"),
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """What was written into the run directory."""

    report: Path
    junit: Path
    summary: Path
    plots: tuple[Plot, ...]


def _utc_now() -> datetime:
    return datetime.now(UTC)


def render_report(run_dir: Path, now: Callable[[], datetime] = _utc_now) -> Path:
    """Render ``report.html`` and ``plots/`` again from the evidence and ``verdict.json``.

    :raises EvidenceError: the run directory cannot be read or written, or was never judged.
    """
    verdict = read_verdict(run_dir)
    with _writable(run_dir), open_evidence(run_dir) as evidence:
        return _render(evidence, verdict, run_dir, render_plots(evidence, run_dir), now)


def write_outputs(
    run_dir: Path, verdict: Verdict, now: Callable[[], datetime] = _utc_now
) -> Outputs:
    """Write plots, ``report.html``, ``junit.xml`` and ``summary.md`` of a judged run.

    :raises EvidenceError: the run directory cannot be read or written.
    """
    with _writable(run_dir):
        junit, summary = write_junit(run_dir, verdict), write_summary(run_dir, verdict)
        with open_evidence(run_dir) as evidence:
            plots = render_plots(evidence, run_dir)
            report = _render(evidence, verdict, run_dir, plots, now)
    return Outputs(report, junit, summary, tuple(plots))


@contextmanager
def _writable(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EvidenceError(
            f"{error.filename or run_dir}: cannot be written ({error.strerror or error}). Free some"
            f" space or make the directory writable, then run: loadtest report {run_dir}"
        ) from error


# --- what the templates are given -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """A call as a line from sent to answered; positions are shares of the width."""

    first: float
    last: float
    y: float
    look: str
    open: bool  # never answered


@dataclass(frozen=True, slots=True)
class Sign:
    """A call's decision or the end of a delivery."""

    position: float
    y: float
    symbol: str
    look: str
    text: str  # within the symbol: the number of the step, else the sign of the decision
    tag: str  # beside it, where nothing can stand within
    story: str
    ringed: bool


@dataclass(frozen=True, slots=True)
class Track:
    letter: str  # of the actor in a proof; empty elsewhere
    name: str
    message: str
    story: str  # the lane in words, for those who do not see it
    height: int
    first: float
    last: float
    run: tuple[float, float] | None
    bars: tuple[Bar, ...]
    marks: tuple[Sign, ...]


@dataclass(frozen=True, slots=True)
class CallRow:
    time: str
    lane: str
    call: str
    decision: str
    condition: str
    effect: str
    ringed: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """The lanes of one order, placed."""

    anchor: str
    order_key: str
    heading: str
    expected: tuple[str, ...]
    final: str
    ticks: tuple[tuple[float, str], ...]
    cuts: tuple[tuple[float, str], ...]
    bands: tuple[tuple[float, float], ...]
    tracks: tuple[Track, ...]
    left_out: str
    calls: tuple[CallRow, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proved:
    """A group of findings with the proof of its smallest example."""

    head: str  # how many
    group: FindingGroup
    ids: str
    faults: str
    proof: Proof | None
    times: tuple[str, ...]  # of the steps, in ms
    drawing: Drawing | None


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of one kind."""

    check: CheckReport
    proved: tuple[Proved, ...]
    patterns_left_out: int
    listed: tuple[tuple[Finding, str], ...]  # with their ids in words
    not_listed: int


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: int | None  # None: not observable
    note: str = ""
    bad: bool = False
    of: Observation | None = None  # what it is counted from, where not every run has that


def _render(
    evidence: Evidence,
    verdict: Verdict,
    run_dir: Path,
    plots: Sequence[Plot],
    now: Callable[[], datetime],
) -> Path:
    rendered_at = now()
    for drawn, listed in _LIMITS:
        page = _page(evidence, verdict, plots, rendered_at, drawn, listed).encode()
        if len(page) <= MOST_BYTES:
            break
    path = run_dir / "report.html"
    path.write_bytes(page)
    return path


def _page(
    evidence: Evidence,
    verdict: Verdict,
    plots: Sequence[Plot],
    rendered_at: datetime,
    most_drawn: int,
    most_listed: int,
) -> str:
    found = [check for check in verdict.checks if check.status is CheckStatus.FOUND]
    groups = [group for check in found for group in check.groups[:most_drawn]]
    keys = most_contended(evidence, CONTENDED)
    wanted = [_wanted(group.example) for group in groups] + [Wanted(key) for key in keys]
    lanes = iter(orders_lanes(evidence, [entry for entry in wanted if entry is not None]))
    numbers = itertools.count(1)

    def proved(group: FindingGroup) -> Proved:
        finding, proof = group.example, group.example.proof
        drawing = None
        if proof is not None and _wanted(finding) is not None:
            focus = frozenset(finding.call_ids)
            drawing = _drawing(next(lanes), f"finding-{next(numbers)}", focus, proof)
        return Proved(
            group_head(group),
            group,
            _ids(finding),
            faults_text(finding),
            proof,
            () if proof is None else tuple(map(step_time, proof.steps)),
            drawing,
        )

    told = [
        Found(
            check,
            tuple(proved(group) for group in check.groups[:most_drawn]),
            check.patterns - len(check.groups[:most_drawn]),
            tuple((finding, _ids(finding)) for finding in check.findings[:most_listed]),
            check.count - len(check.findings[:most_listed]),
        )
        for check in found
    ]
    contended = [_drawing(next(lanes), f"order-{place}") for place, _ in enumerate(keys, 1)]
    template = environment().get_template("report.html")
    return template.render(
        run=evidence.run,
        verdict=verdict,
        counts=verdict.counts,
        exposure=verdict.exposure,
        numbers=_numbers(verdict),
        found=told,
        unanswered=sum(
            check.status in (CheckStatus.NOT_OBSERVABLE, CheckStatus.CRASHED)
            for check in verdict.checks
        ),
        contended=contended,
        sql=sql_of,
        plots=plots,
        fault_line=fault_line,
        timing=verdict.timing,
        signs=_SIGNS,
        settings=_settings(evidence.run),
        notes=_notes(evidence, verdict),
        palette=PALETTE,
        rendered_at=rendered_at,
    )


def _wanted(finding: Finding) -> Wanted | None:
    proof = finding.proof
    if proof is None or proof.order_key is None or not proof.actors:
        return None
    actors = [actor.invocation_id for actor in proof.actors]
    calls = [step.call_id for step in proof.steps if step.call_id is not None]
    return Wanted(proof.order_key, actors, [*finding.call_ids, *calls])


@cache
def environment() -> Environment:
    """What all pages are rendered with."""
    environment = Environment(
        loader=PackageLoader("analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    loader = environment.loader
    assert loader is not None
    css, _, _ = loader.get_source(environment, "report.css")
    environment.globals["css"] = Markup(css)  # our own file
    environment.filters |= {
        "visible": visible,
        "number": "{:,}".format,
        "plural": count,
        "ms": duration_text,
        "seconds": lambda time_ns: f"{time_ns / 1e9:,.2f} s",
        "rate": lambda rate: f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}",
        "utc": _utc,
    }
    return environment


def _utc(time: int | datetime) -> str:
    moment = datetime.fromtimestamp(time / 1e9, UTC) if isinstance(time, int) else time
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _numbers(verdict: Verdict) -> list[Figure]:
    counts, exposure = verdict.counts, verdict.exposure
    findings = sum(check.count for check in verdict.checks)
    apart: tuple[int | None, int | None] = (counts.processed, counts.duplicates)
    untold = ""
    if not verdict.is_told_apart:
        apart, untold = (None, None), "not told apart"
    figures = [
        Figure("messages sent", counts.accepted_messages, _planned(counts)),
        Figure("orders", counts.orders),
        Figure(
            "deliveries",
            counts.deliveries,
            f"{counts.redeliveries:,} of them again",
            of=Observation.DELIVERIES,
        ),
        Figure("accepted writes", counts.accepted_writes, of=Observation.WRITES),
        Figure("conditional rejections", counts.rejected_writes, of=Observation.CALLS),
        Figure(
            "writes failed",
            counts.failed_writes,
            f"and {counts.unknown_writes:,} unknown",
            of=Observation.CALLS,
        ),
        Figure("reported processed", apart[0], untold, of=Observation.RESULTS),
        Figure("reported duplicate", apart[1], untold, of=Observation.RESULTS),
        Figure("reported failed", counts.failed, of=Observation.RESULTS),
        Figure("acknowledged", counts.deleted, "deleted from the queue", of=Observation.ENDS),
        Figure("dead-lettered", counts.dead_lettered, of=Observation.ENDS),
        Figure("not settled", counts.unsettled, bad=counts.unsettled > 0),
        Figure("items stored", counts.stored_items),
        Figure(
            "overlapping pairs",
            exposure.overlapping_pairs,
            f"in {exposure.contended_orders:,} of {count(exposure.contestable_orders, 'order')}",
            of=Observation.DELIVERIES,
        ),
        Figure("most in flight of one order", exposure.most_in_flight, of=Observation.DELIVERIES),
        Figure("findings", findings, bad=findings > 0),
    ]
    return [
        replace(figure, value=None, note="not observable", bad=False)
        if figure.of in verdict.not_observable
        else figure
        for figure in figures
    ]


def _planned(counts: Counts) -> str:
    parts = [f"of {counts.messages:,}"]
    for number, noun in ((counts.conflicts, "conflicts"), (counts.poison, "poison")):
        if number:
            parts.append(f"{number:,} {noun}")
    return ", ".join(parts)


def _settings(run: RunInfo) -> list[tuple[str, str]]:
    plan = run.plan
    rate = "max" if plan.rate_per_s is None else f"{plan.rate_per_s:g}/s"
    tables = ", ".join(f"{table.name} ({table.role.value})" for table in run.tables)
    rows = [
        ("plan", f"{plan.orders:,} orders x {plan.copies}, {plan.messages:,} messages in all"),
        ("sending", f"{plan.arrangement}, rate {rate}, seed {plan.seed}"),
        ("environments", f"{plan.concurrency}"),
        ("handler", f"{run.handler} in {run.code}, timeout {run.timeout_s:g} s"),
        (
            "queue",
            f"visibility timeout {run.visibility_timeout_s} s, {run.max_receive_count} receives,"
            f" batches of {run.batch_size},"
            f" partial failures {'reported' if run.report_batch_item_failures else 'not reported'}",
        ),
        ("tables", tables),
        ("target", run.target),
        ("status", run.status.value if run.error is None else f"{run.status.value}: {run.error}"),
        ("onceproof", run.tool_version),
    ]
    return rows + sorted(run.versions.items())


def _notes(evidence: Evidence, verdict: Verdict) -> list[str]:
    left_over = evidence.run.left_over
    shown = [f"Not settled: {text}" for text in left_over[:20]]
    if len(left_over) > len(shown):
        shown.append(f"{len(left_over) - len(shown):,} more were not settled.")
    return [*verdict.notes, *shown]


def _ids(finding: Finding) -> str:
    parts = [] if finding.order_key is None else [f"order {quoted(finding.order_key)}"]
    for noun, ids in (
        ("message", finding.message_nos),
        ("invocation", finding.invocation_ids),
        ("call", finding.call_ids),
    ):
        if ids:
            named = ", ".join(str(number) for number in ids[:MOST_IDS])
            more = f" and {len(ids) - MOST_IDS:,} more" if len(ids) > MOST_IDS else ""
            parts.append(f"{noun if len(ids) == 1 else noun + 's'} {named}{more}")
    if finding.faults:
        parts.append(f"faults on the way: {faults_text(finding)}")
    return " · ".join(parts)


def _drawing(
    lanes: Lanes, anchor: str, focus: frozenset[int] = frozenset(), proof: Proof | None = None
) -> Drawing:
    """All lanes of an order; of a proof the lanes of its actors, from first to last step."""
    drawn = [("", lane) for lane in lanes.lanes]
    axis = lanes.axis
    if proof is not None:
        pairs = [(actor.letter, actor_lane(lanes, actor)) for actor in proof.actors]
        drawn = [(letter, lane) for letter, lane in pairs if lane is not None]
        axis = steps_axis(proof.steps) if steps_axis(proof.steps).spans else axis
    receives = len(lanes.lanes) + lanes.lanes_left_out
    left_out = []
    if receives > len(drawn):
        left_out.append(f"{count(receives - len(drawn), 'further receive')} not drawn")
    calls_left_out = sum(lane.calls_left_out for _, lane in drawn)
    if calls_left_out:
        left_out.append(f"{count(calls_left_out, 'further call')} of these lanes not drawn")
    stretches = overlaps([lane for _, lane in drawn])
    bands = [(axis.position(first), axis.position(last)) for first, last in stretches]
    return Drawing(
        anchor=anchor,
        order_key=visible(lanes.order_key),
        heading=f"{count(lanes.messages, 'message')}, {count(receives, 'receive')}",
        expected=lanes.expected,
        final=lanes.final or "not read",
        ticks=tuple((position, milliseconds(time_ns)) for position, time_ns in axis.ticks()),
        cuts=tuple((position, f"{idle / 1e9:.3g} s") for position, idle in axis.cuts),
        bands=tuple((first, last) for first, last in bands if last > first or proof is None),
        tracks=tuple(_track(letter, lane, axis, focus, proof) for letter, lane in drawn),
        left_out="; ".join(left_out),
        calls=tuple(_call_row(lane, call, focus) for lane, call in lanes.calls),
        errors=tuple(
            f"{lane_name(lane)} {lane.outcome}: {lane.error}"
            for lane in lanes.lanes
            if lane.error is not None
        ),
    )


def _track(
    letter: str, lane: Lane, axis: Axis, focus: frozenset[int], proof: Proof | None
) -> Track:
    """One lane, cut to what the axis shows. What is a step of the proof has its number."""
    position, first, last = axis.position, axis.spans[0][0], axis.spans[-1][1]
    calls = [
        (call, lane.end_ns if call.answered_ns is None else call.answered_ns) for call in lane.calls
    ]
    calls = [(call, end) for call, end in calls if call.sent_ns <= last and end >= first]
    numbers = {}
    ends: list[tuple[int, str]] = []
    for place, step in enumerate(proof.steps if proof else (), 1):
        if step.call_id is not None:
            numbers[step.call_id] = str(place)
        elif step.actor == letter and step.at_ns is not None:
            ends.append((step.at_ns if step.until_ns is None else step.until_ns, str(place)))
    if proof is None and lane.ack is not None and lane.acked_ns is not None:
        ends.append((lane.acked_ns, ""))
    # A step of a proof stands where it was over: the steps are told in that order.
    spots = [
        position(end) if proof else (position(call.sent_ns) + position(end)) / 2
        for call, end in calls
    ]
    spots += [position(moment) for moment, _ in ends]
    met = [fault for fault in lane.faults if first <= fault.at_ns <= last]
    spots += [position(fault.at_ns) for fault in met]
    rows = _rows(spots)
    heights = [_ROW * row + _ROW / 2 + 7 for row in rows]
    bars, marks = [], []
    for (call, end), spot, y in zip(calls, spots, heights, strict=False):
        look = "read" if call.mark is Mark.READ else call.decision.value
        bars.append(
            Bar(position(call.sent_ns), position(end), y, look, open=call.answered_ns is None)
        )
        text = numbers.get(call.call_id, call.mark.value)
        story = call_text(lane, call)
        marks.append(Sign(spot, y, f"mark-{look}", look, text, "", story, call.call_id in focus))
        if call.fault is not None:
            story = f"fault {visible(call.fault)} on call {call.call_id}"
            marks.append(Sign(position(call.sent_ns), y, "fault", "fault", "", "", story, False))
    for (moment, number), spot, y in zip(
        ends, spots[len(calls) :], heights[len(calls) :], strict=False
    ):
        symbol, story = "end", "ended"
        if lane.ack is not None and lane.acked_ns == moment:
            symbol, story = f"ack-{lane.ack.value}", lane.ack.value.replace("_", " ")
        story = f"{story} at {milliseconds(moment)} ms"
        marks.append(Sign(spot, y, symbol, "ack", "", number, story, False))
    placed = len(calls) + len(ends)
    for fault, spot, y in zip(met, spots[placed:], heights[placed:], strict=True):
        story = f"fault {fault.name} at {milliseconds(fault.at_ns)} ms"
        marks.append(Sign(spot, y, "fault", "fault", "", "", story, False))
    run = None
    if lane.started_ns is not None:
        end = lane.ended_ns if lane.ended_ns is not None else lane.end_ns
        if lane.started_ns <= last and end >= first:
            run = (position(lane.started_ns), position(end))
    name = lane_name(lane)
    if lane.environment is not None:
        name += f" · environment {lane.environment}{' (cold)' if lane.cold else ''}"
    message = f"message {lane.message_no}, {lane.kind}"
    if lane.ack is not AckOutcome.DEAD_LETTERED:
        message += f", receive {lane.receive_count}"
    if lane.result is not None:
        message += f": {lane.result}"
    return Track(
        letter=letter,
        name=name,
        message=message,
        story=f"{letter} {name}, {message}. ".lstrip() + ". ".join(mark.story for mark in marks),
        height=_ROW * (max(rows, default=0) + 1) + 14,
        first=position(lane.received_ns),
        last=position(lane.end_ns),
        run=run,
        bars=tuple(bars),
        marks=tuple(marks),
    )


def _rows(spots: Sequence[float]) -> list[int]:
    """A row for each spot, the first one free: spots of one row are at least a mark apart."""
    last: list[float] = []
    rows = []
    for spot in spots:
        row = next((row for row, end in enumerate(last) if spot - end >= _NEAR), len(last))
        last[row : row + 1] = [spot]
        rows.append(row)
    return rows


def _call_row(lane: Lane, call: LaneCall, focus: frozenset[int]) -> CallRow:
    end = "no answer" if call.answered_ns is None else milliseconds(call.answered_ns)
    again = f", attempt {call.attempt}" if call.attempt > 1 else ""
    fault = f", fault {call.fault}" if call.fault else ""
    return CallRow(
        time=f"{milliseconds(call.sent_ns)} … {end}",
        lane=lane_name(lane),
        call=f"{call.call_id} {call.operation}{again}{fault}",
        decision=call.decision.value + (f" ({call.error_code})" if call.error_code else ""),
        condition=call.condition or "none",
        effect=call.effect or "not known",
        ringed=call.call_id in focus,
    )
