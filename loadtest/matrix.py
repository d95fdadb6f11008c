"""What ``loadtest mutants`` shows while it is going, and the matrix at its end."""

from __future__ import annotations

from itertools import groupby

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from loadtest.mutants import Exploration, Matrix, Outcome, Trial
from loadtest.planted import BugKind


class MatrixProgress:
    """A line for each bug that is done; on a terminal also what is under way."""

    def __init__(self, console: Console, floods: int) -> None:
        self._console = console
        self._floods = floods
        self._done = 0
        self._running: list[str] = []
        self._status: Status | None = None
        if console.is_terminal:
            self._status = console.status("starting the embedded AWS")
            self._status.start()

    def started(self, name: str) -> None:
        self._running.append(name)
        self._show()

    def ended(self, outcome: Outcome) -> None:
        assert outcome.bug is not None
        self._running.remove(outcome.name)
        self._done += 1
        line = _mark(outcome) + Text(f" {self._done:2}/{self._floods}  {outcome.name}: ")
        line += Text(f"{_bug_text(outcome)}, twin {_twin_text(outcome)}, ")
        line += Text(f"{outcome.bug.seconds:.1f} s", "dim")
        self._console.print(line, soft_wrap=True)
        self._show()

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()

    def _show(self) -> None:
        if self._status is not None:
            self._status.update(f"running {' and '.join(self._running)}")


def print_matrix(console: Console, matrix: Matrix) -> None:
    """Bug x kinds of finding, the twins, what was not run, and where the misses are."""
    run = [outcome for outcome in matrix.outcomes if outcome.bug is not None]
    if run:
        console.print(_table(run))
        console.print(
            Text(
                "+ reported beside what was expected; first: messages delivered, of all, when the "
                "first finding was there",
                "dim",
            )
        )
    if any(outcome.faults for outcome in run):
        console.print(
            Text("by: the fault that shows it; the same flood without it stays clean", "dim")
        )
    explored = [outcome for outcome in run if outcome.explored is not None]
    if explored:
        console.print(_explored_table(explored))
        console.print(
            Text(
                "every interleaving of so many copies, with one such fault at most; twin: "
                "interleavings/states covered, all clean",
                "dim",
            )
        )
    needing = [outcome for outcome in matrix.outcomes if outcome.bug is None]
    if needing:
        console.print(Text("\nNot run, for they need what is not there:"))
        grid = Table.grid(padding=(0, 2))
        for outcome in needing:
            needs = Text(f"needs {', '.join(outcome.needs)}", overflow="fold")
            grid.add_row(f"  {outcome.name}", needs, "\n".join(outcome.expected))
        console.print(grid)
    console.print()
    for outcome in run:
        for trial in (outcome.bug, outcome.twin, outcome.without):
            if trial is not None and trial.run_dir is not None:
                console.print(Text(f"kept  {trial.handler}: {trial.run_dir}"), soft_wrap=True)
    summary = (
        f"{matrix.caught} of {len(run)} bugs caught, {len(matrix.blamed)} correct twins blamed"
    )
    if matrix.found_without:
        summary += f", {len(matrix.found_without)} shown without their fault too"
    if matrix.unclear:
        summary += f", no verdict on {len(matrix.unclear)}"
    style = "bold red" if matrix.exit_code else "bold green"
    console.print(Text(f"{summary}; seed {matrix.seed}, {matrix.seconds:.0f} s", style))


def _explored_table(outcomes: list[Outcome]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column("explored", no_wrap=True)
    table.add_column("copies, fault", no_wrap=True)
    table.add_column("found", overflow="fold", min_width=17)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("twin", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for outcome in outcomes:
        bug, twin = outcome.explored, outcome.explored_twin
        assert bug is not None
        assert twin is not None
        covered = f"{twin.interleavings:,}/{twin.states:,}"
        found = [kind for kind in outcome.expected if kind in bug.reported] or bug.reported
        table.add_row(
            outcome.name,
            ", ".join([_copies_text(bug), *bug.faults]),
            ", ".join(found) or Text("✗ nothing", "red"),
            f"{bug.seconds:.1f}",
            Text(covered) if twin.clean else Text(f"✗ {covered}", "red"),
            f"{twin.seconds:.1f}",
        )
    return table


def _copies_text(explored: Exploration) -> str:
    text = str(explored.copies)
    text += " with a conflict" if explored.conflict else " with poison" if explored.poison else ""
    return text if explored.batch == 1 else f"{text}, in one event"


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column("bug", no_wrap=True)
    table.add_column("findings", no_wrap=True)
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("twin")
    for kind, group in groupby(sorted(outcomes, key=_kind_order), key=lambda one: one.kind):
        table.add_row(Text(kind, "bold"))
        for outcome in group:
            assert outcome.bug is not None
            table.add_row(
                _mark(outcome) + Text(f" {outcome.name}"),
                _findings_text(outcome, outcome.bug),
                _first_text(outcome.bug),
                f"{outcome.bug.seconds:.0f}",
                _twin_text(outcome),
            )
    return table


def _kind_order(outcome: Outcome) -> int:
    return list(BugKind).index(BugKind(outcome.kind))


def _findings_text(outcome: Outcome, trial: Trial) -> Text:
    """The expected kinds first; one a line."""
    lines = [
        Text(f"{kind} {trial.reported[kind]}")
        if kind in trial.reported
        else Text(f"✗ no {kind}", "red")
        for kind in outcome.expected
    ]
    lines += [
        Text(f"+ {kind} {count}", "dim")
        for kind, count in trial.reported.items()
        if kind not in outcome.expected
    ]
    lines += [Text(f"by {fault}", "dim") for fault in outcome.faults]
    if outcome.found_without:
        lines.append(Text("and without it", "yellow"))
    return Text("\n").join(lines)


def _mark(outcome: Outcome) -> Text:
    bad = outcome.missed or outcome.blamed or outcome.unclear
    return Text("✗", "red") if bad else Text("✓", "green")


def _bug_text(outcome: Outcome) -> str:
    assert outcome.bug is not None
    said = ", ".join(f"{kind} {count}" for kind, count in outcome.bug.reported.items())
    if not outcome.missed:
        return said
    return f"MISSED, expected {', '.join(outcome.expected)}, reported {said or 'nothing'}"


def _twin_text(outcome: Outcome) -> str:
    assert outcome.twin is not None
    if outcome.blamed:
        explored = outcome.explored_twin.reported if outcome.explored_twin is not None else ()
        return f"BLAMED: {', '.join(dict.fromkeys([*outcome.twin.reported, *explored]))}"
    return "no verdict" if outcome.unclear else "clean"


def _first_text(trial: Trial) -> str:
    if trial.first_finding_after is None:
        return "-"
    return f"{trial.first_finding_after}/{trial.messages}"
