"""The bounded world that is explored: copies, runs, deliveries, faults and time. Pure.

A copy is received, its run makes calls, the run answers, and the copy is deleted if the
answer succeeded. If the answer failed, or the run ended by a crash or a timeout, the copy is
received again, up to a maximum, and is then dead-lettered.

An *event* holds any of the copies that may be received when its run starts, up to the size of
a batch, in any order. Its run answers for each of them. Those that failed are received again
like any others: alone, together, or with copies that come for the first time.

Time passes in *epochs* of one visibility timeout. A copy whose run failed is received again
in a later epoch than that run's, and an epoch begins only when every run has ended: a
function's timeout is shorter than the visibility timeout. ``Fault.REDELIVER`` is the
exception: what may be received again of the run's event is received at once, as one event.

Starting a run is no step of its own: it comes with the run's first call. The end of a run
commutes with all calls of others, so it is taken as soon as it is reached; what is chosen
there is its fault. A run that has several calls under way goes on when any of them has its
reply; those that it still has when it ends by a crash or a timeout are never made. Copies with
equal bodies start in the order of their numbers, since any other order is the same one with the
names changed.

Every run is bounded by ``max_calls``, every copy by its receives, and faults by their number,
so that every path ends and no state comes twice on one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from analysis.findings import FindingKind
from loadtest.explore.model import (
    CONFLICTED,
    LOST,
    THROTTLED,
    Answer,
    Call,
    Calls,
    Choice,
    Fault,
    Handler,
    Heard,
    History,
    Items,
    Limits,
    Received,
    Reply,
    Run,
    Store,
)

EFFECT = "effect:"
"""How the items begin that count side effects: ``effect:<name>:<order key>``."""

MAX_CALLS = 40

_ENDS_AT_CALL = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.TIMEOUT})
_NO_EFFECT = frozenset(
    {Fault.CRASH_BEFORE, Fault.THROTTLE, Fault.TRANSACTION_CONFLICT, Fault.REDELIVER}
)
_MARKS = {LOST: "l", THROTTLED: "t", CONFLICTED: "c"}
_OF_ANY_CALL = (Fault.CRASH_BEFORE, Fault.TIMEOUT, Fault.THROTTLE)
_OF_WRITES = (Fault.CRASH_AFTER, Fault.LOST_REPLY)


@dataclass(frozen=True, slots=True)
class Stored:
    """What an item says about an order."""

    order: str  # the order key
    details: str  # canonical text
    complete: bool  # False: a claim


class Meaning(Protocol):
    """What messages and items stand for. Only the order of judging, and which paths are alike
    for the judge, rest on it."""

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of the side effects that each stored order owes once."""
        ...

    def message(self, copy: int) -> tuple[str, str | None]:
        """Order key and details of a copy's message; None: no handler can accept it."""
        ...

    def stored(self, item: str, content: str) -> Stored | None:
        """What an item says about an order; None: nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large the world is."""

    bodies: tuple[int, ...]  # one number a copy; copies with equal numbers have equal bodies
    faults: int = 0  # of all kinds together
    limits: Limits = field(default_factory=dict)  # of each kind; a kind not named is never chosen
    max_receive_count: int = 3
    max_calls: int = MAX_CALLS  # wire attempts of one run; it is then ended as by its timeout
    batch: int = 1  # messages in one event, at most


class Progress:
    """How far a run has come: the replies it got, and what it asks next.

    One object for each run and history, so that states compare it by identity.
    """

    __slots__ = ("course", "history", "later", "run", "step")

    def __init__(self, run: Run, history: History, course: str) -> None:
        self.run = run
        self.history = history
        self.course = course
        """Of the replies: w wrote, r read or rejected, l lost, t throttled, c conflict; before it
        the place of the call, where several were under way."""
        self.step: Calls | Answer | None = None  # None: not asked yet
        self.later: dict[Heard, Progress] = {}

    def after(self, heard: Heard) -> Progress:
        found = self.later.get(heard)
        if found is None:
            mark = _MARKS.get(heard.reply, "w" if heard.reply.wrote else "r")
            if isinstance(self.step, tuple) and len(self.step) > 1:
                mark = f"{heard.place}{mark}"
            found = Progress(self.run, (*self.history, heard), self.course + mark)
            self.later[heard] = found
        return found


class Contents:
    """What the store holds. One object for equal items."""

    __slots__ = ("items", "replies")

    def __init__(self, items: Items) -> None:
        self.items = items
        self.replies: dict[tuple[Progress, int], tuple[Reply, Contents]] = {}


class Learned:
    """The two oracles, each asked once and remembered. May be shared by several worlds
    whose copies have the same bodies."""

    def __init__(self, handler: Handler, store: Store) -> None:
        self._handler = handler
        self._store = store
        self._starts: dict[Run, Progress] = {}
        self._contents: dict[Items, Contents] = {}
        self._replies: dict[tuple[Items, Call], tuple[Reply, Items]] = {}
        self.handler_questions = 0
        self.store_questions = 0

    def contents(self, items: Iterable[tuple[str, str]]) -> Contents:
        key = tuple(sorted(items))
        return self._contents.setdefault(key, Contents(key))

    def start(self, run: Run) -> Progress:
        found = self._starts.get(run)
        if found is None:
            found = self._starts[run] = Progress(run, (), "")
        return found

    async def next(self, progress: Progress) -> Calls | Answer:
        if progress.step is None:
            self.handler_questions += 1
            progress.step = await self._handler.next(progress.run, progress.history)
        return progress.step

    async def reply(
        self, contents: Contents, progress: Progress, place: int
    ) -> tuple[Reply, Contents]:
        """What a pending call is told, and what the store holds then.

        The store is asked with no more items than the call may look at.

        :param place: of the call among those that the run has under way.
        """
        found = contents.replies.get((progress, place))
        if found is None:
            calls = await self.next(progress)
            assert not isinstance(calls, Answer)
            call = calls[place]
            reach = call.reads | call.writes
            seen = tuple(i for i in contents.items if call.everything or i[0] in reach)
            known = self._replies.get((seen, call))
            if known is None:
                self.store_questions += 1
                known = self._replies[seen, call] = await self._store.apply(seen, call)
                stray = {i for i, _ in known[1]} - reach
                if stray and not call.everything:
                    raise ValueError(f"{call.text!r} changed what it does not name: {stray}")
            reply, changed = known
            unseen = (i for i in contents.items if not (call.everything or i[0] in reach))
            then = reply, self.contents((*unseen, *changed))
            found = contents.replies[progress, place] = then
        return found


class Fate(StrEnum):
    OPEN = "open"  # not received yet, or its run goes on, or it will be received again
    DELETED = "deleted"
    DEAD_LETTERED = "dead-lettered"


class Answered(NamedTuple):
    """What a run said of a copy."""

    receive: int
    course: str  # of its calls
    answer: Answer
    succeeded: bool  # the copy may be deleted
    event: tuple[Received, ...] = ()  # all messages that it was for, if there were several


class CopyState(NamedTuple):
    receives: int
    live: tuple[Progress, ...]  # runs that have not ended, by receive
    failed_in: int  # epoch of the last run that failed; -1: none
    fate: Fate
    answers: tuple[Answered, ...]  # of the runs that answered, by receive


class State(NamedTuple):
    """Paths with equal states are interchangeable for all that follows and for the judge."""

    contents: Contents
    previous: tuple[tuple[str, str | None], ...]
    """Items as they were before their last change; kept only while a read may be stale."""
    copies: tuple[CopyState, ...]
    epoch: int
    used: tuple[int, ...]  # faults: all, then each kind whose own limit is lower
    authors: tuple[tuple[str, Run], ...]  # who wrote a complete item, while that run goes on
    marks: tuple[tuple[str, str], ...]  # what happened that the rest no longer tells, sorted


class Settled(NamedTuple):
    """What became of a copy."""

    body: int
    receives: int
    fate: Fate
    answers: tuple[Answered, ...]
    lost_writes: tuple[int, ...]
    """Receives, as the first of an event, in which a write took effect whose reply was lost."""


class Signature(NamedTuple):
    """Of a final state: what the judge may look at. Equal signatures, equal verdicts."""

    items: Items
    copies: tuple[Settled, ...]
    """Where no event holds several, in an order that does not tell copies with equal bodies
    apart."""
    marks: tuple[tuple[str, str], ...]


INSERTED = "inserted"
LOST_WRITE = "lost-write"


@dataclass(frozen=True, slots=True)
class Step:
    """A choice as it was carried out."""

    choice: Choice
    bodies: frozenset[int]  # of the run's event
    epoch: int  # of the run
    first: bool  # the run began with it
    advances: bool  # an epoch began with it
    ends: bool  # the run ended with it
    call: Call | None = None  # None: the run's end
    reply: Reply | None = None  # what the store answered, whether it arrived or not
    answer: Answer | None = None

    @property
    def actor(self) -> tuple[int, int]:
        return self.choice.copy, self.choice.receive

    def depends_on(self, other: Step) -> bool:
        """Whether the order of the two may matter, as they were carried out: a call that
        changed nothing counts as a read."""
        if self.epoch != other.epoch or self.actor == other.actor:
            return True
        theirs = dict(other.choice.messages)
        for copy, receive in self.choice.messages:
            if copy in theirs:
                first = self if receive < theirs[copy] else other
                if first.choice.fault is Fault.REDELIVER:
                    return True
        if self.first and other.first and (self.epoch > 0 or self.bodies & other.bodies):
            # The first start of a later epoch decides the clock of those that could have come
            # before it; copies with equal bodies start in their order.
            return True
        return self.meets(other)

    def meets(self, other: Step) -> bool:
        """Whether both are calls, and what one did to the store the other may see or undo."""
        mine, theirs = self.call, other.call
        if mine is None or theirs is None or self.reply is None or other.reply is None:
            return False
        if not (self.reply.wrote or other.reply.wrote):
            return False
        if mine.everything or theirs.everything:
            return True
        return bool(
            (self.reply.wrote and mine.writes & (theirs.reads | theirs.writes))
            or (other.reply.wrote and theirs.writes & (mine.reads | mine.writes))
        )


class World:
    """The states that can be reached within bounds.

    :param items: what the store holds at first
    """

    def __init__(
        self, learned: Learned, bounds: Bounds, meaning: Meaning, items: Items = ()
    ) -> None:
        self.learned = learned
        self.bounds = bounds
        self._meaning = meaning
        self._items = items
        self._stored: dict[tuple[str, str], Stored | None] = {}
        kinds = [f for f in Fault if bounds.limits.get(f, 0) > 0]
        self._kinds = frozenset(kinds if bounds.faults else ())
        self._scarce = tuple(f for f in kinds if bounds.limits[f] < bounds.faults)
        self._choices: dict[tuple[Progress, int, Fault | None], Choice] = {}

    def initial(self) -> State:
        fresh = CopyState(0, (), -1, Fate.OPEN, ())
        return State(
            contents=self.learned.contents(self._items),
            previous=(),
            copies=(fresh,) * len(self.bounds.bodies),
            epoch=0,
            used=(0,) * (1 + len(self._scarce)),
            authors=(),
            marks=(),
        )

    def is_final(self, state: State) -> bool:
        return all(c.fate is not Fate.OPEN and not c.live for c in state.copies)

    async def choices(self, state: State) -> list[Choice]:
        """What may come next, in a fixed order; empty when the state is final."""
        pending: list[Progress] = []
        for number, copy in enumerate(state.copies):
            for progress in copy.live:
                if progress.run.copy != number:
                    continue  # seen with the first copy of its event
                if isinstance(await self.learned.next(progress), Answer):
                    return await self._choices_of(state, progress)
                pending.append(progress)
        pending += [self._start(state, event) for event in self._events(state, not pending)]
        pending.sort(key=lambda p: (p.run.copy, p.run.receive, p.run.others))
        return [c for progress in pending for c in await self._choices_of(state, progress)]

    def _events(self, state: State, idle: bool) -> Iterator[tuple[int, ...]]:
        """The copies of each event that may be received now.

        :param idle: no run goes on.
        """
        waiting = [
            number
            for number, copy in enumerate(state.copies)
            if copy.fate is Fate.OPEN
            and not copy.live
            and (copy.receives == 0 or copy.failed_in < state.epoch or idle)
        ]
        for size in range(1, min(self.bounds.batch, len(waiting)) + 1):
            for event in itertools.permutations(waiting, size):
                if self._in_turn(state, event):
                    yield event

    def _in_turn(self, state: State, event: tuple[int, ...]) -> bool:
        """Whether those that come for the first time are, of those with their body, the first."""
        bodies = self.bounds.bodies
        come: Counter[int] = Counter()
        for number in event:
            if state.copies[number].receives:
                continue
            body = bodies[number]
            before = sum(
                bodies[other] == body and not state.copies[other].receives
                for other in range(number)
            )
            if before != come[body]:
                return False
            come[body] += 1
        return True

    def _start(self, state: State, event: Sequence[int]) -> Progress:
        first, *others = [(number, state.copies[number].receives + 1) for number in event]
        epoch = max(state.epoch, *(state.copies[number].failed_in + 1 for number in event))
        return self.learned.start(Run(*first, epoch, tuple(others)))

    async def _choices_of(self, state: State, progress: Progress) -> list[Choice]:
        step = await self.learned.next(progress)
        if isinstance(step, Answer) or len(progress.history) >= self.bounds.max_calls:
            choices = [self._choice(progress, 0, None, None)]
            if isinstance(step, Answer):
                faults = [Fault.CRASH_BEFORE_ANSWER, *self._redelivery(state, progress, step)]
                choices += [
                    self._choice(progress, 0, None, f) for f in faults if self._is_left(state, f)
                ]
            return choices
        choices = []
        for place, call in enumerate(step):
            if any(call.text == before.text for before in step[:place]):
                continue  # equal requests: it is the same whichever is let go
            choices.append(self._choice(progress, place, call, None))
            faults = [*_OF_ANY_CALL]
            if call.writes or call.everything:
                faults += _OF_WRITES
            if call.may_be_stale and await self._is_stale(state, progress, place):
                faults.append(Fault.STALE_READ)
            if call.is_transaction:
                faults.append(Fault.TRANSACTION_CONFLICT)
            faults += self._redelivery(state, progress, step)
            if place:  # what these do is the same at any of the run's calls
                faults = [f for f in faults if f not in (Fault.CRASH_BEFORE, Fault.REDELIVER)]
            choices += [
                self._choice(progress, place, call, f) for f in faults if self._is_left(state, f)
            ]
        return choices

    def _redelivery(self, state: State, progress: Progress, step: Calls | Answer) -> list[Fault]:
        return [Fault.REDELIVER] if self._again(state.copies, progress.run, step) else []

    def _again(
        self, copies: Sequence[CopyState], run: Run, step: Calls | Answer
    ) -> tuple[Received, ...]:
        """What may be received again at once of a run's event: while it goes on, or of that for
        which it has succeeded."""
        return tuple(
            (number, receive + 1)
            for place, (number, receive) in enumerate(run.messages)
            if copies[number].receives <= receive < self.bounds.max_receive_count
            and (not isinstance(step, Answer) or step.deletes(place))
        )

    def _is_left(self, state: State, fault: Fault) -> bool:
        if fault not in self._kinds or state.used[0] >= self.bounds.faults:
            return False
        if fault in self._scarce:
            return state.used[1 + self._scarce.index(fault)] < self.bounds.limits[fault]
        return True

    def _choice(
        self, progress: Progress, place: int, call: Call | None, fault: Fault | None
    ) -> Choice:
        found = self._choices.get((progress, place, fault))
        if found is None:
            run = progress.run
            text = None if call is None else call.text
            found = Choice(run.copy, fault, run.receive, text, run.others, place)
            self._choices[progress, place, fault] = found
        return found

    async def _is_stale(self, state: State, progress: Progress, place: int) -> bool:
        fresh, _ = await self.learned.reply(state.contents, progress, place)
        stale, _ = await self.learned.reply(self._before(state), progress, place)
        return stale != fresh

    def _before(self, state: State) -> Contents:
        items = dict(state.contents.items)
        for item, content in state.previous:
            if content is None:
                items.pop(item, None)
            else:
                items[item] = content
        return self.learned.contents(items.items())

    async def after(self, state: State, choice: Choice) -> State:
        """The state after a choice that :meth:`choices` gave."""
        return (await self._carry_out(state, choice))[0]

    async def step(self, state: State, choice: Choice) -> tuple[State, Step]:
        """The state after a choice, and what was done."""
        then, progress, reply = await self._carry_out(state, choice)
        todo = await self.learned.next(progress)
        before, copy = state.copies[choice.copy], then.copies[choice.copy]
        call = None
        if choice.call is not None and not isinstance(todo, Answer):
            call = todo[_place(todo, choice)]
        return then, Step(
            choice=choice,
            bodies=frozenset(self.bounds.bodies[number] for number, _ in choice.messages),
            epoch=progress.run.epoch,
            first=before.receives < choice.receive,
            advances=then.epoch > state.epoch,
            ends=all(p.run != progress.run for p in copy.live),
            call=call,
            reply=reply,
            answer=todo if isinstance(todo, Answer) else None,
        )

    async def _carry_out(
        self, state: State, choice: Choice
    ) -> tuple[State, Progress, Reply | None]:
        fault = choice.fault
        copies = list(state.copies)
        epoch = state.epoch
        for progress in copies[choice.copy].live:
            if progress.run.messages == choice.messages:
                break
        else:
            progress = self._start(state, [number for number, _ in choice.messages])
            epoch = progress.run.epoch
            self._receive(copies, progress)
        todo = await self.learned.next(progress)
        contents, previous = state.contents, state.previous
        authors, marks = state.authors, state.marks
        reply: Reply | None = None
        if choice.call is None or isinstance(todo, Answer):
            for place, (number, _) in enumerate(progress.run.messages):
                copies[number] = self._end(copies[number], progress, place, todo, fault)
        else:
            goes_on = progress
            place = _place(todo, choice)
            if fault is Fault.STALE_READ:
                reply, _ = await self.learned.reply(self._before(state), progress, place)
                goes_on = progress.after(Heard(place, reply))
            elif fault not in _NO_EFFECT:
                reply, contents = await self.learned.reply(state.contents, progress, place)
                if contents is not state.contents or reply.wrote:
                    authors, marks = self._watch(state, progress.run, todo[place], contents)
                    if fault is Fault.LOST_REPLY and reply.wrote:
                        marks = _with(marks, LOST_WRITE, f"{choice.copy} {choice.receive}")
                    previous = self._remember(state, contents)
                heard = Heard(place, LOST if fault is Fault.LOST_REPLY else reply)
                goes_on = progress.after(heard)
            elif fault is Fault.THROTTLE:
                goes_on = progress.after(Heard(place, THROTTLED))
            elif fault is Fault.TRANSACTION_CONFLICT:
                goes_on = progress.after(Heard(place, CONFLICTED))
            for number, _ in progress.run.messages:
                copy = copies[number]
                if fault in _ENDS_AT_CALL:
                    copies[number] = self._failed(copy, progress)
                elif goes_on is not progress:
                    live = tuple(goes_on if p is progress else p for p in copy.live)
                    copies[number] = copy._replace(live=live)
        if fault is Fault.REDELIVER:
            first, *others = self._again(copies, progress.run, todo)
            self._receive(copies, self.learned.start(Run(*first, epoch, tuple(others))))
        used = state.used if fault is None else self._spend(state.used, fault)
        if previous and not self._may_be_stale(used):
            previous = ()
        if authors and all(p.run is not progress.run for p in copies[choice.copy].live):
            authors = tuple(a for a in authors if a[1] != progress.run)
        then = State(contents, previous, tuple(copies), epoch, used, authors, marks)
        return then, progress, reply

    @staticmethod
    def _receive(copies: list[CopyState], progress: Progress) -> None:
        """The run of an event starts."""
        for number, receive in progress.run.messages:
            copy = copies[number]
            copies[number] = copy._replace(receives=receive, live=(*copy.live, progress))

    def _end(
        self,
        copy: CopyState,
        progress: Progress,
        place: int,
        todo: Calls | Answer,
        fault: Fault | None,
    ) -> CopyState:
        """A run ends, for the copy at this place of its event."""
        if not isinstance(todo, Answer) or fault is Fault.CRASH_BEFORE_ANSWER:
            return self._failed(copy, progress)
        messages = progress.run.messages
        answered = Answered(
            messages[place][1],
            progress.course,
            todo,
            todo.deletes(place),
            messages if len(messages) > 1 else (),
        )
        answers = (*copy.answers, answered)
        copy = copy._replace(answers=tuple(sorted(answers, key=lambda a: a.receive)))
        if not answered.succeeded:
            return self._failed(copy, progress)
        live = tuple(p for p in copy.live if p is not progress)
        return copy._replace(live=live, fate=Fate.DELETED)

    def _failed(self, copy: CopyState, progress: Progress) -> CopyState:
        live = tuple(p for p in copy.live if p is not progress)
        fate = copy.fate
        if fate is Fate.OPEN and not live and copy.receives >= self.bounds.max_receive_count:
            fate = Fate.DEAD_LETTERED
        failed_in = max(copy.failed_in, progress.run.epoch)
        return copy._replace(live=live, fate=fate, failed_in=failed_in)

    def _spend(self, used: tuple[int, ...], fault: Fault) -> tuple[int, ...]:
        return (
            used[0] + 1,
            *(n + (f is fault) for f, n in zip(self._scarce, used[1:], strict=True)),
        )

    def _may_be_stale(self, used: tuple[int, ...]) -> bool:
        if Fault.STALE_READ not in self._kinds or used[0] >= self.bounds.faults:
            return False
        if Fault.STALE_READ not in self._scarce:
            return True
        n = used[1 + self._scarce.index(Fault.STALE_READ)]
        return n < self.bounds.limits[Fault.STALE_READ]

    def _remember(self, state: State, contents: Contents) -> tuple[tuple[str, str | None], ...]:
        if not self._may_be_stale(state.used):
            return state.previous
        before, now = dict(state.contents.items), dict(contents.items)
        previous = dict(state.previous)
        previous |= {i: before.get(i) for i in before | now if before.get(i) != now.get(i)}
        return tuple(sorted(previous.items(), key=lambda entry: entry[0]))

    # --- what the judge would look at -------------------------------------------------

    def _says(self, item: str, content: str | None) -> Stored | None:
        if content is None or item.startswith(EFFECT):
            return None
        key = item, content
        if key not in self._stored:
            self._stored[key] = self._meaning.stored(item, content)
        return self._stored[key]

    def _watch(
        self, state: State, run: Run, call: Call, contents: Contents
    ) -> tuple[tuple[tuple[str, Run], ...], tuple[tuple[str, str], ...]]:
        """Authors and marks after a call of a run that wrote."""
        before, now = dict(state.contents.items), dict(contents.items)
        authors, marks = dict(state.authors), state.marks
        items = sorted(before.keys() | now.keys()) if call.everything else sorted(call.writes)
        for item in items:
            if call.everything and before.get(item) == now.get(item):
                continue
            old, new = self._says(item, before.get(item)), self._says(item, now.get(item))
            changed = new is not None and old is not None and new.details != old.details
            if old is not None and old.complete and (changed or authors.get(item) != run):
                marks = _with(marks, FindingKind.OVERWRITE, old.order)
            if new is None or not new.complete:
                authors.pop(item, None)
                continue
            if old is None or not old.complete:
                again = (INSERTED, new.order) in marks
                marks = _with(marks, FindingKind.DOUBLE_ACCEPT if again else INSERTED, new.order)
            authors[item] = run
        return tuple(sorted(authors.items())), marks

    def signature(self, state: State) -> Signature:
        """What the judge may look at in a final state."""
        lost = [about.split() for kind, about in state.marks if kind == LOST_WRITE]
        copies = [
            Settled(
                self.bounds.bodies[number],
                copy.receives,
                copy.fate,
                copy.answers,
                tuple(int(receive) for name, receive in lost if int(name) == number),
            )
            for number, copy in enumerate(state.copies)
        ]
        marks = tuple(mark for mark in state.marks if mark[0] != LOST_WRITE)
        if self.bounds.batch == 1:
            copies.sort(key=repr)
        return Signature(state.contents.items, tuple(copies), marks)

    def suspicions(self, state: State) -> tuple[FindingKind, ...]:
        """What the judge will probably find in a final state. It decides which signatures are
        judged first, never the verdict."""
        found = {FindingKind(kind) for kind, _ in state.marks if kind not in (INSERTED, LOST_WRITE)}
        said = [s for i, c in state.contents.items if (s := self._says(i, c)) is not None]
        stored = {s.order: s.details for s in said if s.complete}
        if any(not s.complete for s in said):
            found.add(FindingKind.STUCK_MESSAGE)
        counts = {i: c for i, c in state.contents.items if i.startswith(EFFECT)}
        for order in stored:
            for name in self._meaning.effects:
                count = int(counts.get(f"{EFFECT}{name}:{order}", "0"))
                if count > 1:
                    found.add(FindingKind.DUPLICATE_EFFECT)
                elif count == 0:
                    found.add(FindingKind.MISSING_EFFECT)
        dead = {
            self._meaning.message(n)[0]
            for n, c in enumerate(state.copies)
            if c.fate is Fate.DEAD_LETTERED
        }
        for number, copy in enumerate(state.copies):
            order, details = self._meaning.message(number)
            details_stored = stored.get(order)
            if details is None:
                if copy.fate is Fate.DELETED:
                    found.add(FindingKind.POISON_ACKNOWLEDGED)
                if details_stored is not None:
                    found.add(FindingKind.POISON_STORED)
            elif details_stored is None:
                if order in dead:
                    found.add(FindingKind.DEAD_LETTERED_ORDER)
                elif (INSERTED, order) in state.marks:
                    found.add(FindingKind.VANISHED_ORDER)
                else:
                    found.add(FindingKind.LOST_ORDER)
            elif details == details_stored:
                last = copy.answers[-1] if copy.answers else None
                if copy.fate is Fate.DEAD_LETTERED or (last is not None and not last.succeeded):
                    found.add(FindingKind.DUPLICATE_FAILED)
            elif copy.fate is Fate.DELETED:
                found.add(FindingKind.CONFLICT_ACKNOWLEDGED)
        return tuple(sorted(found))


def _place(calls: Calls, choice: Choice) -> int:
    """Of the call that a choice lets go."""
    return next(place for place, call in enumerate(calls) if call.text == choice.call)


def _with(marks: tuple[tuple[str, str], ...], kind: str, about: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({*marks, (kind, about)}))


def all_faults(number: int) -> Mapping[Fault, int]:
    """Limits that let every kind be chosen as often as the bound on all of them allows."""
    return dict.fromkeys(Fault, number)
