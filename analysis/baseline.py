"""Timing held against limits: thresholds, figures with their uncertainty, the baseline file.

A quantile of a run is an estimate, and of few values a poor one. Each comes with an interval of
95 % from order statistics: the values of two ranks, chosen so that by the binomial distribution
the true quantile lies outside with at most 2.5 % on either side, whatever the distribution of
the values (Conover, Practical Nonparametric Statistics, "confidence interval for a quantile").
A limit that is passed by less than the intervals is no evidence of anything: the answer is then
"not enough data", as it is for fewer values than bound the quantile at all (72 for 95 %, 368
for 99 %).

The interval knows the chance within one run. It does not know that a machine was busy: that is
what the tolerance of a threshold is for. Rates and the highest value have no interval; they are
facts of one run.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from analysis.base import make_base
from analysis.errors import EvidenceError, UsageError
from analysis.findings import Verdict, VerdictWord
from analysis.schema import RunInfo
from analysis.store import Evidence, open_evidence
from analysis.text import count, duration_text, visible
from analysis.timing import NS_PER_S, measure, number_of, values_at

FORMAT = 1
_OUTSIDE = 0.025
"""Probability that the true quantile lies beyond either end of its interval."""

LEVELS: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
_MAX = "max"
_FEWEST_SETTLED = 100
"""Messages from which a rate is more than its start and its end."""

# As a threshold names them -> name and split of analysis.timing.
SERIES: Mapping[str, tuple[str, str]] = {
    "end_to_end": ("end to end", "all"),
    "end_to_end_processed": ("end to end", "processed"),
    "end_to_end_duplicate": ("end to end", "duplicate"),
    "handler": ("handler", "all"),
    "handler_processed": ("handler", "processed"),
    "handler_duplicate": ("handler", "duplicate"),
    "write": ("write", "all"),
    "write_accepted": ("write", "accepted"),
    "write_rejected": ("write", "rejected"),
    "send": ("send", "all"),
    "send_lag": ("send lag", "all"),
    "delivery": ("delivery", "all"),
}
RATES = ("drain_rate", "send_rate")
METRICS = (*(f"{series}_{end}" for series in SERIES for end in (*LEVELS, _MAX)), *RATES)


# --- thresholds -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Threshold:
    """``handler_p99 = "<= 1.25x, n >= 500"``"""

    metric: str
    most: bool  # <=, else >=
    limit: float  # seconds, or a second; times the baseline's if relative
    relative: bool
    samples: int  # at least; with fewer nothing is said

    @property
    def text(self) -> str:
        unit = "x the baseline" if self.relative else _unit(self.metric)
        return f"{'at most' if self.most else 'at least'} {self.limit:g}{unit}"


_RULE = re.compile(r"\s*(<=|>=)\s*(\d+(?:\.\d+)?)\s*(x?)\s*(?:,\s*n\s*>=\s*(\d+)\s*)?")


def parse_threshold(metric: str, text: str) -> Threshold:
    """A threshold from the configuration.

    :raises ValueError: the text is none, or none for this metric.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(
            'must be "<= NUMBER" or ">= NUMBER", with x behind it for a multiple of the '
            'baseline, and ", n >= NUMBER" for the fewest values, such as "<= 1.25x, n >= 500" '
            f"(got {visible(text)!r})"
        )
    sign, limit, multiple, samples = match.groups()
    if float(limit) == 0:
        raise ValueError(f"a limit of 0 is none (got {visible(text)!r})")
    if multiple and metric.endswith(f"_{_MAX}"):
        raise ValueError(
            "the highest of all values depends on their number, so it is no multiple of a "
            "baseline's: name a quantile, such as p99, or a limit without x"
        )
    fewest = fewest_values(metric)
    if samples is not None and int(samples) < fewest:
        raise ValueError(
            f"n must be at least {fewest}: fewer values do not bound it (got {samples})"
        )
    return Threshold(metric, sign == "<=", float(limit), bool(multiple), int(samples or fewest))


def fewest_values(metric: str) -> int:
    """How many values a metric needs before it says anything."""
    if metric in RATES:
        return _FEWEST_SETTLED
    level = metric.removeprefix(_series_of(metric) + "_")
    if level == _MAX:
        return 1
    # The interval must have an upper end below the highest of infinitely many values.
    return math.ceil(math.log(_OUTSIDE) / math.log(LEVELS[level]))


def _series_of(metric: str) -> str:
    """The longest name: that of ``end_to_end_processed_p50`` is not ``end_to_end``."""
    return max((name for name in SERIES if metric.startswith(f"{name}_")), key=len)


def _unit(metric: str) -> str:
    return " a second" if metric in RATES else " s"


DEFAULTS = (
    parse_threshold("handler_p95", "<= 1.5x"),
    parse_threshold("end_to_end_p95", "<= 1.5x"),
)
"""What a baseline is compared by when nothing is configured: what varied by less than a fifth
between runs of the same code on a busy machine. (99 % varied by half.)"""


# --- figures ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured metric. Durations in nanoseconds, rates in messages a second."""

    n: int
    value: float
    low: float | None = None  # of the interval; None: not bounded on this side
    high: float | None = None


def interval_ranks(n: int, level: float) -> tuple[int | None, int, int | None]:
    """Ranks, from 1, of the values that bound a quantile below, are it, and bound it above.

    The number of values not above the true quantile is binomial with ``n`` and ``level``. The
    lower rank is the highest with at most 2.5 % below it, the upper one likewise from above;
    None where no value of ``n`` goes so far out.

    :param n: 1 or more.
    """
    low = _lowest_count(n, level)
    high = n - _lowest_count(n, 1 - level) + 1
    return low or None, max(1, math.ceil(n * level - 1e-9)), high if high <= n else None


def _lowest_count(n: int, p: float) -> int:
    """The smallest k for which a binomial number is at most k with more than 2.5 %."""
    spread = math.sqrt(n * p * (1 - p))
    k = max(0, math.floor(n * p - 12 * spread) - 1)  # what lies below is less than 1e-30
    logarithm = (
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
    )
    odds = p / (1 - p)
    mass = math.exp(logarithm)
    total = mass
    while total <= _OUTSIDE:
        mass *= (n - k) / (k + 1) * odds
        k += 1
        total += mass
    return k


_DONE = {
    "drain_rate": "SELECT count(*) FROM acks WHERE outcome IN ('deleted', 'dead_lettered')",
    "send_rate": "SELECT count(accepted_at) FROM messages",
}


def figures(evidence: Evidence, metrics: Sequence[str] = METRICS) -> dict[str, Figure]:
    """What was measured of these metrics; one that the run does not have is absent."""
    make_base(evidence)
    found: dict[str, Figure] = {}
    by_series: dict[str, list[str]] = {}
    for metric in metrics:
        if metric not in RATES:
            by_series.setdefault(_series_of(metric), []).append(metric)
    for series, wanted in by_series.items():
        n = number_of(evidence, *SERIES[series])
        ranks = {metric: _ranks(metric, series, n) for metric in wanted} if n else {}
        values = values_at(evidence, *SERIES[series], n, {r for rs in ranks.values() for r in rs})
        for metric, (low, middle, high) in ranks.items():
            if middle is not None:
                ends = (None if rank is None else values[rank] for rank in (low, high))
                found[metric] = Figure(n, values[middle], *ends)
    asked = [metric for metric in metrics if metric in RATES]
    timing = measure(evidence) if asked else None
    if timing is not None:
        for metric in asked:
            rate = timing.settled_per_s if metric == "drain_rate" else timing.sent_per_s
            if rate:
                found[metric] = _exact(evidence.scalar(_DONE[metric]), rate)
    return found


def _ranks(metric: str, series: str, n: int) -> tuple[int | None, int | None, int | None]:
    level = metric.removeprefix(series + "_")
    return (n, n, n) if level == _MAX else interval_ranks(n, LEVELS[level])


def _exact(n: int, value: float) -> Figure:
    return Figure(n, value, value, value)


# --- comparing --------------------------------------------------------------------------


class Status(StrEnum):
    FINE = "fine"
    WORSE = "worse"
    NOT_ENOUGH = "not enough data"


@dataclass(frozen=True, slots=True)
class Compared:
    """One threshold and what was found."""

    metric: str
    status: Status
    required: str
    actual: str


def compare(threshold: Threshold, now: Figure | None, then: Figure | None = None) -> Compared:
    """Hold a figure against a threshold.

    Fine when the value keeps the limit. Worse when it does not, and the intervals of both sides
    are apart by more than the limit allows. Else, and with too few values, not enough data.

    :param then: the baseline's figure, for a relative threshold.
    """
    metric = threshold.metric

    def said(status: Status, actual: str) -> Compared:
        return Compared(metric, status, threshold.text, actual)

    if now is None:
        return said(Status.NOT_ENOUGH, "the run has no value of it")
    measured = f"{_shown(metric, now.value)} of {count(now.n, 'value')}"
    if now.n < threshold.samples:
        return said(Status.NOT_ENOUGH, f"{measured}; {threshold.samples:,} are needed")
    if threshold.relative:
        if then is None:
            return said(Status.NOT_ENOUGH, f"{measured}; the baseline has no value of it")
        before = f"{_shown(metric, then.value)} of {count(then.n, 'value')}"
        if then.n < threshold.samples:
            actual = f"{measured}; the baseline has {before}, {threshold.samples:,} are needed"
            return said(Status.NOT_ENOUGH, actual)
        if then.value <= 0:
            return said(Status.NOT_ENOUGH, f"{measured}; the baseline is 0, which has no multiple")
        measured = f"{measured}, {now.value / then.value:.2f}x the baseline ({before})"
        limits = then
    else:
        limit = threshold.limit * (1 if metric in RATES else NS_PER_S)
        limits = _exact(1, limit)
    times = threshold.limit if threshold.relative else 1.0
    if threshold.most:
        kept = now.value <= times * limits.value
        apart = now.low is not None and limits.high is not None and now.low > times * limits.high
    else:
        kept = now.value >= times * limits.value
        apart = now.high is not None and limits.low is not None and now.high < times * limits.low
    if kept:
        return said(Status.FINE, measured)
    if apart:
        return said(Status.WORSE, measured)
    return said(
        Status.NOT_ENOUGH, f"{measured}: beyond the limit by no more than so few values vary"
    )


def _shown(metric: str, value: float) -> str:
    return f"{value:,.1f} a second" if metric in RATES else f"{duration_text(round(value))} ms"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict, and the timing held against its thresholds."""

    run_id: str
    verdict: VerdictWord  # of all of it
    reasons: tuple[str, ...]  # why not PASS
    thresholds: tuple[Compared, ...]
    warnings: tuple[str, ...] = ()  # what makes a comparison weaker than it looks


def concluded(
    verdict: Verdict, thresholds: tuple[Compared, ...], warnings: tuple[str, ...] = ()
) -> Comparison:
    """FAIL for a finding or a worse figure, else INCONCLUSIVE for anything that is not known."""
    words = {verdict.verdict}
    if any(one.status is Status.WORSE for one in thresholds):
        words.add(VerdictWord.FAIL)
    if any(one.status is Status.NOT_ENOUGH for one in thresholds):
        words.add(VerdictWord.INCONCLUSIVE)
    ranked = (VerdictWord.FAIL, VerdictWord.INCONCLUSIVE, VerdictWord.PASS)
    reasons = [
        f"{one.metric}: {one.status}: {one.actual}; required: {one.required}."
        for one in thresholds
        if one.status is not Status.FINE
    ]
    return Comparison(
        verdict.run_id,
        next(word for word in ranked if word in words),
        (*verdict.reasons, *reasons),
        thresholds,
        warnings,
    )


# --- the baseline -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is compared with: a small file to keep beside the code."""

    format: int
    run_id: str
    load: dict[str, str]  # what was asked: must be the same
    machine: dict[str, str]  # where and with what: a difference is told
    figures: dict[str, Figure] = field(default_factory=dict)


def baseline_of(evidence: Evidence) -> Baseline:
    run = evidence.run
    return Baseline(FORMAT, run.run_id, _load(run), _machine(run), figures(evidence))


def _load(run: RunInfo) -> dict[str, str]:
    """What must be equal for a comparison to mean anything, as a person would name it."""
    plan = run.plan
    rate = "max" if plan.rate_per_s is None else f"{plan.rate_per_s:g}"
    return {
        "handler": run.handler,
        "target": run.target,
        "messages": str(plan.messages),
        "plan digest": plan.digest or "unknown",
        "arrangement": plan.arrangement,
        "rate": rate,
        "concurrency": str(plan.concurrency),
        "batch_size": str(run.batch_size),
        "timeout": f"{run.timeout_s:g}",
        "visibility_timeout": str(run.visibility_timeout_s),
        "max_receive_count": str(run.max_receive_count),
        "report_batch_item_failures": str(run.report_batch_item_failures).lower(),
        "faults": ", ".join(rule.text for rule in run.faults) or "none",
    }


def _machine(run: RunInfo) -> dict[str, str]:
    cores = {} if run.cores is None else {"cores": str(run.cores)}
    return {**cores, "onceproof": run.tool_version, **run.versions}


def differences(baseline: Baseline, run: RunInfo) -> tuple[list[str], list[str]]:
    """What differs in the load, which forbids a comparison, and what differs in the machine
    and the versions, which weakens it."""
    return (
        _differing(baseline.load, _load(run)),
        _differing(baseline.machine, _machine(run)),
    )


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {visible(then.get(name, 'unknown'), 60)} then, "
        f"{visible(now.get(name, 'unknown'), 60)} now"
        for name in dict.fromkeys((*then, *now))
        if then.get(name) != now.get(name)
    ]


def read_baseline(path: Path) -> Baseline:
    """A baseline from its file, or from the directory of a run.

    :raises UsageError: it is neither.
    """
    if path.is_dir():
        try:
            with open_evidence(path) as evidence:
                return baseline_of(evidence)
        except EvidenceError as error:
            raise UsageError(f"--baseline: {error}") from error
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise UsageError(
            f"--baseline: {path}: cannot be read ({error.strerror or error}). Write it from a run "
            f"that is as it should be: loadtest check RUN --baseline {path} --update-baseline"
        ) from error
    except msgspec.DecodeError as error:
        raise UsageError(
            f"--baseline: {path}: is not a baseline ({error}). Write it again: "
            f"loadtest check RUN --baseline {path} --update-baseline"
        ) from error
    if baseline.format != FORMAT:
        raise UsageError(
            f"--baseline: {path}: has format {baseline.format}, this version reads {FORMAT}. "
            f"Write it again: loadtest check RUN --baseline {path} --update-baseline"
        )
    return baseline


def write_baseline(path: Path, baseline: Baseline) -> None:
    """:raises UsageError: it cannot be written there."""
    content = msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n"
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(
            f"--baseline: {path}: cannot be written ({error.strerror or error}). "
            "Name a file in a folder that is there."
        ) from error


def unknown_metric(name: str) -> str:
    """Why a name is no metric, with the one that was probably meant."""
    close = difflib.get_close_matches(name, METRICS, n=1)
    meant = f"did you mean {close[0]}?" if close else "loadtest check --help lists them"
    return f"is not a metric ({meant})"
