"""One execution of a bounded world, step by step: what searches without memory are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from analysis.findings import FindingKind
from loadtest.explore.memo import Representative
from loadtest.explore.model import Choice
from loadtest.explore.world import Signature, Step, World


class Execution(Protocol):
    async def enabled(self) -> Sequence[Choice]:
        """What may come next; empty at the end. The first one of a run has no fault."""
        ...

    async def step(self, choice: Choice) -> Step:
        """Carry out one of them."""
        ...

    def signature(self) -> Signature:
        """At the end: what the judge may look at."""
        ...

    def suspicions(self) -> tuple[FindingKind, ...]:
        """At the end: what the judge will probably find."""
        ...

    async def close(self) -> None:
        """Give back what it holds. Called once, at the end or before."""
        ...


Open = Callable[[], Awaitable[Execution]]
"""Begins an execution."""


class WorldExecution:
    """A walk through the states of a world.

    With a world of its own whose oracles are one live execution, it remembers nothing of
    others, so a handler may do something else each time.
    """

    def __init__(self, world: World, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._world = world
        self._close = close
        self.state = world.initial()

    async def enabled(self) -> Sequence[Choice]:
        return await self._world.choices(self.state)

    async def step(self, choice: Choice) -> Step:
        self.state, step = await self._world.step(self.state, choice)
        return step

    def signature(self) -> Signature:
        return self._world.signature(self.state)

    def suspicions(self) -> tuple[FindingKind, ...]:
        return self._world.suspicions(self.state)

    async def close(self) -> None:
        if self._close is not None:
            await self._close()


@dataclass(frozen=True, slots=True)
class Executed:
    """What a search by executions covered."""

    exhausted: bool  # every order that matters was executed
    executions: int  # complete ones
    blocked: int  # given up, since an equivalent one was executed before
    diverged: int  # did not come back to where they had been: the handler chose otherwise
    first_diverged: str | None  # where, and what it did
    steps: int
    representatives: tuple[Representative, ...]  # suspicious ones first, then as found
    failed: Representative | None = None  # what the judge confirmed
