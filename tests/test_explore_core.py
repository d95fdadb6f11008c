"""Exploring, without AWS: the world, the searches and the schedules, on toy programs."""

from __future__ import annotations

import pytest

from analysis.findings import FindingKind
from loadtest.explore.memo import search
from loadtest.explore.model import Fault
from tests import toys

CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


@pytest.mark.parametrize(("copies", "interleavings"), [(2, 20), (3, 1_428), (4, 257_928)])
async def test_every_interleaving_is_counted(copies: int, interleavings: int) -> None:
    covered = await search(toys.world(toys.read_add_put, copies, symmetric=False))
    assert covered.exhausted
    assert covered.interleavings == interleavings


async def test_a_read_then_write_is_found_at_two_copies() -> None:
    covered = await search(toys.world(toys.read_then_write, 2))
    assert covered.representatives[0].suspicions == (FindingKind.OVERWRITE,)
