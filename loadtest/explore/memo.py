"""The memoised search: every state of a bounded world once, in memory. Pure.

States are taken breadth first in a fixed order, so the path kept to each is a shortest one.
How many complete interleavings they stand for is counted over the graph of states, exactly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from analysis.findings import FindingKind
from loadtest.explore.model import Choice, Schedule
from loadtest.explore.world import Signature, State, World

_REPORT_EVERY = 20  # states


@dataclass(frozen=True, slots=True)
class Representative:
    """A path to a final state, for all that end with the same signature."""

    signature: Signature
    schedule: Schedule
    suspicions: tuple[FindingKind, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """What a search covered."""

    exhausted: bool  # False: the time was spent, or a failure was confirmed, before the end
    states: int
    transitions: int
    depth: int  # steps of the longest shortest path
    interleavings: int  # complete ones among the states covered, exact
    final_states: int
    representatives: tuple[Representative, ...]  # suspicious ones first, then shortest first
    failed: Representative | None = None  # what the judge confirmed


Judge = Callable[[Representative], Awaitable[bool]]
"""Whether a suspicious path really fails. Asked once a signature, as soon as it is found."""


async def search(
    world: World,
    *,
    out_of_time: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int, int | None], None] = lambda states, waiting, left: None,
    judge: Judge | None = None,
) -> Covered:
    """Cover every state that the world can reach.

    :param out_of_time: asked after every state; True ends the search early
    :param on_progress: told now and then how many states were found, how many of them wait, and
        about how many are left with those not found yet; None where that cannot be told
    :param judge: asked about suspicious paths; True ends the search with that failure
    :raises NondeterministicError: see :class:`~loadtest.explore.model.Handler`
    """
    initial = world.initial()
    numbers: dict[State, int] = {initial: 0}
    states = [initial]
    came_by: list[tuple[int, Choice] | None] = [None]
    depths = [0]
    layers = [1]  # states by depth
    followers: list[list[int]] = []
    finals: list[int] = []
    found: dict[Signature, Representative] = {}
    failed: Representative | None = None

    def path(number: int) -> Schedule:
        steps: list[Choice] = []
        while (came := came_by[number]) is not None:
            number, choice = came
            steps.append(choice)
        return tuple(reversed(steps))

    current = 0
    while current < len(states) and failed is None and not out_of_time():
        state = states[current]
        follows: list[int] = []
        followers.append(follows)
        choices = await world.choices(state)
        for choice in choices:
            then = await world.after(state, choice)
            number = numbers.setdefault(then, len(states))
            if number == len(states):
                states.append(then)
                came_by.append((current, choice))
                depths.append(depths[current] + 1)
                if len(layers) == depths[-1]:
                    layers.append(0)
                layers[depths[-1]] += 1
            follows.append(number)
        if not choices:
            finals.append(current)
            signature = world.signature(state)
            if signature not in found:
                representative = Representative(signature, path(current), world.suspicions(state))
                found[signature] = representative
                if judge and representative.suspicions and await judge(representative):
                    failed = representative
        current += 1
        if current % _REPORT_EVERY == 0:
            depth = depths[min(current, len(states) - 1)]
            deeper = about_deeper(layers[: depth + 1])
            found_deeper = sum(layers[depth + 1 :])
            waiting = len(states) - current
            left = None if deeper is None else waiting + max(0, deeper - found_deeper)
            on_progress(len(states), waiting, left)
    on_progress(len(states), len(states) - current, None)
    followers += [[] for _ in range(len(states) - current)]
    return Covered(
        exhausted=current == len(states) and failed is None,
        states=len(states),
        transitions=sum(map(len, followers)),
        depth=max(depths),
        interleavings=count_paths(followers, finals),
        final_states=len(finals),
        representatives=tuple(sorted(found.values(), key=lambda r: not r.suspicions)),
        failed=failed,
    )


def about_deeper(layers: Sequence[int]) -> int | None:
    """About how many states there are below the layers that are known.

    Layers grow to a widest one and shrink again, faster and faster, much as binomial
    coefficients do. Where two layers in a row have shrunk, the second one more, that is
    drawn on; None elsewhere, since it would mislead.
    """
    if len(layers) < 4:
        return None
    before, now = layers[-2] / layers[-3], layers[-1] / layers[-2]
    if not now < before < 1:
        return None
    size, deeper = float(layers[-1]), 0.0
    ratio = now
    while size >= 1:
        ratio *= now / before
        size *= ratio
        deeper += size
    return round(deeper)


def count_paths(followers: list[list[int]], ends: list[int]) -> int:
    """How many paths lead from node 0 to one of the ends. An edge that is listed twice is two.

    :raises ValueError: the graph has a cycle, so that there is no such number
    """
    open_edges = [0] * len(followers)
    for follows in followers:
        for number in follows:
            open_edges[number] += 1
    paths = [0] * len(followers)
    paths[0] = 1
    ready = [0] if not open_edges[0] else []
    done = 0
    while ready:
        current = ready.pop()
        done += 1
        for number in followers[current]:
            paths[number] += paths[current]
            open_edges[number] -= 1
            if not open_edges[number]:
                ready.append(number)
    if done < len(followers):
        raise ValueError("the states form a cycle: a run, a copy or the faults are not bounded")
    return sum(paths[end] for end in ends)
