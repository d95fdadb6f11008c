"""Toy programs for exploring: handlers as generators, a store of texts, no AWS.

A program yields calls and is sent the text of their replies; what it returns is its answer.
A lost or throttled call is made again for it, as an SDK does.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from loadtest.explore.model import (
    CONFLICTED,
    LOST,
    THROTTLED,
    Answer,
    Call,
    Calls,
    Fault,
    History,
    Items,
    Limits,
    Reply,
    Run,
)
from loadtest.explore.world import Bounds, Learned, Stored, World

Program = Callable[[Run], Generator[Call, str, Answer]]

DONE = Answer("processed", succeeded=True)
DUPLICATE = Answer("duplicate", succeeded=True)
FAILED = Answer("error", succeeded=False)
REJECTED = "rejected"
ABSENT = "absent"


# --- calls: the text says it all, the store reads it again ----------------------------


def get(item: str, stale: bool = False) -> Call:
    return Call(f"get {item}", reads=frozenset({item}), may_be_stale=stale)


def put(item: str, content: str) -> Call:
    return Call(f"put {item} {content}", writes=frozenset({item}))


def insert(item: str, content: str) -> Call:
    return change(item, ABSENT, content)


def change(item: str, old: str, content: str) -> Call:
    both = frozenset({item})
    return Call(f"change {item} {content} {old}", reads=both, writes=both)


def add(item: str, number: int = 1) -> Call:
    both = frozenset({item})
    return Call(f"add {item} {number}", reads=both, writes=both)


def delete(item: str) -> Call:
    return Call(f"delete {item}", writes=frozenset({item}))


def scan() -> Call:
    return Call("scan", everything=True)


def settle(order: str, effect: str) -> Call:
    """Store an order and count its effect, both or neither."""
    both = frozenset({order, effect})
    return Call(f"settle {order} {effect}", reads=both, writes=both, is_transaction=True)


class ToyStore:
    async def apply(self, items: Items, call: Call) -> tuple[Reply, Items]:
        held = dict(items)
        match call.text.split():
            case ["get", item]:
                return Reply(held.get(item, ABSENT), wrote=False), items
            case ["scan"]:
                return Reply(repr(items), wrote=False), items
            case ["put", item, content]:
                held[item] = content
            case ["change", item, content, old]:
                if held.get(item, ABSENT) != old:
                    return Reply(REJECTED, wrote=False), items
                held[item] = content
            case ["add", item, number]:
                held[item] = str(int(held.get(item, "0")) + int(number))
                return Reply(held[item], wrote=True), tuple(sorted(held.items()))
            case ["delete", item]:
                held.pop(item, None)
            case ["settle", order, effect]:
                if order in held:
                    return Reply(REJECTED, wrote=False), items
                held |= {order: "d", effect: str(int(held.get(effect, "0")) + 1)}
            case _:
                raise ValueError(call.text)
        return Reply("ok", wrote=True), tuple(sorted(held.items()))


class ToyHandler:
    """Runs a program from its start for every question."""

    def __init__(self, program: Program) -> None:
        self.program = program

    async def next(self, run: Run, history: History) -> Calls | Answer:
        going = self.program(run)
        try:
            call = next(going)
            for _, reply in history:
                if reply not in (LOST, THROTTLED):
                    call = going.send(reply.text)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        return (call,)


class ToyThreads:
    """Runs a program in several threads of each run, as if each was a copy of its own, and
    answers as the first."""

    def __init__(self, program: Program, threads: int) -> None:
        self.program = program
        self.threads = threads

    async def next(self, run: Run, history: History) -> Calls | Answer:
        number = run.copy * self.threads
        going = [self.program(Run(number + n, run.receive, run.epoch)) for n in range(self.threads)]
        calls: dict[int, Call] = {}
        answers: dict[int, Answer] = {}

        def advance(thread: int, reply: str | None) -> None:
            try:
                calls[thread] = going[thread].send(reply)  # type: ignore[arg-type]
            except StopIteration as end:
                calls.pop(thread, None)
                answers[thread] = end.value

        for thread in range(self.threads):
            advance(thread, None)
        for place, reply in history:
            if reply not in (LOST, THROTTLED):
                advance(sorted(calls, key=lambda t: (calls[t].text, t))[place], reply.text)
        if calls:
            return tuple(calls[t] for t in sorted(calls, key=lambda t: (calls[t].text, t)))
        return Answer(" ".join(answers[t].text for t in range(self.threads)), answers[0].succeeded)


@dataclass(frozen=True)
class ToyMeaning:
    """Copies of order ``o`` with details ``d``, unless said otherwise. What an item
    ``order:<key>`` or ``order:<key>/...`` holds are the details of an order, or a claim."""

    details: Sequence[str | None] = ()  # of each copy
    orders: Sequence[str] = ()  # of each copy
    effects: tuple[str, ...] = ()

    def message(self, copy: int) -> tuple[str, str | None]:
        order = self.orders[copy] if self.orders else "o"
        return order, self.details[copy] if self.details else "d"

    def stored(self, item: str, content: str) -> Stored | None:
        if not item.startswith("order:"):
            return None
        order = item.removeprefix("order:").split("/")[0]
        return Stored(order, content, complete=content != "claim")


# --- handlers with known faults and their right twins ---------------------------------

ORDER = "order:o"
PAY = "effect:pay:o"


def read_then_write(run: Run) -> Generator[Call, str, Answer]:
    if (yield get(ORDER)) != ABSENT:
        return DUPLICATE
    yield put(ORDER, "d")
    return DONE


def conditional_put(run: Run) -> Generator[Call, str, Answer]:
    if (yield insert(ORDER, "d")) == REJECTED:
        return DUPLICATE
    return DONE


def read_add_put(run: Run) -> Generator[Call, str, Answer]:
    if (yield get(ORDER)) != ABSENT:
        return DUPLICATE
    yield add(PAY)
    yield put(ORDER, "d")
    return DONE


def claim_then_effect(run: Run) -> Generator[Call, str, Answer]:
    """Right without faults; a crash between the two loses the effect."""
    if (yield insert(ORDER, "d")) == REJECTED:
        return DUPLICATE
    yield add(PAY)
    return DONE


def order_with_effect(run: Run) -> Generator[Call, str, Answer]:
    """Right: order and effect are one transaction."""
    if (yield settle(ORDER, PAY)) == REJECTED:
        return DUPLICATE
    return DONE


def order_with_effect_or_failure(run: Run) -> Generator[Call, str, Answer]:
    """Right, also when another transaction is in the way."""
    settled = yield settle(ORDER, PAY)
    if settled == CONFLICTED.text:
        return FAILED
    return DUPLICATE if settled == REJECTED else DONE


def effect_then_order(run: Run) -> Generator[Call, str, Answer]:
    """Every run pays, whether the order is stored or not."""
    yield add(PAY)
    yield insert(ORDER, "d")
    return DONE


def stores_nothing(run: Run) -> Generator[Call, str, Answer]:
    yield get(ORDER)
    return DONE


def stores_and_deletes(run: Run) -> Generator[Call, str, Answer]:
    yield insert(ORDER, "d")
    yield delete(ORDER)
    return DONE


def writes_twice(run: Run) -> Generator[Call, str, Answer]:
    """Right: the second write is a step of the same work."""
    if (yield insert(ORDER, "d")) == REJECTED:
        return DUPLICATE
    yield put(ORDER, "d")
    return DONE


def keyed_by_copy(run: Run) -> Generator[Call, str, Answer]:
    yield insert(f"{ORDER}/{run.copy}", "d")
    return DONE


def fails_on_duplicates(run: Run) -> Generator[Call, str, Answer]:
    return FAILED if (yield insert(ORDER, "d")) == REJECTED else DONE


def takes_conflicts_for_copies(run: Run) -> Generator[Call, str, Answer]:
    """The second copy has other details."""
    won = yield insert(ORDER, "de"[run.copy])
    return DUPLICATE if won == REJECTED else DONE


def compares_details(run: Run) -> Generator[Call, str, Answer]:
    """The second copy has other details."""
    if (yield insert(ORDER, "de"[run.copy])) != REJECTED:
        return DONE
    return DUPLICATE if (yield get(ORDER)) == "de"[run.copy] else FAILED


def takeover(run: Run) -> Generator[Call, str, Answer]:
    """A claim of an earlier epoch is taken over; right, since its owner cannot be alive."""
    claim = "claim"
    held = yield get("lock:o")
    if held == "done":
        return DUPLICATE
    mine = f"{claim}-{run.copy}-{run.receive}-{run.epoch}"
    if held == ABSENT:
        won = yield insert("lock:o", mine)
    elif int(held.rsplit("-", 1)[1]) < run.epoch:
        won = yield change("lock:o", held, mine)
    else:
        return FAILED
    if won == REJECTED:
        return FAILED
    yield insert(ORDER, "d")
    yield change("lock:o", mine, "done")
    return DONE


def takeover_too_early(run: Run) -> Generator[Call, str, Answer]:
    """A claim is taken over whoever holds it: two runs then write the order."""
    held = yield get("lock:o")
    if held == "done":
        return DUPLICATE
    mine = f"claim-{run.copy}-{run.receive}-{run.epoch}"
    if (yield change("lock:o", held, mine)) == REJECTED:
        return FAILED
    yield put(ORDER, "d")
    yield put("lock:o", "done")
    return DONE


def claim_never_released(run: Run) -> Generator[Call, str, Answer]:
    """A crash between claim and order leaves the claim, and every later run gives up."""
    if (yield insert(ORDER, "claim")) == REJECTED:
        held = yield get(ORDER)
        return FAILED if held == "claim" else DUPLICATE
    yield change(ORDER, "claim", "d")
    return DONE


def reads_what_is_stale(run: Run) -> Generator[Call, str, Answer]:
    """A lone copy that is received again writes twice when its read is stale."""
    if (yield get(ORDER, stale=True)) != ABSENT:
        return DUPLICATE
    yield put(ORDER, "d")
    return DONE


def reads_between_writes(run: Run) -> Generator[Call, str, Answer]:
    """The first copy writes a and c, the second writes b and reads twice."""
    if run.copy == 0:
        yield put("x", "a")
        yield put("x", "c")
        return DONE
    yield put("x", "b")
    now = yield get("x")
    stale = yield get("x", stale=True)
    return Answer(f"{now} {stale}", succeeded=True)


def writes_a_lot_of_its_own(run: Run) -> Generator[Call, str, Answer]:
    for number in range(30):
        yield put(f"log:{run.copy}", str(number))
    return DONE


def six_calls(run: Run) -> Generator[Call, str, Answer]:
    """Six calls, two items that all copies share, the rest of each copy's own."""
    mine = f"log:{run.copy}"
    yield get("config")
    yield put(mine, "1")
    if (yield insert(ORDER, "d")) == REJECTED:
        yield get(ORDER)
        yield put(mine, "duplicate")
        return DUPLICATE
    yield add("total")
    yield put(f"audit:{run.copy}", "1")
    yield put(mine, "2")
    return DONE


def polls_forever(run: Run) -> Generator[Call, str, Answer]:
    while True:
        yield get(ORDER)


def minds_its_order(run: Run) -> Generator[Call, str, Answer]:
    """The second copy has other details than the first; the third is of another order."""
    item, details = (("order:o", "d"), ("order:o", "e"), ("order:p", "d"))[run.copy]
    if (yield insert(item, details)) != REJECTED:
        return DONE
    return DUPLICATE if (yield get(item)) == details else FAILED


# --- handlers of several messages -----------------------------------------------------


def in_turn(program: Program) -> Program:
    """Right: every message is tried, and exactly those that failed are reported."""

    def each(run: Run) -> Generator[Call, str, Answer]:
        answers = []
        for copy, receive in run.messages:
            answers.append((yield from program(Run(copy, receive, run.epoch))))
        failed = frozenset(n for n, answer in enumerate(answers) if not answer.succeeded)
        text = ", ".join(answer.text for answer in answers)
        if len(failed) == len(answers):
            return Answer(text, succeeded=False)
        return Answer(text, succeeded=True, failed=failed)

    return each


def all_or_none(program: Program) -> Program:
    """One message that fails takes all others of its event along."""

    def each(run: Run) -> Generator[Call, str, Answer]:
        answer = yield from in_turn(program)(run)
        return FAILED if answer.failed else answer

    return each


def stops_early(program: Program) -> Program:
    """The messages after the first one that fails are not tried, and not reported."""

    def each(run: Run) -> Generator[Call, str, Answer]:
        for place, (copy, receive) in enumerate(run.messages):
            answer = yield from program(Run(copy, receive, run.epoch))
            if not answer.succeeded:
                return Answer("stopped", succeeded=True, failed=frozenset({place}))
        return DONE

    return each


def random_program(seed: int, *, own_items: bool = True) -> Program:
    """One to three calls on items that are shared and one of each copy's own; which call comes
    next, and how the run ends, hang on the replies, and in some programs on the epoch."""
    rng = random.Random(seed)
    length = rng.choice((1, 2, 2, 3, 3))
    salt = rng.randrange(1_000_000)
    fails = rng.choice((0.0, 0.0, 0.3, 0.7))
    may_scan = rng.random() < 0.1
    tells_time = rng.random() < 0.3

    @functools.cache
    def decide(seen: str, own: str) -> Call:
        dice = random.Random(f"{salt} {seen}")
        item = dice.choice((ORDER, ORDER, "y", own))
        return dice.choice(
            (
                get(item, stale=True),
                put(item, dice.choice(("claim", "d"))),
                insert(item, "claim"),
                add("n") if item != ORDER else get("n"),
                change(item, "claim", "d"),
                delete(item),
                scan() if may_scan else get(item),
            )
        )

    @functools.cache
    def answer(seen: str) -> Answer:
        dice = random.Random(f"{salt} {seen} end")
        return FAILED if dice.random() < fails else Answer(seen[-8:], succeeded=True)

    def program(run: Run) -> Generator[Call, str, Answer]:
        seen = str(run.epoch) if tells_time else ""
        for _ in range(length):
            seen += " " + (yield decide(seen, f"own:{run.copy}" if own_items else "z"))
        return answer(seen)

    return program


def world(
    program: Program,
    copies: int,
    faults: int = 0,
    *,
    kinds: Sequence[Fault] = tuple(Fault),
    limits: Limits | None = None,
    symmetric: bool = True,
    max_receive_count: int = 3,
    max_calls: int = 40,
    batch: int = 1,
    meaning: ToyMeaning | None = None,
) -> World:
    bounds = Bounds(
        bodies=(0,) * copies if symmetric else tuple(range(copies)),
        faults=faults,
        limits=limits if limits is not None else dict.fromkeys(kinds, faults),
        max_receive_count=max_receive_count,
        max_calls=max_calls,
        batch=batch,
    )
    learned = Learned(ToyHandler(program), ToyStore())
    return World(learned, bounds, meaning or ToyMeaning())
