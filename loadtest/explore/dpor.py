"""Source-DPOR with sleep sets, by executing again and again. Pure.

For handlers that do something else each time, where states cannot be remembered. Of all
orders that differ only in steps that commute, one is executed: Abdulla, Aronis, Jonsson,
Sagonas, "Optimal dynamic partial order reduction", POPL 2014, algorithm 1.

Four things are added to it. A run that is chosen to go on is tried with each of the calls that it
has under way, and with each of its faults. Where some of its calls, and not all, lead to nothing
new, everything else is tried as well. So it is where a run began before a later epoch did, or began
that epoch: a copy that waits may be received in an earlier or a later epoch instead, which the
algorithm, made for threads without time, does not see as a race. And so it is where a run began of
which there could have been another, with more of the copies that waited or fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loadtest.explore.execution import Executed, Execution, Open
from loadtest.explore.memo import Judge, Representative
from loadtest.explore.model import Choice, Fault, Received, named
from loadtest.explore.world import Signature, Step

_Actor = tuple[int, int]  # copy, receive
_Key = tuple[tuple[Received, ...], int, Fault | None]
"""A choice without the text of its call, which may vary."""


def _key(choice: Choice) -> _Key:
    return choice.messages, choice.place, choice.fault


def _actor(choice: Choice) -> _Actor:
    return choice.copy, choice.receive


@dataclass(slots=True)
class _Diverged:
    """A path that could not be taken again."""

    position: int  # in the path, from 0
    choice: Choice  # that was to come
    instead: Choice | None  # None: that run cannot go on, or not with this fault


Alike = Callable[[Choice, Choice], bool]
"""Whether a run that is taken along its path again makes the call that it made before, as far
as they can be compared."""


@dataclass(slots=True)
class _Node:
    """A place on the current path: what may come next there, and what was tried."""

    enabled: list[Choice]
    asleep: dict[_Key, Step]  # choices that lead to nothing new here
    chosen: Choice
    step: Step = field(init=False)
    before: int = 0  # bit k: step k happens before this one
    wanted: set[_Actor] = field(default_factory=set)
    divided: set[_Actor] = field(init=False)
    """Runs with several calls under way, of which some lead to nothing new here: they may do so
    after steps of others that would not be tried first on account of the rest."""

    def __post_init__(self) -> None:
        several = {_actor(choice) for choice in self.enabled if choice.place}
        asleep = {_actor(choice) for choice in self.enabled if _key(choice) in self.asleep}
        self.divided = several & asleep
        self.want(_actor(self.chosen))

    def take(self, step: Step) -> None:
        """What the chosen one came to."""
        self.step = step
        if step.first and any(choice.others for choice in self.enabled):
            self.want_all()

    def want(self, actor: _Actor) -> None:
        self.wanted.add(actor)
        if actor in self.divided:
            self.want_all()

    def want_all(self) -> None:
        self.wanted |= {_actor(choice) for choice in self.enabled}

    def untried(self) -> Iterator[Choice]:
        for choice in self.enabled:
            if _actor(choice) in self.wanted and _key(choice) not in self.asleep:
                yield choice


async def search(
    begin: Open,
    *,
    out_of_time: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] = lambda executions, waiting: None,
    judge: Judge | None = None,
    alike: Alike = lambda before, now: True,
) -> Executed:
    """Execute one order of each class of orders that differ only in steps that commute.

    :param out_of_time: asked before every execution; True ends the search early
    :param on_progress: told after each execution how many there were and how many wait; those
        will bring forth more
    :param judge: asked about suspicious executions, once a signature; True ends the search
    """
    path: list[_Node] = []
    found: dict[Signature, Representative] = {}
    executions = blocked = diverged = steps = 0
    failed: Representative | None = None
    first_diverged: str | None = None
    more = True
    while more and failed is None and not out_of_time():
        execution = await begin()
        try:
            complete = await _execute(execution, path, alike)
            steps += len(path)
            if isinstance(complete, _Diverged):
                diverged += 1
                first_diverged = first_diverged or _told(complete)
            elif not complete:
                blocked += 1
            else:
                executions += 1
                signature = execution.signature()
                if signature not in found:
                    found[signature] = representative = Representative(
                        signature, tuple(n.chosen for n in path), execution.suspicions()
                    )
                    if judge and representative.suspicions and await judge(representative):
                        failed = representative
        finally:
            await execution.close()
        more = _turn_back(path)
        on_progress(executions, sum(len(list(node.untried())) for node in path) + more)
    return Executed(
        exhausted=not more and failed is None and not diverged,
        executions=executions,
        blocked=blocked,
        diverged=diverged,
        first_diverged=first_diverged,
        steps=steps,
        representatives=tuple(sorted(found.values(), key=lambda r: not r.suspicions)),
        failed=failed,
    )


async def _execute(execution: Execution, path: list[_Node], alike: Alike) -> bool | _Diverged:
    """Take the path again, then go on to an end.

    :returns: False: given up, as all that may come next leads to nothing new; where it diverged:
        the path could not be taken again, and was cut there
    """
    for position, node in enumerate(path):
        again = [c for c in await execution.enabled() if _key(c) == _key(node.chosen)]
        if not again or not alike(node.chosen, again[0]):
            del path[position:]
            return _Diverged(position, node.chosen, again[0] if again else None)
        node.chosen = again[0]
        node.take(await execution.step(node.chosen))
        node.before = _happens_before(path, position)
    if path:
        _find_races(path)
    while enabled := list(await execution.enabled()):
        asleep: dict[_Key, Step] = {}
        if path:
            last = path[-1]
            asleep = {k: s for k, s in last.asleep.items() if not s.depends_on(last.step)}
        awake = [c for c in enabled if _key(c) not in asleep]
        if not awake:
            return False
        chosen = awake[0]
        node = _Node(enabled, asleep, chosen)
        node.take(await execution.step(chosen))
        path.append(node)
        node.before = _happens_before(path, len(path) - 1)
        _find_races(path)
    return True


def _told(diverged: _Diverged) -> str:
    choice, instead = diverged.choice, diverged.instead
    return (
        f"step {diverged.position + 1}, {named(choice.messages)}: expected "
        f"{choice.call or 'its answer'}, got "
        f"{'something else' if instead is None else instead.call or 'its answer'}"
    )


def _turn_back(path: list[_Node]) -> bool:
    """Go back to the last place where something is left to try, and choose it."""
    while path:
        node = path[-1]
        node.asleep[_key(node.chosen)] = node.step
        choice = next(node.untried(), None)
        if choice is not None:
            node.chosen = choice
            return True
        path.pop()
    return False


def _happens_before(path: list[_Node], position: int) -> int:
    step, before = path[position].step, 0
    for k in range(position - 1, -1, -1):
        if not before >> k & 1 and path[k].step.depends_on(step):
            before |= path[k].before | 1 << k
    return before


def _find_races(path: list[_Node]) -> None:
    """See to it that the last step is also tried before each step that it races with."""
    last = len(path) - 1
    step, between = path[last].step, 0
    for k in range(last - 1, -1, -1):
        earlier = path[k].step
        if not between >> k & 1 and earlier.depends_on(step):
            between |= path[k].before | 1 << k
            if earlier.actor != step.actor:
                _want(path, k, last)
    if step.advances:
        for node in path:
            if node.step.first:
                node.want_all()


def _want(path: list[_Node], position: int, last: int) -> None:
    """Want, at a position, one run that begins an order in which the last step comes before
    the step that was taken there."""
    node = path[position]
    rest = [k for k in range(position + 1, last) if not path[k].before >> position & 1]
    firsts: set[_Actor] = set()
    taken = 0
    for k in rest:
        if not path[k].before & taken:
            firsts.add(path[k].step.actor)
        taken |= 1 << k
    if not path[last].before & taken:
        firsts.add(path[last].step.actor)
    if firsts & node.wanted:
        return
    possible = firsts & {_actor(c) for c in node.enabled}
    if possible:  # else the one is what made the other possible
        actor = path[last].step.actor
        node.want(actor if actor in possible else min(possible))
