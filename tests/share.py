"""How much the random tests draw: ``make test`` a share, ``make soak`` several times that."""

from __future__ import annotations

import os

SHARE = int(os.environ.get("ONCEPROOF_TEST_SHARE", "1"))


def seeds(count: int, step: int) -> list[range]:
    """``count`` seeds for each share, in pieces that are tests of their own."""
    return [range(start, start + step) for start in range(0, count * SHARE, step)]
