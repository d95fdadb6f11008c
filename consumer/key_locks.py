"""Reader-writer locks by key, for one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Table name and canonical text of the item's primary key."""


@dataclass(slots=True)
class _Lock:
    shared: int = 0  # holders
    exclusive: bool = False
    waiting: deque[tuple[bool, asyncio.Future[None]]] = field(default_factory=deque)

    def grant(self, exclusive: bool) -> bool:
        """Take the lock if its holders allow it."""
        if self.exclusive or (exclusive and self.shared):
            return False
        if exclusive:
            self.exclusive = True
        else:
            self.shared += 1
        return True

    def wake(self) -> None:
        """Give the lock to those who wait, first come first served."""
        while self.waiting:
            exclusive, turn = self.waiting[0]
            if not turn.cancelled():
                if not self.grant(exclusive):
                    return
                turn.set_result(None)
            self.waiting.popleft()


class KeyLocks:
    """Any number of shared holders of a key, or one exclusive holder.

    Turns are taken in the order of arrival, so neither side starves. Several keys are
    always taken in sorted order, so holders of overlapping sets cannot block each other
    for ever. A key nobody holds or waits for costs nothing.
    """

    def __init__(self) -> None:
        self._locks: dict[Key, _Lock] = {}

    def __len__(self) -> int:
        """Keys held or waited for now."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, keys: Iterable[Key], *, exclusive: bool) -> AsyncIterator[None]:
        """Hold all these keys for the length of the block."""
        held: list[Key] = []
        try:
            for key in sorted(set(keys)):
                await self._acquire(key, exclusive)
                held.append(key)
            yield
        finally:
            for key in reversed(held):
                self._release(key, exclusive)

    async def _acquire(self, key: Key, exclusive: bool) -> None:
        lock = self._locks.setdefault(key, _Lock())
        if not lock.waiting and lock.grant(exclusive):
            return
        turn = asyncio.get_running_loop().create_future()
        lock.waiting.append((exclusive, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                # Whoever stands behind may be able to go now.
                lock.wake()
                self._forget_idle(key, lock)
            else:
                self._release(key, exclusive)
            raise

    def _release(self, key: Key, exclusive: bool) -> None:
        lock = self._locks[key]
        if exclusive:
            lock.exclusive = False
        else:
            lock.shared -= 1
        lock.wake()
        self._forget_idle(key, lock)

    def _forget_idle(self, key: Key, lock: _Lock) -> None:
        idle = not (lock.exclusive or lock.shared or lock.waiting)
        # A cancelled waiter comes late: the lock may be forgotten already, and made anew.
        if idle and self._locks.get(key) is lock:
            del self._locks[key]
