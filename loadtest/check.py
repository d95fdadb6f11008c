"""``loadtest check``: a run's verdict, and its timing held against thresholds and a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from analysis.baseline import (
    DEFAULTS,
    Baseline,
    Comparison,
    Threshold,
    baseline_of,
    compare,
    concluded,
    differences,
    figures,
    read_baseline,
    write_baseline,
)
from analysis.errors import EvidenceError, UsageError
from analysis.findings import VerdictWord
from analysis.junit import write_junit
from analysis.schema import RunInfo
from analysis.store import load_run, open_evidence
from analysis.summary import write_summary
from analysis.verdict import judge, write_verdict


def check_run(
    run_dir: Path, thresholds: Sequence[Threshold] | None, baseline_path: Path | None
) -> Comparison:
    """Judge a run, compare its timing, and write the result into its ``junit.xml`` and
    ``summary.md``.

    :param thresholds: None stands for the defaults where there is a baseline.
    :param baseline_path: a baseline file, or the directory of another run.
    :raises UsageError: the baseline cannot be read, is needed and missing, or is of another
        load.
    :raises EvidenceError: the run cannot be read, or its files not be written.
    """
    warnings: list[str] = []
    baseline: Baseline | None = None
    run = load_run(run_dir)
    if baseline_path is not None:
        baseline = read_baseline(baseline_path)
        warnings = _compatible(baseline, baseline_path, run)
    elif relative := [one.metric for one in thresholds or () if one.relative]:
        raise UsageError(
            f"thresholds.{relative[0]}: is relative to a baseline; name one with --baseline"
        )
    if thresholds is None:
        thresholds = DEFAULTS if baseline is not None else ()
    verdict = judge(run_dir)
    write_verdict(run_dir, verdict)
    with open_evidence(run_dir) as evidence:
        now = figures(evidence, [one.metric for one in thresholds])
    then = baseline.figures if baseline is not None else {}
    compared = tuple(compare(one, now.get(one.metric), then.get(one.metric)) for one in thresholds)
    comparison = concluded(verdict, compared, tuple(warnings))
    try:
        write_junit(run_dir, verdict, comparison)
        write_summary(run_dir, verdict, comparison)
    except OSError as error:
        raise EvidenceError(
            f"{error.filename or run_dir}: cannot be written ({error.strerror or error}). Free "
            "some space or make the directory writable, then check the run again."
        ) from error
    return comparison


def update_baseline(run_dir: Path, path: Path | None) -> Comparison:
    """Write the baseline from a run, if it passed; its verdict.

    :raises UsageError: no file is named, or it cannot be written.
    :raises EvidenceError: the run cannot be read.
    """
    if path is None or path.is_dir():
        raise UsageError("--update-baseline: needs the file to write, --baseline FILE")
    verdict = judge(run_dir)
    if verdict.verdict is VerdictWord.PASS:
        with open_evidence(run_dir) as evidence:
            write_baseline(path, baseline_of(evidence))
    return concluded(verdict, ())


def comparison_json(comparison: Comparison) -> str:
    """For machines; figures are in ``verdict.json`` and in the baseline."""
    told = {"exit_code": comparison.verdict.exit_code, **msgspec.to_builtins(comparison)}
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"


def _compatible(baseline: Baseline, path: Path, run: RunInfo) -> list[str]:
    """What makes the comparison weak.

    :raises UsageError: the loads differ, so that times say nothing about each other.
    """
    load, machine = differences(baseline, run)
    if load:
        raise UsageError(
            f"--baseline: {path}: is of another load, so the times cannot be compared: "
            f"{'; '.join(load)}. Ask for the same load again, or write the baseline anew with "
            "--update-baseline."
        )
    if machine:
        return [f"the baseline was made under other conditions: {'; '.join(machine)}"]
    return []
