"""Schedules: carried out again, told shortly, compared, written down and read. Pure.

The file is a public format, for people first::

    onceproof schedule, version 2
    handler: app.handler
    code: sha256:0b7c...
    tool: 0.5.0
    bodies: 1 1
    faults: 1
    kinds: crash-after-call=1 lost-reply=1
    max receive count: 3
    max calls: 40
    batch: 1
    world: {"orders": 1}

    copy 1: GetItem orders {"id": "o"}
    copy 2: GetItem orders {"id": "o"}
    copy 2 [crash-after-call]: PutItem orders {"id": "o"}
    copy 1: PutItem orders {"id": "o"}
    copy 1 ends
    copy 2, receive 2: GetItem orders {"id": "o"}
    copy 2, receive 2 ends

``bodies`` has a number for each copy; copies with equal numbers have equal messages. ``batch``
is how many messages one event may hold. A run whose event holds several is named by all of
them, in their order: ``copy 2 + copy 1, receive 2: GetItem ...``. ``world`` is text that whoever
builds the messages and the store wrote for itself. Empty lines and lines that begin with ``#``
say nothing. Version 1 has no ``batch``, and was for events of one message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis.errors import UsageError
from loadtest.explore.model import Choice, Fault, Received, Schedule
from loadtest.explore.world import Bounds, State, Step, World

VERSION = 2
_READ_VERSIONS = ("1", "2")
_FIRST_LINE = "onceproof schedule, version "

_KEPT_PLACES = 500
"""Of the places that long schedules may pass, those with the fewest switches so far: runs that
have nothing in common can be mixed in more ways than there is time for."""


async def follow(world: World, schedule: Iterable[Choice]) -> tuple[list[Step], State]:
    """Carry a schedule out.

    :raises UsageError: a step is not possible, or the run now makes another call
    """
    state, steps = world.initial(), []
    for number, choice in enumerate(schedule, start=1):
        possible = await world.choices(state)
        if choice not in possible:
            raise UsageError(_misfit(number, choice, possible))
        state, step = await world.step(state, choice)
        steps.append(step)
    if possible := await world.choices(state):
        raise UsageError(
            f"the schedule ends after {len(steps)} steps, but more must come: "
            f"{write_step(possible[0])}\nThe handler does more than when the schedule was made; "
            "explore again."
        )
    return steps, state


async def retold(world: World, schedule: Iterable[Choice]) -> Schedule:
    """The same choices with the calls as this world knows them: values in them may differ.

    :raises UsageError: a step is not possible
    """
    state, told = world.initial(), []
    for number, choice in enumerate(schedule, start=1):
        possible = await world.choices(state)
        same = [
            c
            for c in possible
            if (_who(c), c.place, c.fault) == (_who(choice), choice.place, choice.fault)
        ]
        if not same:
            raise UsageError(_misfit(number, choice, possible))
        state = await world.after(state, same[0])
        told.append(same[0])
    return tuple(told)


def _misfit(number: int, choice: Choice, possible: Sequence[Choice]) -> str:
    told = "\n".join(f"  {write_step(c)}" for c in possible) or "  nothing: all copies are settled"
    return (
        f"step {number} of the schedule does not fit this handler:\n  {write_step(choice)}\n"
        f"Possible are:\n{told}\n"
        "The handler, its configuration or the tool has changed since the schedule was made; "
        "explore again."
    )


# --- telling it shortly ---------------------------------------------------------------


def fewest_switches(steps: Sequence[Step]) -> Schedule:
    """The same steps with commuting ones reordered so that the schedule goes from copy to copy
    as rarely as can be. It reaches the same state."""
    blocks = _blocks(steps)
    needs = [
        sum(1 << i for i in range(j) if any(a.depends_on(b) for a in blocks[i] for b in blocks[j]))
        for j in range(len(blocks))
    ]
    runs: dict[tuple[int, int], list[int]] = {}
    for number, block in enumerate(blocks):
        runs.setdefault(block[0].actor, []).append(number)
    # A place is which blocks are done (as bits) and which copy did the last. Of all ways to a
    # place one with the fewest switches is kept: the block, and the way before it.
    layer: dict[tuple[int, int], _Way] = {(0, -1): _Way(0, -1, None)}
    for _ in blocks:
        following: dict[tuple[int, int], _Way] = {}
        for (done, last), way in layer.items():
            for (copy, _), run in runs.items():
                number = next((n for n in run if not done >> n & 1), -1)
                if number < 0 or needs[number] & ~done:
                    continue
                place, count = (done | 1 << number, copy), way.switches + (copy != last)
                if place not in following or count < following[place].switches:
                    following[place] = _Way(count, number, way)
        ranked = sorted(following.items(), key=lambda entry: entry[1].switches)
        layer = dict(ranked[:_KEPT_PLACES])
    order: list[int] = []
    best: _Way | None = min(layer.values(), key=lambda way: way.switches)
    while best is not None and best.before is not None:
        order.append(best.number)
        best = best.before
    return tuple(step.choice for number in reversed(order) for step in blocks[number])


class _Way(NamedTuple):
    switches: int
    number: int  # of the block it ends with
    before: _Way | None


def _blocks(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps with what must follow them at once: a run's end is taken as soon as it is reached."""
    blocks: list[list[Step]] = []
    for step in steps:
        if blocks and step.choice.call is None and not step.first:
            blocks[-1].append(step)
        else:
            blocks.append([step])
    return blocks


def switches(schedule: Schedule) -> int:
    """How often another copy goes on."""
    return sum(a.copy != b.copy for a, b in itertools.pairwise(schedule))


async def simplest(world: World, schedule: Schedule) -> Schedule:
    """A schedule with the same signature, and so the same verdict, with as few switches as can
    be found by going another way at one step after the other."""
    steps, end = await follow(world, schedule)
    best, signature = fewest_switches(steps), world.signature(end)
    while True:
        async for _, other, state in _other_ways(world, best):
            if world.signature(state) == signature:
                steps, _ = await follow(world, other)
                shorter = fewest_switches(steps)
                if switches(shorter) < switches(best):
                    best = shorter
                    break
        else:
            return best


async def _other_ways(
    world: World, schedule: Schedule
) -> AsyncIterator[tuple[int, Schedule, State]]:
    """Schedules that go another way at one step and then on as before where they can: where
    they differ, and where they end. The latest come first; none adds a fault."""
    states = [world.initial()]
    for choice in schedule:
        states.append(await world.after(states[-1], choice))
    for position in range(len(schedule) - 1, -1, -1):
        taken = schedule[position]
        others = [c for c in await world.choices(states[position]) if c != taken]
        # The same run without its fault first, then other runs, then other faults.
        others.sort(key=lambda c: (c.fault is not None, _who(c) != _who(taken)))
        for other in others:
            if other.fault is not None and taken.fault is None:
                continue
            tail, state = await _go_on(world, states[position], other, schedule[position:])
            yield position, (*schedule[:position], *tail), state


def _who(choice: Choice) -> tuple[Received, ...]:
    return choice.messages


async def _go_on(
    world: World, state: State, choice: Choice, planned: Schedule
) -> tuple[list[Choice], State]:
    """Take a choice, then what was planned as far as it is still possible, in its order."""
    rest, tail = list(planned), []
    while True:
        tail.append(choice)
        mine = [c for c in rest if _who(c) == _who(choice)]
        same = choice if choice in mine else next(iter(mine), None)
        if same is not None:
            rest.remove(same)
        state = await world.after(state, choice)
        possible = await world.choices(state)
        if not possible:
            return tail, state
        choice = next((c for c in rest if c in possible), possible[0])


# --- why it fails ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passing:
    """The schedule that goes another way as late as possible, and passes."""

    schedule: Schedule
    differs_at: int  # position of the first step that differs, from 0
    race: tuple[int, int] | None
    """Positions, in the failing schedule, of two steps of different runs that meet and come in
    the other order here; None: there are none, as when the difference is a fault."""


async def nearest_passing(
    world: World, failing: Schedule, passes: Callable[[State], bool]
) -> Passing | None:
    """Look for the schedule that shares the longest beginning with a failing one and passes.

    It takes one step that the failing schedule does not, and goes on as that does where it can.
    None: no such schedule passes.
    """
    async for position, other, state in _other_ways(world, failing):
        if passes(state):
            steps, _ = await follow(world, failing)
            swapped, _ = await follow(world, other)
            return Passing(other, position, _race(steps, swapped))
    return None


def _race(failing: Sequence[Step], passing: Sequence[Step]) -> tuple[int, int] | None:
    """The last two steps of different runs that meet and come in the other order."""
    where = {key: n for n, key in enumerate(_named(passing))}
    names = _named(failing)
    for second in range(len(failing) - 1, 0, -1):
        for first in range(second - 1, -1, -1):
            a, b = failing[first], failing[second]
            if a.actor == b.actor or not a.meets(b):
                continue
            if where.get(names[first], -1) > where.get(names[second], len(passing)):
                return first, second
    return None


def _named(steps: Sequence[Step]) -> list[tuple[int, int, int, str | None]]:
    """Copy, receive, position in its run, and call of each step."""
    counts: dict[tuple[int, int], int] = {}
    names = []
    for step in steps:
        counts[step.actor] = counts.get(step.actor, 0) + 1
        names.append((*step.actor, counts[step.actor], step.choice.call))
    return names


# --- the file -------------------------------------------------------------------------


_MESSAGE = r"copy ([1-9]\d*)(?:, receive ([1-9]\d*))?"
_STEP = re.compile(
    rf"(?P<event>{_MESSAGE}(?: \+ {_MESSAGE})*)(?P<ends> ends)?"
    r"( \[(?P<fault>[a-z-]+)\])?(: ?(?P<call>.*))?"
)
_NAMES = (
    "handler",
    "code",
    "tool",
    "bodies",
    "faults",
    "kinds",
    "max receive count",
    "max calls",
    "batch",
    "world",
)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a schedule was made for."""

    handler: str  # "app.handler"
    code: str  # digest of the handler's code
    tool: str  # version of the tool
    bounds: Bounds
    world: str  # one line for whoever builds messages and store


def write(origin: Origin, schedule: Schedule) -> str:
    """A schedule as the text of its file."""
    bounds = origin.bounds
    kinds = " ".join(f"{f}={bounds.limits[f]}" for f in Fault if bounds.limits.get(f, 0) > 0)
    head = (
        origin.handler,
        origin.code,
        origin.tool,
        " ".join(str(body + 1) for body in bounds.bodies),
        str(bounds.faults),
        kinds,
        str(bounds.max_receive_count),
        str(bounds.max_calls),
        str(bounds.batch),
        origin.world,
    )
    lines = [
        f"{_FIRST_LINE}{VERSION}",
        *(f"{name}: {_escape(value)}" for name, value in zip(_NAMES, head, strict=True)),
        "",
        *map(write_step, schedule),
    ]
    return "\n".join(lines) + "\n"


def write_step(choice: Choice) -> str:
    """A step as one line."""
    who = " + ".join(
        f"copy {copy + 1}" + (f", receive {receive}" if receive > 1 else "")
        for copy, receive in choice.messages
    )
    if choice.call is None:
        who += " ends"
    if choice.fault is not None:
        who += f" [{choice.fault}]"
    return who if choice.call is None else f"{who}: {_escape(choice.call)}"


def read(text: str, name: str) -> tuple[Origin, Schedule]:
    """What :func:`write` wrote.

    :param name: of the file, for messages
    :raises UsageError: it is not a schedule, or of another version, or damaged
    """
    lines = text.removeprefix("\ufeff").split("\n")
    first = lines[0].rstrip("\r")
    if not first.startswith(_FIRST_LINE):
        raise UsageError(
            f"{name} is not a schedule: its first line is not {_FIRST_LINE + str(VERSION)!r}. "
            "Give a file that explore has saved."
        )
    version = first.removeprefix(_FIRST_LINE)
    if version not in _READ_VERSIONS:
        raise UsageError(
            f"{name} is a schedule of version {version}, and this tool reads version "
            f"{' and '.join(_READ_VERSIONS)}. Use the version of the tool that saved it, or "
            "explore again."
        )
    names = [one for one in _NAMES if one != "batch" or version != "1"]
    head: dict[str, str] = {}
    steps: list[Choice] = []
    for number, raw in enumerate(lines[1:], start=2):
        line = raw.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        if len(head) < len(names):
            key, colon, value = line.partition(":")
            if not colon or key != names[len(head)]:
                raise UsageError(
                    f"{name}, line {number}: {line!r} stands where "
                    f"'{names[len(head)]}: ...' is expected. Was the file changed by hand?"
                )
            head[key] = value.removeprefix(" ")
        else:
            steps.append(_read_step(line, f"{name}, line {number}"))
    if len(head) < len(names):
        raise UsageError(
            f"{name} ends before '{names[len(head)]}: ...'. It is incomplete: explore again."
        )
    bounds = Bounds(
        bodies=tuple(_number(n, "bodies", name, 1) - 1 for n in head["bodies"].split()),
        faults=_number(head["faults"], "faults", name, 0),
        limits=_read_kinds(head["kinds"], name),
        max_receive_count=_number(head["max receive count"], "max receive count", name, 1),
        max_calls=_number(head["max calls"], "max calls", name, 1),
        batch=_number(head.get("batch", "1"), "batch", name, 1),
    )
    for number, step in enumerate(steps, start=1):
        last = max(copy for copy, _ in step.messages)
        if last >= len(bounds.bodies):
            raise UsageError(
                f"{name}: step {number} is of copy {last + 1}, and 'bodies' has "
                f"{len(bounds.bodies)}. Was the file changed by hand?"
            )
        if len(step.messages) > bounds.batch:
            raise UsageError(
                f"{name}: step {number} is of {len(step.messages)} copies, and 'batch' is "
                f"{bounds.batch}. Was the file changed by hand?"
            )
    origin = Origin(
        handler=_unescape(head["handler"]),
        code=_unescape(head["code"]),
        tool=_unescape(head["tool"]),
        bounds=bounds,
        world=_unescape(head["world"]),
    )
    return origin, tuple(steps)


def _read_step(line: str, where: str) -> Choice:
    match = _STEP.fullmatch(line)
    if match is None or (match["ends"] is None) == (match["call"] is None):
        raise UsageError(
            f"{where}: {line!r} is not a step. A step reads 'copy 1: CALL', 'copy 1 ends', "
            "'copy 1 + copy 2: CALL', or 'copy 2, receive 2 [crash-after-call]: CALL'."
        )
    fault = None
    if match["fault"] is not None:
        fault = _read_fault(match["fault"], where)
    call = None if match["call"] is None else _unescape(match["call"])
    first, *others = (
        (int(copy) - 1, int(receive or 1)) for copy, receive in re.findall(_MESSAGE, match["event"])
    )
    return Choice(first[0], fault, first[1], call, tuple(others))


def _read_kinds(text: str, name: str) -> dict[Fault, int]:
    limits = {}
    for entry in text.split():
        kind, _, limit = entry.partition("=")
        limits[_read_fault(kind, f"{name}, 'kinds'")] = _number(limit, "kinds", name, 1)
    return limits


def _read_fault(text: str, where: str) -> Fault:
    try:
        return Fault(text)
    except ValueError:
        raise UsageError(
            f"{where}: there is no fault {text!r}. There are: {', '.join(Fault)}."
        ) from None


def _number(text: str, what: str, name: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise UsageError(
            f"{name}: {what!r} has {text!r} where a whole number of at least {least} is expected."
        )
    return int(text)


def _escape(text: str) -> str:
    """On one line, and as it was after :func:`_unescape`."""
    return "".join(
        c if c.isprintable() and c != "\\" else "\\\\" if c == "\\" else f"\\u{{{ord(c):x}}}"
        for c in text
    )


def _unescape(text: str) -> str:
    return re.sub(
        r"\\(?:\\|u\{([0-9a-f]{1,6})\})",
        lambda found: "\\" if found[1] is None else chr(int(found[1], 16)),
        text,
    )
