"""The one clock of a run. It is passed in, so tests can decide what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Nanoseconds since the epoch; never less than what an earlier call returned."""
        ...


class HostClock:
    """This host's time, read once at the start and carried on by its monotonic clock.

    Setting the host's clock during a run therefore neither reorders the evidence nor
    leaves a gap in it.
    """

    def __init__(self) -> None:
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._epoch_ns + time.monotonic_ns()
