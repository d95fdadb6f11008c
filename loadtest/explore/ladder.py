"""From the smallest world up, and what may be said when nothing failed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.explore.execution import Executed
from loadtest.explore.memo import Covered
from loadtest.explore.model import Fault, Limits
from loadtest.explore.pct import Sampled


@dataclass(frozen=True, slots=True, order=True)
class Rung:
    """A world of so many copies and at most so many faults of these kinds."""

    copies: int
    faults: int  # of all kinds together
    kinds: tuple[Fault, ...] = tuple(Fault)

    def __str__(self) -> str:
        return f"{_many(self.copies, 'copy', 'copies')} with {_at_most(self.faults)}"

    def limits(self) -> Limits:
        return dict.fromkeys(self.kinds, self.faults)


def rungs(copies: int, faults: int, kinds: tuple[Fault, ...] = tuple(Fault)) -> Iterator[Rung]:
    """The ladder: (1, 0) (1, 1) (2, 0) (2, 1) (3, 0) ... up to so many copies, then the same
    copies with two faults, and with three. A rung with faults holds the one without."""
    for n in range(1, copies + 1):
        for f in range(min(faults, 1) + 1):
            yield Rung(n, f, kinds)
    for f in range(2, faults + 1):
        for n in range(1, copies + 1):
            yield Rung(n, f, kinds)


def guarantee(
    clean: Mapping[Rung, Covered | Executed],
    *,
    asked: Sequence[Rung],
    of: str = "one order",
) -> str:
    """What is known when nothing failed, and what is not, in one sentence.

    :param clean: rungs that were exhausted without a failure
    :param asked: all rungs that were to be, of the same kinds of faults
    :param of: what the copies are messages of
    """
    kinds = asked[0].kinds
    most: dict[int, int] = {}  # copies: faults
    for rung in clean:
        most[rung.copies] = max(rung.faults, most.get(rung.copies, 0))
    by_faults: dict[int, list[int]] = {}
    for copies, faults in sorted(most.items()):
        by_faults.setdefault(faults, []).append(copies)
    parts = []
    for faults, numbers in by_faults.items():
        noun = "copy" if numbers == [1] else "copies"
        told = f"{_listed(list(map(str, numbers)))} {noun} of {of}, {_at_most(faults)}"
        if faults:
            told += f" of {{{', '.join(kinds)}}}"
        parts.append(f"{told}: {_amount([clean[Rung(n, faults, kinds)] for n in numbers])}")
    known = "; ".join(parts) + " covered, none failed" if parts else "nothing is covered"
    open_rungs = [str(r) for r in asked if r.faults > most.get(r.copies, -1)]
    top = max((*asked, *clean), key=lambda rung: rung.copies).copies
    missing = [*open_rungs, f"more than {_many(top, 'copy', 'copies')}"]
    worst = max(r.faults for r in (*asked, *clean))
    missing.append(f"more than {_many(worst, 'fault', 'faults')}" if worst else "any fault")
    left_out = [fault for fault in Fault if fault not in kinds]
    if worst and left_out:
        missing.append(f"{_listed(list(left_out))}")
    return f"{known}; not covered: {', '.join(missing)}."


def _amount(found: Sequence[Covered | Executed]) -> str:
    searched = [one for one in found if isinstance(one, Covered)]
    executed = [one for one in found if isinstance(one, Executed)]
    told = []
    if searched:
        interleavings = sum(one.interleavings for one in searched)
        states = sum(one.states for one in searched)
        told.append(
            f"{_many(interleavings, 'interleaving', 'interleavings')} in "
            f"{_many(states, 'state', 'states')}"
        )
    if executed:
        executions = sum(one.executions for one in executed)
        told.append(
            f"all orders of calls that matter in {_many(executions, 'execution', 'executions')}"
        )
    return " and ".join(told)


def sampling(sampled: Sampled, *, varies: bool) -> str:
    """What may be said when no schedule of a sample failed.

    :param varies: the handler does not do the same each time, so that there are no odds.
    """
    odds = sampled.odds
    told = (
        f"{_many(sampled.executed.executions, 'schedule was', 'schedules were')} sampled then "
        f"(PCT, depth {odds.depth}, seed {sampled.seed}), none failed, and that is no proof"
    )
    if varies:
        return told
    chances = [_chance(odds.of_all(0))]
    chances += [
        f"{_chance(odds.of_all(faults))} if it needs {_many(faults, 'fault', 'faults')}"
        for faults in range(1, odds.faults + 1)
    ]
    return (
        f"{told}: a failure that {odds.depth} orderings of steps bring about was met with a "
        f"chance of at least {', of at least '.join(chances)}"
    )


def _chance(chance: float) -> str:
    """Rounded down."""
    if chance >= 0.01:
        return f"{math.floor(100 * chance)} %"
    return f"1 in {math.ceil(1 / chance):,}" if chance > 0 else "0"


def _at_most(faults: int) -> str:
    return f"at most {_many(faults, 'fault', 'faults')}" if faults else "no fault"


def _many(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
