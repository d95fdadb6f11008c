"""PCT: sampling with stated odds, for worlds that are too large to be covered. Pure.

Runs get random priorities, the highest goes on, and at ``depth - 1`` random steps the one that
would go on falls behind all others: Burckhardt, Kothari, Musuvathi, Nagarakatti, "A randomized
scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010. A failure that ``depth``
orderings of steps bring about is met by one execution with at least 1 / (n * k ** (depth - 1))
for n runs and k steps.

How many faults strike is drawn first, evenly from none to all that are allowed; then the steps
at which they strike; then which, of those that the step offers. Which copies come in one event
is drawn evenly when its run starts, and is no part of the odds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.explore.execution import Executed, Open
from loadtest.explore.memo import Judge, Representative
from loadtest.explore.model import Choice
from loadtest.explore.world import Signature


@dataclass(frozen=True, slots=True)
class Odds:
    """What sampling promises. The largest n and k seen hold for all executions counted."""

    runs: int  # n
    steps: int  # k
    depth: int
    faults: int  # allowed at most
    kinds: int  # of faults that may be chosen
    executions: int  # that were drawn with this k, all others do not count

    def of_one(self, faults: int) -> float:
        """At least so likely does one execution meet a failure of this depth that needs so many
        faults, each at a certain step."""
        order = 1.0 / (self.runs * math.pow(self.steps, self.depth - 1))
        if not self.faults:
            return order
        places = math.comb(self.steps, faults)
        return order / ((self.faults + 1) * places * math.pow(self.kinds, faults))

    def of_all(self, faults: int) -> float:
        """Likewise for all executions counted."""
        return -math.expm1(self.executions * math.log1p(-self.of_one(faults)))


@dataclass(frozen=True, slots=True)
class Sampled:
    executed: Executed  # never exhausted
    odds: Odds
    seed: int


async def sample(
    begin: Open,
    *,
    seed: int,
    depth: int,
    faults: int,
    kinds: int,
    out_of_time: Callable[[], bool],
    on_progress: Callable[[int, int], None] = lambda executions, steps: None,
    judge: Judge | None = None,
) -> Sampled:
    """Draw executions until the time is spent or the judge confirms a failure.

    The first execution has no fault and no change, and shows how many steps there are.
    """
    rng = random.Random(seed)
    found: dict[Signature, Representative] = {}
    failed: Representative | None = None
    executions = counted = total = runs = longest = 0
    while failed is None and not out_of_time():
        drawn = range(longest)
        falls = set(rng.sample(drawn, min(depth - 1, longest)))
        strikes = set(rng.sample(drawn, min(rng.randint(0, faults), longest)))
        priorities: dict[tuple[int, int], float] = {}
        schedule: list[Choice] = []
        execution = await begin()
        try:
            while enabled := await execution.enabled():
                position = len(schedule)
                actors = sorted({(c.copy, c.receive) for c in enabled})
                for actor in actors:
                    priorities.setdefault(actor, rng.random())
                if position in falls:
                    priorities[max(actors, key=priorities.__getitem__)] = -rng.random()
                actor = max(actors, key=priorities.__getitem__)
                mine = [c for c in enabled if (c.copy, c.receive) == actor]
                struck = [c for c in mine if c.fault is not None] if position in strikes else []
                plain = [c for c in mine if c.fault is None]
                choice = rng.choice(struck or plain)
                await execution.step(choice)
                schedule.append(choice)
            executions += 1
            total += len(schedule)
            signature = execution.signature()
            if signature not in found:
                found[signature] = representative = Representative(
                    signature, tuple(schedule), execution.suspicions()
                )
                if judge and representative.suspicions and await judge(representative):
                    failed = representative
        finally:
            await execution.close()
        counted += 1
        if len(schedule) > longest:
            longest, counted = len(schedule), 0
        runs = max(runs, len(priorities))
        on_progress(executions, len(schedule))
    executed = Executed(
        exhausted=False,
        executions=executions,
        blocked=0,
        diverged=0,
        first_diverged=None,
        steps=total,
        representatives=tuple(sorted(found.values(), key=lambda r: not r.suspicions)),
        failed=failed,
    )
    odds = Odds(max(runs, 1), max(longest, 1), depth, faults, max(kinds, 1), counted)
    return Sampled(executed, odds, seed)
