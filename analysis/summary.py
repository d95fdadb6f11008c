"""``summary.md``: the verdict for a pull-request comment, in at most 120 lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from analysis.baseline import Comparison, Status
from analysis.findings import CheckReport, CheckStatus, Quantiles, Verdict
from analysis.proofs import fault_line, group_line, proof_text
from analysis.schema import Observation
from analysis.store import load_run
from analysis.text import count, duration_text, visible

SUMMARY_FILE = "summary.md"
_MOST_REASONS = 5
_MOST_RULES = 12
_MOST_KINDS = 21
_MOST_GROUPS_EACH = 2
_MOST_FAULTS = 10
_MOST_GROUPS = 20
_MOST_EXAMPLE_LINES = 45
_TIMED = (
    ("end to end", "all"),
    ("handler", "all"),
    ("write", "accepted"),
    ("write", "rejected"),
)
_MARKS = {Status.FINE: "✓", Status.WORSE: "✗", Status.NOT_ENOUGH: "?"}
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>#|~@$!&"})


def write_summary(run_dir: Path, verdict: Verdict, comparison: Comparison | None = None) -> Path:
    """Write ``summary.md`` into the run directory."""
    path = run_dir / SUMMARY_FILE
    command = load_run(run_dir).command
    path.write_text(summary_text(verdict, command, comparison), encoding="utf-8")
    return path


def summary_text(
    verdict: Verdict, command: str | None = None, comparison: Comparison | None = None
) -> str:
    """The summary as Markdown; foreign text is bounded and cannot form markup.

    :param command: that repeats the run.
    :param comparison: its verdict then stands for all of it, and its thresholds are shown.
    """
    exposure = verdict.exposure
    concluded = comparison or verdict
    lines = [f"## onceproof: {concluded.verdict.value}", ""]
    if concluded.reasons:
        lines += [f"- {_plain(reason, 300)}" for reason in concluded.reasons[:_MOST_REASONS]]
        if len(concluded.reasons) > _MOST_REASONS:
            lines.append(f"- {len(concluded.reasons) - _MOST_REASONS} more in the report")
        lines.append("")
    rules = [
        (
            "✓" if rule.passed else "✗",
            _plain(rule.name),
            _plain(rule.required),
            _plain(rule.actual),
        )
        for rule in verdict.rules[:_MOST_RULES]
    ]
    lines += _table(("", "rule", "required", "actual"), rules)
    lines += [_counted(verdict), ""]
    if exposure.faults:
        told = [fault_line(rule) for rule in exposure.faults[:_MOST_FAULTS]]
        if len(exposure.faults) > len(told):
            told.append(f"{len(exposure.faults) - len(told)} more in the report")
        lines += [f"Faults: {'; '.join(_plain(line) for line in told)}.", ""]
    found = [check for check in verdict.checks if check.status is CheckStatus.FOUND]
    lines += _table(
        ("finding", "count", "orders, pattern"),
        [row for check in found[:_MOST_KINDS] for row in _group_rows(check)][:_MOST_GROUPS],
    )
    lines += _example(found)
    open_checks = [
        check.kind.value
        for check in verdict.checks
        if check.status in (CheckStatus.NOT_OBSERVABLE, CheckStatus.CRASHED)
    ]
    if open_checks:
        lines += [f"Not answered: {', '.join(open_checks)}.", ""]
    if verdict.timing is not None:
        known = {(row.name, row.split): row for row in verdict.timing.quantiles}
        rows = [_timing_row(known[series]) for series in _TIMED if series in known]
        lines += _table(("milliseconds", "n", "p50", "p99", "max"), rows)
    if comparison is not None:
        compared = [
            (_MARKS[one.status], one.metric, one.required, _plain(one.actual, 200))
            for one in comparison.thresholds
        ]
        lines += _table(("", "threshold", "required", "actual"), compared[:_MOST_RULES])
        lines += [f"- {_plain(text, 300)}" for text in comparison.warnings]
        lines += [""] * bool(comparison.warnings)
    lines.append(f"Run {_plain(verdict.run_id)}.")
    if command is not None:
        lines += ["", "Again:", "", *_block([visible(command, 2_000)])]
    return "\n".join(lines) + "\n"


def _example(found: Sequence[CheckReport]) -> list[str]:
    """The proof of the smallest example of the first finding, folded away."""
    for check in found:
        for group in check.groups:
            proof = group.example.proof
            if proof is not None:
                text = proof_text(proof, check.assumption)
                left = len(text) - _MOST_EXAMPLE_LINES
                if left > 0:
                    text[_MOST_EXAMPLE_LINES:] = [f"({left} more lines in the report)"]
                head = f"<details><summary>{check.kind.value}: how it came about</summary>"
                return [head, "", *_block(text), "", "</details>", ""]
    return []


def _block(lines: Sequence[str]) -> list[str]:
    """A block of code that no text in it can end."""
    runs = [len(list(run)) for line in lines for mark, run in groupby(line) if mark == "`"]
    fence = "`" * max([3, *(run + 1 for run in runs)])
    return [f"{fence}text", *lines, fence]


def _counted(verdict: Verdict) -> str:
    """What happened, in numbers; what the run could not show is left out."""
    counts, exposure, hidden = verdict.counts, verdict.exposure, verdict.not_observable
    seen = Observation.DELIVERIES not in hidden
    parts: list[tuple[bool, str]] = [
        (
            True,
            f"{count(counts.accepted_messages, 'message')} of {count(counts.orders, 'order')}"
            + (f" in {count(counts.deliveries, 'delivery', 'deliveries')}:" if seen else ":"),
        ),
        (Observation.WRITES not in hidden, f"{count(counts.accepted_writes, 'accepted write')},"),
        (
            Observation.CALLS not in hidden,
            f"{count(counts.rejected_writes, 'conditional rejection')};",
        ),
        (
            Observation.RESULTS not in hidden,
            f"{counts.processed:,} processed, {counts.duplicates:,} duplicate, "
            f"{counts.failed:,} failed;"
            if verdict.is_told_apart
            else f"{counts.failed:,} failed;",
        ),
        (
            Observation.ENDS not in hidden,
            f"{counts.deleted:,} acknowledged, {counts.dead_lettered:,} dead-lettered,",
        ),
        (True, f"{counts.unsettled:,} not settled."),
        (
            seen,
            f"{count(exposure.overlapping_pairs, 'overlapping pair')} in "
            f"{exposure.contended_orders:,} of {count(exposure.contestable_orders, 'order')}.",
        ),
    ]
    return " ".join(text for is_seen, text in parts if is_seen)


def _group_rows(check: CheckReport) -> list[tuple[str, str, str]]:
    """The largest groups of a check; its first finding where there are none."""
    told = [group_line(group) for group in check.groups[:_MOST_GROUPS_EACH]]
    told = told or [finding.explanation for finding in check.findings[:1]] or [""]
    if check.patterns > len(told):
        told[-1] += f" (and {count(check.patterns - len(told), 'further pattern')})"
    kinds = [check.kind.value, *[""] * (len(told) - 1)]
    counts = [f"{check.count:,}", *[""] * (len(told) - 1)]
    return [
        (kind, number, _plain(text, 300))
        for kind, number, text in zip(kinds, counts, told, strict=True)
    ]


def _timing_row(row: Quantiles) -> tuple[str, ...]:
    name = row.name if row.split == "all" else f"{row.name}, {row.split}"
    return (
        name,
        f"{row.n:,}",
        duration_text(row.p50_ns),
        duration_text(row.p99_ns),
        duration_text(row.max_ns),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table and an empty line; nothing without rows."""
    if not rows:
        return []
    table = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in table), ""]


def _plain(text: str, most: int = 120) -> str:
    return visible(text, most).translate(_SPECIAL)
