"""The words that exploring is made of: calls, replies, runs, choices. Pure; knows no AWS.

A *copy* is one message on its way. Each time it is received, alone or in one *event* with
others, that event makes a *run* of the handler. A run is a function of its event, its clock
and the replies it got: the same *history* of replies leads to the same next call, or calls, as
threads of a run may have several under way at once. A *call* names the items that it may look
at and change, so that two calls on different items commute.

Two oracles say what is not known here: :class:`Handler` what a run asks next, :class:`Store`
what the store answers. Both may be real systems that are asked once and remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

Items = tuple[tuple[str, str], ...]
"""What the store holds: item -> content, sorted by item. An item that is not there is absent.
Side effects are items too, whose content is how often they happened."""


class Fault(StrEnum):
    """What may be chosen instead of letting a call, or an answer, have its way."""

    CRASH_BEFORE = "crash-before-call"
    CRASH_AFTER = "crash-after-call"
    CRASH_BEFORE_ANSWER = "crash-before-answer"
    TIMEOUT = "timeout"  # the call took effect, no reply came, the run was ended
    LOST_REPLY = "lost-reply"  # the call took effect, and the SDK's next attempt comes
    THROTTLE = "throttle"  # no effect; the SDK's next attempt comes
    TRANSACTION_CONFLICT = "transaction-conflict"  # no effect; the run is told so
    STALE_READ = "stale-read"  # a read answers from before the item's last write
    REDELIVER = "redeliver"  # the copy is received again while this run is going, or after it


@dataclass(frozen=True, slots=True)
class Call:
    """One wire attempt of a run, as far as its order among others matters."""

    text: str  # equal texts are equal requests
    reads: frozenset[str] = frozenset()  # items that its reply may depend on
    writes: frozenset[str] = frozenset()  # items that it may change
    everything: bool = False  # it may depend on and change anything
    may_be_stale: bool = False  # an eventually consistent read
    is_transaction: bool = False  # of writes, so that another one may get in its way

    def depends_on(self, other: Call) -> bool:
        """Whether the order of the two may matter. Two reads commute, and so do calls on
        different items."""
        if self.everything or other.everything:
            return True
        mine, theirs = self.reads | self.writes, other.reads | other.writes
        return bool(self.writes & theirs or other.writes & mine)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a run learns from a call."""

    text: str  # equal texts are equal replies
    wrote: bool  # False: it changed nothing, as a failed condition


LOST = Reply("lost", wrote=True)
THROTTLED = Reply("throttled", wrote=False)
CONFLICTED = Reply("transaction conflict", wrote=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a run."""

    text: str  # what was returned, or the error; equal texts are equal answers
    succeeded: bool  # the messages may be deleted, but for those that it names as failed
    failed: frozenset[int] = frozenset()  # which those are, by their places in the event, from 0

    def deletes(self, place: int) -> bool:
        """Whether the message at this place of the event may be deleted."""
        return self.succeeded and place not in self.failed


Received = tuple[int, int]
"""A message as an event holds it: its copy, from 0, and how often it was received, from 1."""


@dataclass(frozen=True, slots=True)
class Run:
    """Which run of the handler: it has an event and a clock of its own."""

    copy: int  # of the first message of its event, from 0
    receive: int  # how often that has been received, from 1
    epoch: int  # visibility timeouts that have passed when it starts
    others: tuple[Received, ...] = ()  # further messages of the event, in their order

    @property
    def messages(self) -> tuple[Received, ...]:
        return (self.copy, self.receive), *self.others


class Heard(NamedTuple):
    """A reply that a run got."""

    place: int  # of its call among those that the run had under way, from 0
    reply: Reply


History = tuple[Heard, ...]
Calls = tuple[Call, ...]
"""What a run has under way, in an order that is the same each time; at least one."""


class Handler(Protocol):
    async def next(self, run: Run, history: History) -> Calls | Answer:
        """What the run does after these replies.

        :raises NondeterministicError: it did something else after the same replies before.
        """
        ...


class Store(Protocol):
    async def apply(self, items: Items, call: Call) -> tuple[Reply, Items]:
        """The reply to a call when the store holds these items, and what it holds then."""
        ...


class NondeterministicError(Exception):
    """A run asked for something else after the same replies."""

    def __init__(self, run: Run, position: int, remembered: str, now: str) -> None:
        super().__init__(
            f"{named(run.messages)}: call {position} differs between two runs with the same "
            f"replies:\n  {remembered}\n  {now}"
        )
        self.run = run
        self.position = position  # of the call in its run, from 1
        self.remembered = remembered
        self.now = now


@dataclass(frozen=True, slots=True)
class Choice:
    """One step of a schedule: who goes on, and with which fault."""

    copy: int
    fault: Fault | None = None
    receive: int = 1  # which of the copy's runs goes on
    call: str | None = None  # text of the call that it let go; None: start, answer, delete
    others: tuple[Received, ...] = ()  # as in Run
    place: int = field(default=0, compare=False)  # of the call among those under way

    @property
    def messages(self) -> tuple[Received, ...]:
        return (self.copy, self.receive), *self.others


Schedule = tuple[Choice, ...]

Limits = Mapping[Fault, int]
"""How often each fault may be chosen at most; beside the bound on all of them together."""


def named(messages: tuple[Received, ...]) -> str:
    """A run by its messages: ``copy 1, receive 2``, ``copy 1, receive 1 + copy 3, receive 2``."""
    return " + ".join(f"copy {copy + 1}, receive {receive}" for copy, receive in messages)
