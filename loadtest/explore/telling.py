"""What an exploration shows while it is going, and its outcome."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status
from rich.text import Text

from analysis.findings import VerdictWord
from analysis.text import count
from loadtest.explore.ladder import Rung
from loadtest.explore.memo import Covered
from loadtest.explore.outcome import Exploration
from loadtest.explore.session import Explored

_PLAIN_EVERY_S = 5.0
_STYLES = {
    VerdictWord.PASS: "bold green",
    VerdictWord.FAIL: "bold red",
    VerdictWord.INCONCLUSIVE: "bold yellow",
}


class Telling:
    """Tells how it is going: a live line on a terminal, plain lines now and then elsewhere.

    :param console: None tells nothing but warnings.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._status: Status | None = None
        self._said_at_s = 0.0

    def phase(self, text: str) -> None:
        self.close()
        if self._console is not None:
            self._console.print(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        self.close()
        errors = Console(stderr=True, highlight=False)
        errors.print(Text("warning: ", "bold yellow") + Text(text), soft_wrap=True)

    def progress(
        self, rung: Rung, elapsed_s: float, left_s: float, searched: str, runs: int
    ) -> None:
        """:param searched: how far it has come."""
        if self._console is None:
            return
        line = f"{rung}: {searched}, {runs:,} handler runs, {max(0.0, left_s):.0f} s of the budget"
        if not self._console.is_terminal:
            if elapsed_s - self._said_at_s >= _PLAIN_EVERY_S:
                self._said_at_s = elapsed_s
                self._console.print(Text(f"{elapsed_s:5.1f} s  {line}"), soft_wrap=True)
            return
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        self._status.update(line)

    def ended(self, rung: Rung, explored: Explored) -> None:
        """One rung is done."""
        self.close()
        searched = explored.searched
        if self._console is None or searched is None:
            return
        if isinstance(searched, Covered):
            what = (
                f"{count(searched.interleavings, 'interleaving')} in "
                f"{count(searched.states, 'state')}"
            )
        else:
            what = count(searched.executions, "execution")
        if explored.sampled is not None:
            what += f", {count(explored.sampled.executed.executions, 'schedule')} sampled"
        word = "clean" if explored.is_clean else "FAILED" if explored.failure else "not finished"
        self._console.print(
            Text(f"{word:13}", "green" if explored.is_clean else "yellow")
            + Text(f"{rung}: {what}, {explored.seconds:.1f} s"),
            soft_wrap=True,
        )

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def print_outcome(console: Console, outcome: Exploration) -> None:
    """The drawing, the findings, the guarantee, the verdict and where things are."""
    console.print()
    for line in outcome.text(console.width):
        word = next((word for word in VerdictWord if line.split("  ")[0] == word), None)
        if word is None:
            console.print(Text(line), soft_wrap=True)
        else:
            console.print(Text(word, _STYLES[word]) + Text(line.removeprefix(word)), soft_wrap=True)
