"""A schedule as it was carried out: one lane a copy, time going down, one line a step.

Pure: data in, text out. The same rows are drawn in the terminal, as SVG and on the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

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
        " " * _NUMBER
        + "".join(f"copy {copy + 1}".ljust(_LANE) for copy in range(len(drawing.copies)))
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
