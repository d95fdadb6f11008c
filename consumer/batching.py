"""How received messages become batches, each the event of one invocation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from consumer.faults import Strike
from consumer.sqs_queue import Received

_EVENT_BYTES = 6 * 1024 * 1024
"""Largest event that a function can be invoked with (Lambda developer guide, quotas)."""
_RECORD_BYTES = 1024  # attributes, handle and names of one record


@dataclass(frozen=True, slots=True)
class Pair:
    """Two receives of one message whose runs are to overlap, because a fault says so."""

    first: Received
    second: Received
    strike: Strike
    start: asyncio.Barrier  # passed when there is an environment for each


@dataclass(frozen=True, slots=True)
class Batch:
    messages: Sequence[Received]
    pair: Pair | None = None  # it holds one of these two


class Batcher:
    """Closes a batch when it is full, when its window has passed, or when one more message
    would make the event too large (Lambda developer guide, "Batching behavior").

    :param window_s: how long a batch may wait for more, from its first message; 0: every
        receive closes its own.
    :param close: is given each batch that is complete.
    """

    def __init__(self, batch_size: int, window_s: float, close: Callable[[Batch], None]) -> None:
        self._batch_size = batch_size
        self._window_s = window_s
        self._close = close
        self._open: list[Received] = []
        self._bytes = 0
        self._closing: asyncio.TimerHandle | None = None

    def add(self, units: Iterable[Sequence[Received]]) -> None:
        """Messages in their order; those of one unit stay together."""
        for unit in units:
            size = sum(len(json.dumps(one.message["Body"])) + _RECORD_BYTES for one in unit)
            if len(self._open) + len(unit) > self._batch_size or self._bytes + size > _EVENT_BYTES:
                self.flush()
            self._open += unit
            self._bytes += size
        if not self._window_s or len(self._open) >= self._batch_size:
            self.flush()
        elif self._open and self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(self._window_s, self.flush)

    def flush(self) -> None:
        """Close the batch that is open, if there is one."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if self._open:
            batch, self._open, self._bytes = self._open, [], 0
            self._close(Batch(batch))
