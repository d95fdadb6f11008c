"""What is to be explored, and where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.errors import UsageError
from consumer.clock import Clock
from loadtest import __version__
from loadtest.config import Settings
from loadtest.explore import ladder
from loadtest.explore.ladder import Rung
from loadtest.explore.model import Fault

MOST_COPIES = 4
MOST_FAULTS = 3
DEFAULT_BUDGET_S = 60.0
SEARCH_SHARE, SAMPLING_SHARE = 0.5, 0.9
"""Of the budget: when a search ends that is not yet seen to come to its end, and when sampling
ends that then takes its place. What is left is for carrying out what they found."""
_LADDER = (MOST_COPIES, 1)
"""How far the ladder goes when no number is given."""

KINDS: Mapping[str, tuple[Fault, ...]] = {
    "crash": (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_BEFORE_ANSWER),
    "timeout": (Fault.TIMEOUT,),
    "lost-reply": (Fault.LOST_REPLY,),
    "throttle": (Fault.THROTTLE,),
    "transaction-conflict": (Fault.TRANSACTION_CONFLICT,),
    "stale-read": (Fault.STALE_READ,),
    "redeliver": (Fault.REDELIVER,),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be explored."""

    rungs: tuple[Rung, ...]
    orders: int = 1
    conflict: bool = False
    poison: bool = False
    batch: int = 1  # messages in one event, at most
    budget_s: float = DEFAULT_BUDGET_S  # after start-up
    seed: int = 1

    @property
    def copies(self) -> int:
        return max(rung.copies for rung in self.rungs)

    @property
    def kinds(self) -> tuple[Fault, ...]:
        return self.rungs[0].kinds

    @property
    def of(self) -> str:
        text = "one order" if self.orders == 1 else "two orders"
        if self.conflict:
            text += ", one of them with other details"
        if self.poison:
            text += ", one message that no handler can accept"
        if self.batch > 1:
            text += f", in events of up to {self.batch} in any order"
        return text


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exploration runs, and where it leaves what it found."""

    endpoint_url: str | None
    out: Path
    config: Path | None
    command: str
    cwd: Path
    clock: Clock


def asked_for(
    *,
    copies: int | None = None,
    faults: int | None = None,
    orders: int = 1,
    conflict: bool = False,
    poison: bool = False,
    batch: int = 1,
    kinds: Sequence[str] | None = None,
    budget: str | float = DEFAULT_BUDGET_S,
    seed: int = 1,
) -> Asked:
    """
    :raises UsageError: for a number out of range, an unknown kind, or a time that is none.
    """
    for name, value, least, most in (
        ("copies", copies, 1, MOST_COPIES),
        ("faults", faults, 0, MOST_FAULTS),
        ("orders", orders, 1, 2),
        ("batch", batch, 1, MOST_COPIES),
    ):
        if value is not None and not least <= value <= most:
            raise UsageError(f"--{name}: must be from {least} to {most} (got {value}).")
    least = orders + conflict + poison  # messages
    if copies is not None and copies < least:
        raise UsageError(
            f"--copies: {least} messages at least are needed for this (got {copies}): one of each "
            "order, and one with other details or one that no handler can accept where asked for."
        )
    chosen = _kinds(kinds)
    if copies is None and faults is None:
        rungs = tuple(rung for rung in ladder.rungs(*_LADDER, chosen) if rung.copies >= least)
    else:
        rungs = (Rung(max(2, least) if copies is None else copies, faults or 0, chosen),)
    return Asked(rungs, orders, conflict, poison, batch, _seconds(budget), seed)


def _kinds(names: Sequence[str] | None) -> tuple[Fault, ...]:
    if names is None:
        return tuple(Fault)
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        raise UsageError(
            f"--kinds: there is no kind {', '.join(map(repr, unknown)) or 'without a name'}. "
            f"There are: {', '.join(KINDS)}."
        )
    chosen = {fault for name in names for fault in KINDS[name]}
    return tuple(fault for fault in Fault if fault in chosen)


def _seconds(text: str | float) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", str(text))
    if match is None:
        raise UsageError(f"--budget: {text!r} is no time. Write it as 60s, 90, 2m or 1h.")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def asked_json(settings: Settings, asked: Asked) -> dict[str, Any]:
    """As it stands in ``explore.json``."""
    return {
        "handler": settings.handler.handler,
        "code": str(settings.handler.code),
        "rungs": [[rung.copies, rung.faults] for rung in asked.rungs],
        "kinds": list(asked.kinds),
        "orders": asked.orders,
        "conflict": asked.conflict,
        "poison": asked.poison,
        "batch": asked.batch,
        "budget_s": asked.budget_s,
        "seed": asked.seed,
        "tool": __version__,
    }
