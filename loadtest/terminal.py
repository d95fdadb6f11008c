"""What a run shows while it is going, and the verdict at its end."""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.baseline import Comparison, Status
from analysis.findings import CheckStatus, Verdict, VerdictWord
from analysis.proofs import check_text
from analysis.query import Answer, TableText
from analysis.schema import Observation
from analysis.text import count, visible
from analysis.verdict import unanswered
from consumer.faults import KINDS, Kind, Where
from loadtest.doctor import Advice, Level
from loadtest.fault_rules import options_text

_PLAIN_EVERY_S = 5.0
_STYLES = {
    VerdictWord.PASS: "bold green",
    VerdictWord.FAIL: "bold red",
    VerdictWord.INCONCLUSIVE: "bold yellow",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run stands."""

    elapsed_s: float
    planned: int
    sent: int
    in_flight: int
    processed: int
    duplicates: int
    failed: int  # attempts; a failed message may be tried again
    settled: int
    dead_lettered: int
    queue_depth: int
    left_s: float | None  # None: not to be told yet
    has_results: bool = True  # False: nobody sees what the handler reports
    is_told_apart: bool = True  # False: [result] does not say what it reports of a copy

    @property
    def left(self) -> str:
        if self.left_s is None:
            return ""
        idle = self.settled < self.sent == self.planned and not self.in_flight + self.queue_depth
        why = ", until failed messages come back" if idle else ""
        return f"about {self.left_s:.0f} s left{why}"

    @property
    def results(self) -> tuple[str, ...]:
        if not self.has_results:
            return ()
        apart = (f"processed {self.processed}", f"duplicates {self.duplicates}")
        ends = (f"failed {self.failed}", f"dead-lettered {self.dead_lettered}")
        return apart + ends if self.is_told_apart else ends

    def line(self) -> str:
        left = f", {self.left}" if self.left else ""
        figures = (
            f"sent {self.sent}/{self.planned}",
            f"settled {self.settled}/{self.planned}",
            f"in flight {self.in_flight}",
            *self.results,
            f"queue {self.queue_depth}{left}",
        )
        return f"{self.elapsed_s:5.1f} s  {'  '.join(figures)}"


class Reporter(Protocol):
    """Where a run tells how it is going."""

    def plan(self, lines: Sequence[tuple[str, str]]) -> None: ...

    def phase(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def progress(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Quiet:
    """Tells nothing but warnings."""

    def plan(self, lines: Sequence[tuple[str, str]]) -> None: ...

    def phase(self, text: str) -> None: ...

    def warn(self, text: str) -> None:
        _warn(text)

    def progress(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Terminal:
    """A live view on a terminal, plain lines every few seconds elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._said_at_s = -_PLAIN_EVERY_S

    def plan(self, lines: Sequence[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for name, value in lines:
            table.add_row(name, Text(value))
        self._console.print(table)
        self._console.print()

    def phase(self, text: str) -> None:
        self.close()
        self._console.print(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        self.close()
        _warn(text)

    def progress(self, snapshot: Snapshot) -> None:
        if not self._console.is_terminal:
            if snapshot.elapsed_s - self._said_at_s >= _PLAIN_EVERY_S:
                self._said_at_s = snapshot.elapsed_s
                # Unwrapped: a log has no width.
                self._console.print(Text(snapshot.line()), soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(_live_view(snapshot), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _warn(text: str) -> None:
    errors = Console(stderr=True, highlight=False)
    errors.print(Text("warning: ", "bold yellow") + Text(text), soft_wrap=True)


def _live_view(snapshot: Snapshot) -> Group:
    bars = Table.grid(padding=(0, 2))
    for name, value in (("sent", snapshot.sent), ("settled", snapshot.settled)):
        bars.add_row(
            name,
            ProgressBar(total=snapshot.planned, completed=value, width=40),
            f"{value}/{snapshot.planned}",
            snapshot.left if name == "settled" else f"{snapshot.elapsed_s:.0f} s",
        )
    figures = Table.grid(padding=(0, 3))
    figures.add_row(
        f"in flight {snapshot.in_flight}", *snapshot.results, f"queue {snapshot.queue_depth}"
    )
    return Group(bars, figures)


_MOST_ROWS = 1_000  # of a table on a terminal


def print_answer(console: Console, answer: Answer) -> None:
    """The rows of a statement: a table on a terminal, CSV anywhere else."""
    if not console.is_terminal:
        lines = csv.writer(sys.stdout)
        lines.writerow(answer.columns)
        lines.writerows(answer.rows())
        return
    rows = list(islice(answer.rows(), _MOST_ROWS + 1))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(answer.columns):
        numbers = all(isinstance(row[place], int | float | None) for row in rows)
        table.add_column(visible(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*(Text("" if cell is None else visible(str(cell), 400)) for cell in row))
    console.print(table)
    more = "; there are more: all of them go into a file or a pipe" if rows[_MOST_ROWS:] else ""
    console.print(Text(f"{count(min(len(rows), _MOST_ROWS), 'row')}{more}", style="dim"))


def print_tables(console: Console, tables: Sequence[TableText]) -> None:
    """What a statement can name: the evidence with its columns, then what is worked out."""
    for table in tables:
        console.print(Text(table.name, "bold") + Text(f"  {table.meaning}".rstrip()))
        if any(column.meaning for column in table.columns):
            grid = Table.grid(padding=(0, 2))
            grid.add_column(width=16)
            grid.add_column(style="dim")
            for column in table.columns:
                grid.add_row(f"  {column.name}", Text(column.meaning or column.type.lower()))
            console.print(grid)
        else:
            names = ", ".join(column.name for column in table.columns)
            console.print(Padding(Text(names, "dim"), (0, 0, 0, 2)))


def print_faults(console: Console) -> None:
    """All faults, by what they strike; off a terminal a line each, as wide as it gets."""
    if not console.is_terminal:
        for name, about in KINDS.items():
            head = f"{name:<25}{about.where:<17}{_seconds_text(about):<10}"
            options = f"; options {options_text(name)}" if options_text(name) else ""
            line = f"{head}{about.imitates} ({about.source}){options}"
            console.print(Text(line), soft_wrap=True)
        return
    for where in Where:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title_justify="left")
        table.title = f"each strikes one {where}" if where is not Where.RUN else "once a run"
        table.add_column("fault", width=25, overflow="fold")
        table.add_column("seconds", width=8)
        table.add_column("imitates", ratio=3)
        table.add_column("source", ratio=2, style="dim", overflow="fold")
        for name, about in KINDS.items():
            if about.where is where:
                label = Text(name) + Text(f"\n{options_text(name)}".rstrip(), "dim")
                table.add_row(label, _seconds_text(about), about.imitates, about.source)
        console.print(table)
        console.print()


def _seconds_text(about: Kind) -> str:
    if about.seconds is None:
        return ""
    low, high = about.seconds
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"


_LEVEL_STYLES = {Level.ERROR: "bold red", Level.WARNING: "bold yellow", Level.HINT: "bold cyan"}


def print_advice(console: Console, advice: Sequence[Advice]) -> None:
    """One entry a line: level, setting, cause and cure."""
    for one in advice:
        level = Text(f"{one.level}: ", _LEVEL_STYLES[one.level])
        console.print(level + Text(str(one)), soft_wrap=True)
    counts = [f"{count(sum(one.level is level for one in advice), level)}" for level in Level]
    console.print(Text(", ".join(counts), style="dim"))


_COUNTED_FROM = {
    "deliveries": Observation.DELIVERIES,
    "accepted writes": Observation.WRITES,
    "conditional rejections": Observation.CALLS,
    "results": Observation.RESULTS,
    "acknowledged": Observation.ENDS,
    "dead-lettered": Observation.ENDS,
    "overlapping pairs": Observation.DELIVERIES,
}


_TOO_LITTLE_RACED = (
    "  More environments (--concurrency), more --copies or smaller batches bring more of them "
    "together."
)


def print_verdict(console: Console, verdict: Verdict, run_dir: Path, report: Path) -> None:
    """The short table, one line a rule, the findings by kind, and where the report is."""
    counts = verdict.counts
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    rows: list[tuple[str, int, str]] = [
        (
            "messages",
            counts.messages,
            f"{counts.orders} orders, {counts.copies} copies, {counts.conflicts} conflicts, "
            f"{counts.poison} poison",
        ),
        ("deliveries", counts.deliveries, f"{counts.redeliveries} of them again"),
        ("accepted writes", counts.accepted_writes, f"{counts.stored_items} items stored"),
        ("conditional rejections", counts.rejected_writes, ""),
        (
            "results",
            counts.processed + counts.duplicates + counts.failed,
            f"{counts.processed} processed, {counts.duplicates} duplicate, {counts.failed} failed"
            if verdict.is_told_apart
            else "failed; the others are not told apart",
        ),
        ("acknowledged", counts.deleted, ""),
        ("dead-lettered", counts.dead_lettered, ""),
        (
            "overlapping pairs",
            verdict.exposure.overlapping_pairs,
            f"in {verdict.exposure.contended_orders} of "
            f"{verdict.exposure.contestable_orders} orders that could overlap",
        ),
        ("findings", sum(check.count for check in verdict.checks), ""),
    ]
    if (faults := verdict.exposure.faults) and (fired := sum(rule.fired for rule in faults)):
        struck = sum(rule.fired > 0 for rule in faults)
        rows.insert(-1, ("faults fired", fired, f"by {struck} of {len(faults)} rules"))
    for name, value, note in rows:
        if _COUNTED_FROM.get(name) in verdict.not_observable:
            table.add_row(name, "-", Text("not observable", style="dim"))
        else:
            table.add_row(name, f"{value:,}", Text(note, style="dim"))
    console.print(table)
    console.print()
    for rule in verdict.rules:
        mark = Text("✓ ", "green") if rule.passed else Text("✗ ", "red")
        wanted = "" if rule.passed else f" (required: {rule.required})"
        console.print(mark + Text(f"{rule.name}: {rule.actual}{wanted}"))
        seen = Observation.DELIVERIES not in verdict.not_observable
        if rule.name == "exposure" and not rule.passed and seen:
            console.print(Text(_TOO_LITTLE_RACED, style="dim"))
    for check in verdict.checks:
        if check.status is CheckStatus.FOUND:
            console.print()
            console.print(Text(f"{check.kind} ({check.count:,})", style="bold red"))
            for line in check_text(check, shlex.quote(str(run_dir))):
                console.print(Text(f"  {line}".rstrip()), soft_wrap=True)
    for why, kinds in unanswered(verdict.checks).items():
        console.print(Text(f"- not observable: {', '.join(kinds)}. {why}", style="dim"))
    console.print()
    console.print(Text(verdict.verdict, style=_STYLES[verdict.verdict]), end="")
    console.print(Text("".join(f"  {reason}" for reason in verdict.reasons)))
    console.print(Text(f"report  {report}"), soft_wrap=True)
    console.print(Text(f"rejudge loadtest report {run_dir}"), soft_wrap=True)


_COMPARED = {
    Status.FINE: Text("✓ ", "green"),
    Status.WORSE: Text("✗ ", "red"),
    Status.NOT_ENOUGH: Text("? ", "yellow"),
}


def print_comparison(console: Console, comparison: Comparison) -> None:
    """One line a threshold, then the verdict on findings and timing together."""
    for text in comparison.warnings:
        _warn(text)
    for one in comparison.thresholds:
        wanted = "" if one.status is Status.FINE else f": {one.status}"
        line = f"{one.metric}{wanted}: {one.actual} (required: {one.required})"
        console.print(_COMPARED[one.status] + Text(line), soft_wrap=True)
    console.print(Text(comparison.verdict, style=_STYLES[comparison.verdict]), end="")
    console.print(Text("".join(f"  {reason}" for reason in comparison.reasons)), soft_wrap=True)
