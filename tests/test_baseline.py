"""Timing against thresholds and a baseline: worse, fine, and not enough data."""

from __future__ import annotations

import json
import math
import random
import re
import tomllib
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.baseline import (
    LEVELS,
    METRICS,
    Figure,
    Status,
    compare,
    fewest_values,
    figures,
    interval_ranks,
    parse_threshold,
)
from analysis.store import open_evidence
from tests.cli import loadtest
from tests.sample_run import Sample, write_run

SMALL = Sample(orders=100, copies=4, transient=0)


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", SMALL)
    return tmp_path


def faster(baseline: Path) -> None:
    """Make a baseline that of a handler that took a third of the time."""
    told = json.loads(baseline.read_text())
    for metric, figure in told["figures"].items():
        if metric.startswith("handler"):
            figure |= {name: figure[name] and figure[name] / 3 for name in ("value", "low", "high")}
    baseline.write_text(json.dumps(told))


def thresholds(cwd: Path, *lines: str) -> None:
    (cwd / "loadtest.toml").write_text("[thresholds]\n" + "".join(f"{line}\n" for line in lines))


# --- intervals --------------------------------------------------------------------------


@given(n=st.integers(1, 80), level=st.sampled_from(list(LEVELS.values())))
def test_an_interval_is_the_narrowest_that_misses_by_a_fortieth_on_each_side(
    n: int, level: float
) -> None:
    p = Fraction(str(level))
    at_most = [Fraction(0)]  # [k]: probability of fewer than k
    for k in range(n + 1):
        at_most.append(at_most[-1] + math.comb(n, k) * p**k * (1 - p) ** (n - k))
    low, rank, high = interval_ranks(n, level)
    assert rank == max(1, math.ceil(n * p))
    side = Fraction(1, 40)
    # The quantile is below the value of rank k when fewer than k values are not above it.
    assert at_most[low or 0] <= side < at_most[(low or 0) + 1]
    top = high or n + 1
    assert 1 - at_most[top] <= side < 1 - at_most[top - 1]
    assert (low or 1) <= rank <= (high or n)


@pytest.mark.parametrize(
    ("metric", "n"), [("handler_p50", 6), ("handler_p95", 72), ("write_accepted_p99", 368)]
)
def test_the_fewest_values_are_those_that_bound_the_quantile(metric: str, n: int) -> None:
    assert fewest_values(metric) == n
    level = LEVELS[metric.rpartition("_")[2]]
    assert interval_ranks(n, level)[2] == n
    assert interval_ranks(n - 1, level)[2] is None


def test_an_interval_of_millions_is_near_its_normal_approximation() -> None:
    n = 5_000_000
    low, rank, high = interval_ranks(n, 0.99)
    width = 1.96 * math.sqrt(n * 0.99 * 0.01)
    assert low is not None
    assert high is not None
    assert abs(rank - low - width) < 3
    assert abs(high - rank - width) < 3


def test_figures_are_the_values_of_their_ranks(tmp_path: Path) -> None:
    with open_evidence(write_run(tmp_path, SMALL)) as evidence:
        found = figures(evidence)
        rows = evidence.rows("SELECT ended_at - started_at AS ns FROM invocations")
        settled = evidence.scalar("SELECT count(*) FROM acks WHERE outcome <> 'returned'")
    values = sorted(row["ns"] for row in rows)
    n = len(values)
    for end, level in LEVELS.items():
        figure = found[f"handler_{end}"]
        low, rank, high = interval_ranks(n, level)
        assert (figure.n, figure.value) == (n, values[rank - 1])
        assert figure.low == (values[low - 1] if low else None)
        assert figure.high == (values[high - 1] if high else None)
    assert found["handler_max"].value == values[-1]
    assert (found["drain_rate"].n, found["drain_rate"].value > 0) == (settled, True)
    assert "send_lag_p50" not in found, "there is none at rate max"
    assert found["handler_processed_p50"].n + found["handler_duplicate_p50"].n < n
    assert found["write_p50"].n == (found["write_accepted_p50"].n + found["write_rejected_p50"].n)


# --- comparing --------------------------------------------------------------------------


def measured(values: list[float], level: float) -> Figure:
    values = sorted(values)
    low, rank, high = interval_ranks(len(values), level)
    ends = (None if end is None else values[end - 1] for end in (low, high))
    return Figure(len(values), values[rank - 1], *ends)


def test_chance_alone_is_seldom_called_worse_and_a_real_difference_always_is() -> None:
    dice = random.Random(1)
    threshold = parse_threshold("handler_p95", "<= 1x")
    said: dict[float, list[Status]] = {1.0: [], 2.0: []}
    for _ in range(200):
        then = measured([dice.expovariate(1) for _ in range(400)], 0.95)
        for slower, statuses in said.items():
            now = measured([dice.expovariate(1) * slower for _ in range(400)], 0.95)
            statuses.append(compare(threshold, now, then).status)
    # Two intervals of 95 % of the same thing are apart, this way round, in fewer than 1 %.
    assert said[1.0].count(Status.WORSE) <= 3
    assert said[1.0].count(Status.FINE) > 60
    assert said[1.0].count(Status.NOT_ENOUGH) > 40, "the noise is not called worse"
    assert said[2.0].count(Status.WORSE) > 190
    assert said[2.0].count(Status.FINE) == 0


@given(
    n=st.integers(1, 71),
    value=st.floats(1, 1e12),
    text=st.sampled_from(["<= 100x", ">= 0.001x", "<= 1000000", ">= 0.0000000001"]),
)
def test_too_few_values_are_never_fine_and_never_worse(n: int, value: float, text: str) -> None:
    threshold = parse_threshold("handler_p95", text)
    few, many = Figure(n, value, value, value), Figure(1000, value, value, value)
    assert compare(threshold, few, many).status is Status.NOT_ENOUGH
    if threshold.relative:
        assert compare(threshold, many, few).status is Status.NOT_ENOUGH
        assert compare(threshold, many, None).status is Status.NOT_ENOUGH
    assert compare(threshold, None, many).status is Status.NOT_ENOUGH
    assert compare(threshold, many, many).status is Status.FINE


@given(
    value=st.floats(1, 1e12), limit=st.floats(0.01, 100), spread=st.floats(1, 3), most=st.booleans()
)
def test_a_direction_is_the_other_one_upside_down(
    value: float, limit: float, spread: float, most: bool
) -> None:
    sign, inverse = ("<=", ">=") if most else (">=", "<=")
    then = Figure(500, 1e6, 1e6 / spread, 1e6 * spread)
    now = Figure(500, value, value / spread, value * spread)
    one = compare(parse_threshold("handler_p95", f"{sign} {limit:.6f}x"), now, then)
    other = compare(parse_threshold("handler_p95", f"{inverse} {1 / limit:.12f}x"), then, now)
    ratio = value / 1e6 / limit
    if min(abs(ratio * spread**power - 1) for power in (-2, -1, 0, 1, 2)) > 1e-3:
        assert one.status is other.status


# --- the grammar ------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_takes_a_limit(metric: str) -> None:
    assert not parse_threshold(metric, "<=2").relative
    assert parse_threshold(metric, " >= 0.5 , n >= 9999 ").samples == 9999


def test_the_thresholds_of_the_readme_are_some(cwd: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    (block,) = re.findall(r"```toml\n(\[thresholds\].*?)```", readme, re.DOTALL)
    rules = tomllib.loads(block)["thresholds"]
    assert len(rules) == len([parse_threshold(metric, text) for metric, text in rules.items()]) > 3
    assert set(rules) <= set(METRICS)


def test_what_is_wrong_with_a_threshold_is_told_with_its_key(cwd: Path) -> None:
    thresholds(
        cwd,
        'handler_p98 = "<= 1x"',
        'handler_p99 = "< 1.25x"',
        "send_p50 = 2.0",
        'drain_rate = ">= 0"',
        'write_max = "<= 2x"',
        'handler_p50 = "<= 1x, n >= 2"',
    )
    end = loadtest("run", cwd=cwd)
    assert end.code == 2
    lines = end.err.removeprefix("error: ").splitlines()
    words = (
        "handler_p98: is not a metric (did you mean handler_p9",
        'handler_p99: must be "<= NUMBER" or ">= NUMBER"',
        'send_p50: must be text, such as "<= 1.25x" (got 2.0)',
        "drain_rate: a limit of 0 is none",
        "write_max: the highest of all values depends on their number",
        "handler_p50: n must be at least 6: fewer values do not bound it (got 2)",
    )
    assert len(lines) == len(words)
    for line, text in zip(lines, words, strict=True):
        assert line.startswith(f"loadtest.toml: thresholds.{text}"), line


# --- the command ------------------------------------------------------------------------


def test_a_run_as_its_baseline_is_fine_and_a_slower_one_worse(cwd: Path) -> None:
    written = loadtest("check", "run", "--baseline", "base.json", "--update-baseline", cwd=cwd)
    assert (written.code, written.out) == (0, "PASS\nbaseline  base.json\n")
    again = loadtest("check", "run", "--baseline", "base.json", cwd=cwd)
    assert again.code == 0
    first, second, last = again.out.splitlines()
    assert first.startswith("✓ handler_p95: ")
    assert "1.00x the baseline" in first
    assert second.startswith("✓ end_to_end_p95: ")
    assert (last, again.err) == ("PASS", "")

    faster(cwd / "base.json")
    slow = loadtest("check", "run", "--baseline", "base.json", cwd=cwd)
    assert slow.code == 1
    assert slow.out.startswith("✗ handler_p95: worse: ")
    assert "3.00x the baseline" in slow.out
    assert slow.out.splitlines()[1].startswith("✓ end_to_end_p95: ")
    assert "\nFAIL  handler_p95: worse: " in slow.out
    cases = {
        case.get("name"): case
        for case in ET.parse(cwd / "run" / "junit.xml").getroot().iter("testcase")
        if case.get("classname") == "onceproof.thresholds"
    }
    assert set(cases) == {"handler_p95", "end_to_end_p95"}
    assert cases["handler_p95"].find("failure") is not None
    assert list(cases["end_to_end_p95"]) == []
    summary = (cwd / "run" / "summary.md").read_text()
    assert summary.startswith("## onceproof: FAIL\n\n- handler\\_p95: worse: ")
    assert "| ✗ | handler_p95 | at most 1.5x the baseline | " in summary

    same = loadtest("check", "run", "--baseline", "run", "--json", cwd=cwd)
    told = json.loads(same.out)
    assert (same.code, told["exit_code"], told["verdict"]) == (0, 0, "PASS")
    assert [one["status"] for one in told["thresholds"]] == ["fine", "fine"]


def test_thresholds_of_the_configuration(cwd: Path) -> None:
    thresholds(
        cwd,
        'handler_p99 = "<= 2.0"',
        'send_lag_p50 = "<= 1.0"',
        'write_accepted_p99 = "<= 1.0"',
        'end_to_end_p50 = "<= 0.000001"',
        'drain_rate = ">= 1"',
        'send_rate = ">= 1000000"',
    )
    end = loadtest("check", "run", cwd=cwd)
    assert end.code == 1
    starts = (
        "✓ handler_p99: ",
        "? send_lag_p50: not enough data: the run has no value of it (required: at most 1 s)",
        "? write_accepted_p99: not enough data: ",
        "✗ end_to_end_p50: worse: ",
        "✓ drain_rate: ",
        "✗ send_rate: worse: ",
        "FAIL  ",
    )
    for line, start in zip(end.out.splitlines(), starts, strict=True):
        assert line.startswith(start)
    assert "of 100 values; 368 are needed (required: at most 1 s)" in end.out

    thresholds(cwd, 'write_accepted_p99 = "<= 1.0"')
    few = loadtest("check", "run", cwd=cwd)
    assert (few.code, few.out.splitlines()[-1][:12]) == (3, "INCONCLUSIVE")
    (case,) = (
        ET.parse(cwd / "run" / "junit.xml")
        .getroot()
        .iterfind(".//testcase[@classname='onceproof.thresholds']")
    )
    assert case.find("error") is not None


def test_a_finding_fails_whatever_the_timing(cwd: Path) -> None:
    write_run(cwd / "bad", Sample(orders=100, copies=4, transient=0, overwrites=5))
    end = loadtest("check", "bad", "--baseline", "run", cwd=cwd)
    assert end.code == 1
    assert "\nFAIL  findings: overwrite " in end.out
    (cwd / "base.json").write_text("as it was")
    refused = loadtest("check", "bad", "--baseline", "base.json", "--update-baseline", cwd=cwd)
    assert refused.code == 1
    assert "it is written from a run that passes" in refused.out
    assert (cwd / "base.json").read_text() == "as it was"


def test_another_load_is_refused_and_another_machine_told(cwd: Path) -> None:
    write_run(cwd / "other", Sample(orders=101, copies=4, transient=0, concurrency=4))
    end = loadtest("check", "other", "--baseline", "run", cwd=cwd)
    assert end.code == 2
    assert "is of another load" in end.said
    assert "concurrency 8 then, 4 now" in end.said

    about = write_run(cwd / "elsewhere", SMALL) / "run.json"
    about.write_text(about.read_text().replace('"python": "3.11.7"', '"python": "3.13.0"'))
    warned = loadtest("check", "run", "--baseline", "elsewhere", cwd=cwd)
    assert warned.code == 0
    assert "warning: the baseline was made under other conditions: python 3.13.0 then" in warned.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (No such file or directory). Write it from a run"),
        ("{", "is not a baseline"),
        ('{"format": 7, "run_id": "", "load": {}, "machine": {}}', "has format 7"),
    ],
)
def test_a_baseline_that_is_none(content: str | None, words: str, cwd: Path) -> None:
    if content is not None:
        (cwd / "base.json").write_text(content)
    end = loadtest("check", "run", "--baseline", "base.json", cwd=cwd)
    assert end.code == 2
    assert f"--baseline: base.json: {words}" in end.said


def test_what_check_needs_is_named(cwd: Path) -> None:
    thresholds(cwd, 'handler_p50 = "<= 1.5x"')
    end = loadtest("check", "run", cwd=cwd)
    assert end.code == 2
    assert "thresholds.handler_p50: is relative to a baseline; name one with --baseline" in end.said
    end = loadtest("check", "run", "--update-baseline", cwd=cwd)
    assert (end.code, "needs the file to write, --baseline FILE" in end.said) == (2, True)
    base = ["--baseline", "no/where.json", "--update-baseline"]
    end = loadtest("check", "run", *base, cwd=cwd)
    assert (end.code, "cannot be written" in end.said) == (2, True)
    assert loadtest("check", "nowhere", cwd=cwd).code == 2
    (cwd / "loadtest.toml").unlink()
    (cwd / "run" / "summary.md").mkdir()
    end = loadtest("check", "run", cwd=cwd)
    assert (end.code, "summary.md: cannot be written (Is a directory)" in end.said) == (2, True)
