"""A schedule as it was carried out: one lane a copy, time going down, one line a step.

Pure: data in, text out. The same rows are drawn in the terminal, as SVG and on the page of an
exploration.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.findings import VerdictWord
from analysis.plots import PALETTE
from analysis.report import environment

_LANE = 8  # columns
_NUMBER = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One step of one copy."""

    number: int | None  # of the step, from 1; None: nobody chose it
    copy: int  # from 0
    sign: str  # as in :mod:`analysis.lanes`; empty for none
    symbol: str  # of the page's symbols: "mark-accepted", "ack-deleted", ...
    look: str  # its colour: "accepted", "read", "ack", ...
    text: str
    going: frozenset[int] = frozenset()  # copies that have a run under way when it happens
    fault: str | None = None  # that was chosen here
    races: bool = False  # one of the two whose order decides


@dataclass(frozen=True, slots=True)
class Drawing:
    copies: tuple[str, ...]  # what each is, in a few words
    rows: tuple[Row, ...]


LEGEND = "r read  + accepted  x rejected  ! failed  ? no reply  d deleted  b back  q dead  % fault"


def drawing_text(drawing: Drawing, width: int) -> list[str]:
    """The drawing as lines of at most ``width`` columns, in plain characters."""
    lines = [
        *(f"copy {copy}: {text}" for copy, text in enumerate(drawing.copies, 1)),
        "",
        " " * _NUMBER
        + "".join(f"copy {copy + 1}".ljust(_LANE) for copy in range(len(drawing.copies))).rstrip(),
    ]
    room = max(24, width - _NUMBER - _LANE * len(drawing.copies))
    for row in drawing.rows:
        for place, text in enumerate(_wrapped(row, room)):
            number = f"{row.number}" if row.number is not None and place == 0 else ""
            lanes = _lanes(row, len(drawing.copies), first=place == 0)
            lines.append(f"{number.rjust(_NUMBER - 1)} {lanes}{text}".rstrip())
    return lines


def _wrapped(row: Row, room: int) -> Sequence[str]:
    text = f"{row.text}  <- racing" if row.races else row.text
    return textwrap.wrap(text, room, subsequent_indent="  ", break_on_hyphens=False) or [""]


def _lanes(row: Row, copies: int, *, first: bool) -> str:
    cells = []
    for copy in range(copies):
        cell = "|" if copy in row.going else ""
        if copy == row.copy and first:
            cell = row.sign + ("%" if row.fault is not None and row.sign != "%" else "")
        cells.append(cell.ljust(_LANE))
    return "".join(cells)


# --- as SVG, and on a page --------------------------------------------------------------

_TOP = 28  # px, above the first step; all that follow likewise
_LEFT = 44
_LANE_PX = 72
_ROW_PX = 28
_LINE_PX = 17
_CHARACTER_PX = 7.85  # of the monospaced text, 13 px high
_LETTERS = {"+", "x", "!", "?", "r"}  # signs that stand within their symbol


@dataclass(frozen=True, slots=True)
class PlacedLane:
    name: str
    x: int


@dataclass(frozen=True, slots=True)
class PlacedLine:
    look: str
    x1: int
    x2: int
    y1: int
    y2: int


@dataclass(frozen=True, slots=True)
class PlacedStep:
    number: str
    x: int
    y: int
    symbol: str
    look: str
    letter: str
    races: bool
    fault: bool
    texts: tuple[str, ...]
    story: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A drawing in px."""

    width: int
    height: int
    text_x: int
    line_height: int
    lanes: tuple[PlacedLane, ...]
    lines: tuple[PlacedLine, ...]
    steps: tuple[PlacedStep, ...]
    story: str  # for those who do not see it


def _place(drawing: Drawing, width: int = 960) -> Placed:
    copies = len(drawing.copies)
    xs = [_LEFT + _LANE_PX // 2 + _LANE_PX * copy for copy in range(copies)]
    text_x = _LEFT + _LANE_PX * copies
    room = max(24, int((width - text_x) / _CHARACTER_PX))
    lines, steps, racing = [], [], []
    y = _TOP
    for row in drawing.rows:
        texts = tuple(_wrapped(row, room))
        height = _ROW_PX + _LINE_PX * (len(texts) - 1)
        middle = y + _ROW_PX // 2
        lines += [
            PlacedLine("lane-line", xs[copy], xs[copy], y, y + height) for copy in sorted(row.going)
        ]
        x = xs[row.copy]
        if row.races:
            racing.append((x, middle))
        number = "" if row.number is None else str(row.number)
        steps.append(
            PlacedStep(
                number,
                x,
                middle,
                row.symbol,
                row.look,
                row.sign if row.sign in _LETTERS else "",
                row.races,
                row.fault is not None and row.symbol != "fault",
                texts,
                f"copy {row.copy + 1}: {row.text}",
            )
        )
        y += height
    lines += [
        PlacedLine("race", x1, x2, y1, y2) for (x1, y1), (x2, y2) in itertools.pairwise(racing)
    ]
    return Placed(
        width,
        y + 8,
        text_x,
        _LINE_PX,
        tuple(PlacedLane(f"copy {copy}", x) for copy, x in enumerate(xs, 1)),
        tuple(lines),
        tuple(steps),
        ". ".join(f"{step.number} {step.story}" for step in steps),
    )


def schedule_svg(drawing: Drawing) -> str:
    """The drawing as a file of its own."""
    template = environment().get_template("schedule.svg")
    return template.render(placed=_place(drawing), palette=PALETTE).lstrip()


@dataclass(frozen=True, slots=True)
class RungRow:
    """One world that was explored."""

    name: str
    word: str  # "clean", "failed", "not finished"
    interleavings: int | None
    states: int | None
    executions: int | None  # instead of states
    sampled: int | None  # schedules
    carried_out: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Page:
    """What the page of an exploration says."""

    run_id: str
    handler: str
    verdict: VerdictWord
    reasons: tuple[str, ...]
    covered: str  # what was covered, in a sentence; empty: nothing
    rungs: tuple[RungRow, ...]
    settings: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    drawing: Drawing | None = None
    race: str | None = None
    passing: str | None = None
    replay: str | None = None
    findings: tuple[tuple[str, tuple[str, ...]], ...] = ()  # heading, lines of text


def explore_page(page: Page) -> str:
    """``report.html`` of an exploration: one file without outside references or scripts."""
    template = environment().get_template("explore.html")
    placed = None if page.drawing is None else _place(page.drawing)
    return template.render(page=page, placed=placed, palette=PALETTE).lstrip()
