"""Exploring, without AWS: the world, the searches and the schedules, on toy programs."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import UsageError
from analysis.findings import FindingKind
from loadtest.explore import dpor, ladder, memo, pct, schedule
from loadtest.explore.execution import Executed, Execution, WorldExecution
from loadtest.explore.memo import Covered, Representative
from loadtest.explore.model import (
    Answer,
    Call,
    Calls,
    Choice,
    Fault,
    History,
    NondeterministicError,
    Run,
    Schedule,
)
from loadtest.explore.world import Bounds, Learned, Progress, Settled, Signature, State, Step, World
from tests import toys
from tests.share import SHARE, seeds

CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_BEFORE_ANSWER)
PAYS = toys.ToyMeaning(effects=("pay",))


def stop_after(number: int) -> Callable[[], bool]:
    """A clock by which the time is spent when it has been asked so often."""
    asked = itertools.count(1)
    return lambda: next(asked) > number


def signatures(found: Covered | Executed) -> set[Signature]:
    return {r.signature for r in found.representatives}


async def executed(world: World, limit: int = 1_000_000) -> Executed:
    async def begin() -> Execution:
        return WorldExecution(world)

    return await dpor.search(begin, out_of_time=stop_after(limit))


# --- what is searched -----------------------------------------------------------------


@pytest.mark.parametrize(("copies", "interleavings"), [(2, 20), (3, 1_428), (4, 257_928)])
async def test_every_interleaving_is_counted(copies: int, interleavings: int) -> None:
    covered = await memo.search(toys.world(toys.read_add_put, copies, symmetric=False))
    assert covered.exhausted
    assert covered.interleavings == interleavings


@pytest.mark.parametrize(
    ("program", "copies", "interleavings"),
    [
        (toys.conditional_put, 3, 6),
        (toys.claim_then_effect, 2, 4),
        (toys.claim_then_effect, 3, 18),
        (toys.claim_then_effect, 4, 96),
    ],
)
async def test_copies_with_equal_bodies_are_counted_once(
    program: toys.Program, copies: int, interleavings: int
) -> None:
    apart = await memo.search(toys.world(program, copies, symmetric=False))
    alike = await memo.search(toys.world(program, copies))
    assert apart.interleavings == interleavings
    names = {2: 2, 3: 6, 4: 24}[copies]
    assert alike.interleavings == interleavings // names
    assert alike.states < apart.states


PLANTED: list[tuple[toys.Program, int, int, Sequence[Fault], FindingKind | None]] = [
    (toys.read_then_write, 1, 0, (), None),
    (toys.read_then_write, 2, 0, (), FindingKind.OVERWRITE),
    (toys.read_then_write, 1, 1, (Fault.REDELIVER,), FindingKind.OVERWRITE),
    (toys.read_add_put, 2, 0, (), FindingKind.DUPLICATE_EFFECT),
    (toys.conditional_put, 3, 2, (*CRASHES, Fault.REDELIVER), None),
    (toys.claim_then_effect, 3, 0, (), None),
    (toys.claim_then_effect, 1, 1, CRASHES, FindingKind.MISSING_EFFECT),
    (toys.claim_then_effect, 1, 1, (Fault.TIMEOUT,), FindingKind.MISSING_EFFECT),
    (toys.claim_then_effect, 2, 1, (Fault.CRASH_BEFORE_ANSWER,), None),
    (toys.order_with_effect, 3, 2, (*CRASHES, Fault.TIMEOUT, Fault.REDELIVER), None),
    (toys.order_with_effect, 1, 1, (Fault.TRANSACTION_CONFLICT,), FindingKind.LOST_ORDER),
    (toys.order_with_effect_or_failure, 2, 2, (Fault.TRANSACTION_CONFLICT, *CRASHES), None),
    (toys.effect_then_order, 1, 1, (Fault.TRANSACTION_CONFLICT,), None),
    (toys.effect_then_order, 1, 0, (), None),
    (toys.effect_then_order, 1, 1, (Fault.CRASH_BEFORE_ANSWER,), FindingKind.DUPLICATE_EFFECT),
    (toys.takeover, 2, 1, CRASHES, None),
    (toys.takeover_too_early, 2, 0, (), FindingKind.OVERWRITE),
    (toys.claim_never_released, 1, 1, CRASHES, FindingKind.STUCK_MESSAGE),
    (toys.claim_never_released, 1, 1, CRASHES, FindingKind.DEAD_LETTERED_ORDER),
    (toys.reads_what_is_stale, 1, 2, (Fault.CRASH_AFTER,), None),
    (toys.reads_what_is_stale, 1, 1, (Fault.CRASH_AFTER, Fault.STALE_READ), None),
    (
        toys.reads_what_is_stale,
        1,
        2,
        (Fault.CRASH_AFTER, Fault.STALE_READ),
        FindingKind.OVERWRITE,
    ),
    (toys.read_then_write, 1, 2, (Fault.CRASH_AFTER, Fault.STALE_READ), None),
    (toys.effect_then_order, 1, 1, (Fault.LOST_REPLY,), FindingKind.DUPLICATE_EFFECT),
    (toys.effect_then_order, 1, 1, (Fault.THROTTLE,), None),
    (toys.stores_nothing, 1, 0, (), FindingKind.LOST_ORDER),
    (toys.stores_and_deletes, 1, 0, (), FindingKind.VANISHED_ORDER),
    (toys.stores_and_deletes, 2, 0, (), FindingKind.DOUBLE_ACCEPT),
    (toys.writes_twice, 2, 1, CRASHES, None),
    (toys.keyed_by_copy, 2, 0, (), FindingKind.DOUBLE_ACCEPT),
    (toys.fails_on_duplicates, 1, 0, (), None),
    (toys.fails_on_duplicates, 2, 0, (), FindingKind.DUPLICATE_FAILED),
]
MINDS_EFFECTS = {
    toys.read_add_put,
    toys.claim_then_effect,
    toys.order_with_effect,
    toys.order_with_effect_or_failure,
    toys.effect_then_order,
}


@pytest.mark.parametrize(("program", "copies", "faults", "kinds", "kind"), PLANTED)
async def test_planted_faults_are_found_and_right_programs_are_clean(
    program: toys.Program,
    copies: int,
    faults: int,
    kinds: Sequence[Fault],
    kind: FindingKind | None,
) -> None:
    meaning = PAYS if program in MINDS_EFFECTS else toys.ToyMeaning()
    world = toys.world(program, copies, faults, kinds=kinds, meaning=meaning)
    covered = await memo.search(world)
    assert covered.exhausted
    found = {k for r in covered.representatives for k in r.suspicions}
    assert (not found) if kind is None else (kind in found)


async def test_a_conflict_that_is_taken_for_a_copy_is_found() -> None:
    meaning = toys.ToyMeaning(details=("d", "e"))
    for program, found in ((toys.takes_conflicts_for_copies, True), (toys.compares_details, False)):
        covered = await memo.search(toys.world(program, 2, symmetric=False, meaning=meaning))
        kinds = {k for r in covered.representatives for k in r.suspicions}
        assert (FindingKind.CONFLICT_ACKNOWLEDGED in kinds) is found


TWO_ORDERS = toys.ToyMeaning(details=("d", "e", "d"), orders=("o", "o", "p"))


@pytest.mark.parametrize(
    ("handles", "batch", "kind"),
    [
        (toys.in_turn, 3, None),
        (toys.all_or_none, 1, None),
        (toys.all_or_none, 2, FindingKind.DUPLICATE_FAILED),
        (toys.stops_early, 1, None),
        (toys.stops_early, 2, FindingKind.LOST_ORDER),
    ],
)
async def test_a_handler_of_batches_is_wrong_only_in_batches(
    handles: Callable[[toys.Program], toys.Program], batch: int, kind: FindingKind | None
) -> None:
    program = handles(toys.minds_its_order)
    world = toys.world(program, 3, symmetric=False, batch=batch, meaning=TWO_ORDERS)
    covered = await memo.search(world)
    assert covered.exhausted
    found = {k for r in covered.representatives for k in r.suspicions}
    assert (not found) if kind is None else (kind in found)


async def test_what_failed_comes_back_alone_together_and_with_what_is_new() -> None:
    world = toys.world(
        toys.all_or_none(toys.minds_its_order),
        3,
        symmetric=False,
        batch=2,
        max_receive_count=2,
        meaning=TWO_ORDERS,
    )
    later: set[tuple[tuple[int, int], ...]] = set()
    for representative in (await memo.search(world)).representatives:
        later.update(c.messages for c in representative.schedule if c.messages[0][1] == 2)
        steps, _ = await schedule.follow(world, representative.schedule)
        for step in steps:
            alone = step.choice.others == ()
            assert step.bodies == {copy for copy, _ in step.choice.messages}
            assert alone or len(step.bodies) == 2
    assert {((0, 2),), ((0, 2), (1, 2)), ((1, 2), (0, 2)), ((1, 2), (2, 1))} <= later


async def test_what_an_event_has_done_may_be_received_again_at_once() -> None:
    program = toys.in_turn(toys.minds_its_order)
    kinds = (Fault.REDELIVER,)
    world = toys.world(program, 2, 1, kinds=kinds, symmetric=False, batch=2, meaning=TWO_ORDERS)
    state = world.initial()
    both = next(c for c in await world.choices(state) if c.others)
    (during,) = [c for c in await world.choices(state) if c.fault and c.messages == both.messages]
    again = await world.after(state, during)
    assert {c.messages for c in await world.choices(again)} == {
        ((0, 1), (1, 1)),
        ((0, 2), (1, 2)),
    }
    while (choices := await world.choices(state))[0].call is not None:
        state = await world.after(state, next(c for c in choices if c.messages == both.messages))
    (after,) = [c for c in choices if c.fault]
    again = await world.after(state, after)
    assert [copy.fate for copy in again.copies] == ["deleted", "open"], "the conflict failed"
    (second,) = [c for c in await world.choices(again) if c.messages[0] == (0, 2)]
    assert second.others == (), "what failed comes back later"


async def test_a_redelivery_begins_a_later_epoch_and_ends_all_runs_before() -> None:
    world = toys.world(toys.takeover, 3, 1, kinds=CRASHES)
    covered = await memo.search(world)
    restarts = 0
    for representative in covered.representatives:
        steps, _ = await schedule.follow(world, representative.schedule)
        going: set[tuple[int, int]] = set()
        for step in steps:
            if step.advances:
                assert step.first
                assert step.choice.receive > 1
                assert not going
                restarts += 1
            going.add(step.actor)
            if step.ends:
                going.remove(step.actor)
        assert not going
    assert restarts


async def test_faults_are_bounded_together_and_by_kind() -> None:
    limits = {Fault.THROTTLE: 3, Fault.REDELIVER: 1}
    world = toys.world(toys.read_then_write, 1, 2, limits=limits)
    covered = await memo.search(world)
    used = [Counter(c.fault for c in r.schedule if c.fault) for r in covered.representatives]
    assert max(u.total() for u in used) == 2
    assert max(u[Fault.REDELIVER] for u in used) == 1
    assert max(u[Fault.THROTTLE] for u in used) == 2


async def test_what_can_matter_no_more_is_forgotten() -> None:
    kinds = (Fault.CRASH_AFTER, Fault.STALE_READ)
    world = toys.world(toys.reads_what_is_stale, 2, 2, kinds=kinds)
    for representative in (await memo.search(world)).representatives:
        state = world.initial()
        for choice in representative.schedule:
            state = await world.after(state, choice)
            assert not state.previous or state.used[0] < 2
            going = {progress.run for copy in state.copies for progress in copy.live}
            assert {run for _, run in state.authors} <= going


async def test_a_fault_is_offered_only_where_it_makes_a_difference() -> None:
    kinds = (Fault.REDELIVER, Fault.STALE_READ, Fault.CRASH_AFTER, Fault.LOST_REPLY)
    world = toys.world(toys.reads_what_is_stale, 2, 3, kinds=kinds)
    state, offered = world.initial(), Counter[Fault | None]()
    rng = random.Random(4)
    for _ in range(200):
        choices = await world.choices(state)
        if not choices:
            state = world.initial()
            continue
        offered.update(c.fault for c in choices)
        redelivered = Counter(c.copy for c in choices if c.fault is Fault.REDELIVER)
        assert set(redelivered.values()) <= {1}
        for choice in choices:
            step = (await world.step(state, choice))[1]
            if choice.fault is Fault.STALE_READ:
                fresh = (await world.step(state, replace(choice, fault=None)))[1]
                assert step.reply != fresh.reply
            if choice.fault in (Fault.CRASH_AFTER, Fault.LOST_REPLY):
                assert step.call is not None
                assert step.call.writes
        state = await world.after(state, rng.choice(choices))
    assert set(kinds) <= set(offered)


async def test_a_stale_read_sees_what_was_there_before_the_last_change() -> None:
    program = toys.reads_between_writes
    world = toys.world(program, 2, 1, kinds=(Fault.STALE_READ,), symmetric=False)
    read = {s.copies[1].answers[0][2].text for s in signatures(await memo.search(world))}
    fresh = {"b b", "a a", "c c", "b a", "b c", "a c"}
    assert read - fresh == {"b absent", "a b", "c a", "c b"}


async def test_a_lost_reply_of_a_write_is_told_from_one_of_a_rejection() -> None:
    world = toys.world(toys.conditional_put, 2, 1, kinds=(Fault.LOST_REPLY,))
    covered = await memo.search(world)
    lost = [
        (settled.answers[0][1], settled.lost_writes)
        for signature in signatures(covered)
        for settled in signature.copies
        if "l" in settled.answers[0][1]
    ]
    assert sorted(lost) == [("lr", ()), ("lr", (1,))]


async def test_a_copy_that_keeps_failing_is_dead_lettered() -> None:
    world = toys.world(toys.fails_on_duplicates, 2, max_receive_count=4)
    covered = await memo.search(world)
    (only,) = covered.representatives
    assert Counter(c.copy for c in only.schedule if c.call is None) == {0: 1, 1: 4}
    assert only.suspicions == (FindingKind.DUPLICATE_FAILED,)


async def test_a_run_that_makes_calls_for_ever_is_ended() -> None:
    world = toys.world(toys.polls_forever, 2, max_calls=5, max_receive_count=1)
    covered = await memo.search(world)
    assert covered.exhausted
    (only,) = covered.representatives
    assert Counter((c.copy, c.call is None) for c in only.schedule) == {
        (0, False): 5,
        (0, True): 1,
        (1, False): 5,
        (1, True): 1,
    }


async def test_handler_and_store_are_asked_each_thing_once() -> None:
    asked: Counter[object] = Counter()

    class Handler(toys.ToyHandler):
        async def next(self, run: Run, history: History) -> Calls | Answer:
            asked[run, history] += 1
            return await super().next(run, history)

    class Store(toys.ToyStore):
        async def apply(self, items, call):  # type: ignore[no-untyped-def]
            asked[items, call] += 1
            assert {i for i, _ in items} <= call.reads | call.writes
            return await super().apply(items, call)

    learned = Learned(Handler(toys.six_calls), Store())
    bounds = Bounds(bodies=(0, 0, 0), faults=1, limits=dict.fromkeys(CRASHES, 1))
    await memo.search(World(learned, bounds, toys.ToyMeaning()))
    assert set(asked.values()) == {1}
    assert learned.handler_questions + learned.store_questions == len(asked)
    before = len(asked)
    await memo.search(World(learned, replace(bounds, faults=0), toys.ToyMeaning()))
    assert len(asked) == before


async def test_a_call_that_changes_what_it_does_not_name_is_refused() -> None:
    def program(run: Run) -> Generator[Call, str, Answer]:
        yield Call("put b 1", writes=frozenset({"a"}))
        return toys.DONE

    with pytest.raises(ValueError, match="'put b 1' changed what it does not name"):
        await memo.search(toys.world(program, 1))


async def test_what_is_there_before_is_part_of_the_world() -> None:
    learned = Learned(toys.ToyHandler(toys.conditional_put), toys.ToyStore())
    world = World(learned, Bounds((0,)), toys.ToyMeaning(), ((toys.ORDER, "d"),))
    (only,) = (await memo.search(world)).representatives
    _, state = await schedule.follow(world, only.schedule)
    assert state.copies[0].answers[0][2] == toys.DUPLICATE


async def test_the_shortest_failing_path_is_judged_first_and_ends_the_search() -> None:
    judged: list[Representative] = []

    async def fails(representative: Representative) -> bool:
        judged.append(representative)
        return len(judged) == 2

    world = toys.world(toys.takeover_too_early, 3)
    covered = await memo.search(world, judge=fails)
    assert not covered.exhausted
    assert covered.failed is judged[1]
    assert len(judged[0].schedule) <= len(judged[1].schedule)
    everything = await memo.search(toys.world(toys.takeover_too_early, 3))
    suspicious = [r for r in everything.representatives if r.suspicions]
    assert judged[0] == suspicious[0]
    assert everything.representatives[: len(suspicious)] == tuple(suspicious)


async def test_a_search_that_runs_out_of_time_says_so() -> None:
    told: list[tuple[int, int]] = []
    covered = await memo.search(
        toys.world(toys.six_calls, 3),
        out_of_time=stop_after(50),
        on_progress=lambda states, waiting, left: told.append((states, waiting)),
    )
    assert not covered.exhausted
    assert told[-1][0] == covered.states
    assert told[-1][1] == covered.states - 50


async def test_about_how_many_states_are_left_is_told_where_it_does_not_mislead() -> None:
    compared = misled = 0
    programs = (toys.six_calls, toys.takeover, toys.claim_never_released, toys.reads_what_is_stale)
    for program, copies, faults in itertools.product(programs, (2, 3), (0, 1)):
        told: list[tuple[int, int, int]] = []

        def note(states: int, waiting: int, left: int | None) -> None:
            if left is not None:
                told.append((states, waiting, left))  # noqa: B023

        world = toys.world(program, copies, faults, kinds=CRASHES)
        covered = await memo.search(world, on_progress=note)
        for states, waiting, left in told:
            really = covered.states - states + waiting
            compared += 1
            misled += not really / 2 <= left <= 2 * really
    assert compared > 100
    assert misled < compared / 10
    assert memo.about_deeper([1, 2, 4, 8]) is None
    assert memo.about_deeper([1, 9, 8, 2]) == 0


def test_a_cycle_is_refused() -> None:
    assert memo.count_paths([[1, 1, 2], [2], []], [2]) == 3
    with pytest.raises(ValueError, match="cycle"):
        memo.count_paths([[1], [2], [1]], [2])


async def test_a_handler_that_differs_is_not_searched_by_states() -> None:
    class Flaky(toys.ToyHandler):
        async def next(self, run: Run, history: History) -> Calls | Answer:
            if history:
                raise NondeterministicError(run, 1, "get a", "get b")
            return await super().next(run, history)

    world = World(
        Learned(Flaky(toys.read_then_write), toys.ToyStore()), Bounds((0,)), toys.ToyMeaning()
    )
    with pytest.raises(NondeterministicError, match="copy 1, receive 1: call 1 differs"):
        await memo.search(world)


# --- the searches agree ---------------------------------------------------------------


def all_orders(program: toys.Program, copies: int) -> tuple[set[tuple[object, ...]], int]:
    """Final contents and answers of all interleavings without faults, and how many there are.
    Shares nothing with the searches but the programs and the store."""
    ends: set[tuple[object, ...]] = set()
    count = 0

    @functools.cache
    def ask(copy: int, replies: tuple[str, ...]) -> Call | Answer:
        going = program(Run(copy, 1, 0))
        try:
            call = next(going)
            for reply in replies:
                call = going.send(reply)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        return call

    def go(items: tuple[tuple[str, str], ...], told: tuple[tuple[str, ...], ...]) -> None:
        nonlocal count
        steps = [ask(copy, replies) for copy, replies in enumerate(told)]
        if all(isinstance(step, Answer) for step in steps):
            ends.add((items, *(step.text for step in steps)))
            count += 1
        for copy, step in enumerate(steps):
            if isinstance(step, Call):
                applying = toys.ToyStore().apply(items, step)
                try:
                    applying.send(None)
                except StopIteration as end:
                    reply, after = end.value
                go(after, (*told[:copy], (*told[copy], reply.text), *told[copy + 1 :]))

    go((), ((),) * copies)
    return ends, count


def all_events(
    program: toys.Program, copies: int, batch: int
) -> tuple[set[tuple[object, ...]], int]:
    """Likewise for events of several messages that are received once each: final contents, and
    of each event its messages and its answer."""
    ends: set[tuple[object, ...]] = set()
    count = 0

    def ask(event: tuple[int, ...], replies: tuple[str, ...]) -> Call | Answer:
        going = program(Run(event[0], 1, 0, tuple((copy, 1) for copy in event[1:])))
        try:
            call = next(going)
            for reply in replies:
                call = going.send(reply)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        return call

    def go(
        items: tuple[tuple[str, str], ...],
        told: dict[tuple[int, ...], tuple[str, ...]],
        waiting: frozenset[int],
    ) -> None:
        nonlocal count
        steps = {event: ask(event, replies) for event, replies in told.items()}
        for size in range(1, batch + 1):
            for event in itertools.permutations(sorted(waiting), size):
                steps[event] = ask(event, ())
        calls = {event: step for event, step in steps.items() if isinstance(step, Call)}
        if not calls:
            assert not waiting
            ends.add((items, frozenset((event, steps[event].text) for event in told)))
            count += 1
        for event, call in calls.items():
            applying = toys.ToyStore().apply(items, call)
            try:
                applying.send(None)
            except StopIteration as end:
                reply, after = end.value
            replies = (*told.get(event, ()), reply.text)
            go(after, told | {event: replies}, waiting - set(event))

    go((), {}, frozenset(range(copies)))
    return ends, count


async def test_the_memo_search_covers_exactly_all_events() -> None:
    for seed in range(120):
        copies, batch = (2, 2) if seed % 6 else (3, 2 + seed % 12 // 6)
        program = toys.in_turn(toys.random_program(seed))
        world = toys.world(program, copies, symmetric=False, batch=batch, max_receive_count=1)
        covered = await memo.search(world, out_of_time=stop_after(1_500))
        if not covered.exhausted or covered.interleavings > 3_000:
            continue
        ends: set[tuple[object, ...]] = set()
        for r in covered.representatives:
            _, state = await schedule.follow(world, r.schedule)
            told = frozenset(
                (tuple(c for c, _ in a.event) or (number,), a.answer.text)
                for number, copy in enumerate(state.copies)
                for a in copy.answers
            )
            ends.add((state.contents.items, told))
        assert (ends, covered.interleavings) == all_events(program, copies, batch), seed


@pytest.mark.parametrize("some", seeds(300, 150))
async def test_the_memo_search_covers_exactly_all_orders(some: range) -> None:
    for seed in some:
        copies = 2 + (seed % 5 == 0)
        program = toys.random_program(seed)
        world = toys.world(program, copies, symmetric=False, max_receive_count=1)
        covered = await memo.search(world)
        ends = set()
        for r in covered.representatives:
            _, state = await schedule.follow(world, r.schedule)
            answers = (copy.answers[0][2].text for copy in state.copies)
            ends.add((state.contents.items, *answers))
        assert (ends, covered.interleavings) == all_orders(program, copies), seed


def two_programs(seed: int) -> toys.Program:
    """In turn."""
    programs = toys.random_program(2 * seed), toys.random_program(2 * seed + 1)
    return lambda run: programs[run.copy % 2](run)


async def test_threads_of_a_run_are_covered_as_copies_would_be() -> None:
    exactly = 0
    for seed in range(150):
        program = two_programs(seed)
        learned = Learned(toys.ToyThreads(program, 2), toys.ToyStore())
        world = World(learned, Bounds((0,), max_receive_count=1), toys.ToyMeaning())
        covered = await memo.search(world)
        ends = {r.signature.items for r in covered.representatives}
        alike = any(  # equal requests of two threads are let go in one order only
            len({call.text for call in progress.step}) < len(progress.step)
            for progress in every_progress(learned)
            if isinstance(progress.step, tuple)
        )
        orders, count = all_orders(program, 2)
        if alike:
            assert ends <= {end[0] for end in orders}, seed
            assert covered.interleavings < count, seed
        else:
            assert ends == {end[0] for end in orders}, seed
            assert covered.interleavings == count, seed
            exactly += 1
    assert exactly > 50


def every_progress(learned: Learned) -> Iterator[Progress]:
    waiting = list(learned._starts.values())
    while waiting:
        progress = waiting.pop()
        yield progress
        waiting += progress.later.values()


@pytest.mark.parametrize("some", seeds(100, 50))
async def test_the_searches_agree_on_threads(some: range) -> None:
    compared = 0
    for seed in some:
        rng = random.Random(f"threads {seed}")
        copies, faults = rng.choice(((1, 0), (1, 1), (2, 0)))
        kinds = rng.sample(list(Fault), 3)
        learned = Learned(toys.ToyThreads(two_programs(seed), 2), toys.ToyStore())
        limits = dict.fromkeys(kinds, faults)
        bounds = Bounds(tuple(range(copies)), faults, limits, max_receive_count=2)
        world = World(learned, bounds, toys.ToyMeaning())
        covered = await memo.search(world, out_of_time=stop_after(500))
        if not covered.exhausted:
            continue
        if covered.interleavings < 400:
            assert (signatures(covered), covered.interleavings) == await all_paths(world), seed
        found = await executed(world, limit=150)
        if found.exhausted:
            assert signatures(found) == signatures(covered), seed
            compared += 1
    assert compared > len(some) / 4


async def all_paths(world: World) -> tuple[set[Signature], int]:
    """Signatures of all complete paths, and how many there are, without remembering states."""
    ends: set[Signature] = set()
    count = 0
    stack = [world.initial()]
    while stack:
        state = stack.pop()
        choices = await world.choices(state)
        if not choices:
            assert world.is_final(state)
            ends.add(world.signature(state))
            count += 1
        for choice in choices:
            stack.append(await world.after(state, choice))
    return ends, count


def random_world(seed: int, most_copies: int = 3) -> World:
    rng = random.Random(f"world {seed}")
    copies = rng.randint(1, most_copies)
    batch = 1 if seed % 8 else min(copies, 2)
    program = toys.random_program(seed)
    return toys.world(
        toys.in_turn(program) if batch > 1 else program,
        copies,
        batch=batch,
        faults=rng.choice((0, 1, 1, 2) if copies < 3 else (0, 0, 1)),
        kinds=rng.sample(list(Fault), rng.randint(1, 4)),
        symmetric=rng.random() < 0.5,
        max_receive_count=rng.choice((1, 2, 2, 3)),
    )


@pytest.mark.parametrize("some", seeds(500, 250))
async def test_equal_states_have_equal_futures(some: range) -> None:
    compared = 0
    for seed in some:
        world = random_world(seed, most_copies=2)
        covered = await memo.search(world, out_of_time=stop_after(300))
        if not covered.exhausted or covered.interleavings > 800:
            continue
        assert (signatures(covered), covered.interleavings) == await all_paths(world), seed
        compared += 1
    assert compared > len(some) / 2


@pytest.mark.parametrize("some", seeds(600, 200))
async def test_source_dpor_reaches_what_the_memo_search_reaches(some: range) -> None:
    compared = 0
    for seed in some:
        world = random_world(seed)
        covered = await memo.search(world, out_of_time=stop_after(500))
        if not covered.exhausted:
            continue
        found = await executed(world, limit=100)
        if not found.exhausted:
            continue
        assert signatures(found) == signatures(covered), seed
        assert found.executions <= covered.interleavings
        compared += 1
    assert compared > len(some) / 2


@pytest.mark.parametrize(("seed", "copies"), [(4702, 3), (4811, 4)])
async def test_source_dpor_tries_every_start_of_a_later_epoch(seed: int, copies: int) -> None:
    """Programs in which it matters which of several restarts begins an epoch."""
    world = toys.world(toys.random_program(seed), copies, max_receive_count=2)
    assert signatures(await executed(world)) == signatures(await memo.search(world))


@pytest.mark.parametrize("some", seeds(400, 200))
async def test_counting_symmetric_copies_once_loses_nothing(some: range) -> None:
    def nameless(found: Covered) -> set[Signature]:
        """Signatures without the numbers of copies."""

        def plain(settled: Settled) -> Settled:
            answers = tuple(
                a._replace(event=((0, len(a.event)),) if a.event else ()) for a in settled.answers
            )
            return settled._replace(body=0, answers=answers)

        return {
            Signature(items, tuple(sorted(map(plain, copies), key=repr)), marks)
            for items, copies, marks in signatures(found)
        }

    for seed in some:
        rng = random.Random(f"symmetric {seed}")
        copies, faults = rng.choice(((2, 0), (2, 1), (3, 0), (3, 0)))
        kinds = rng.sample(list(Fault), 3)
        batch = 1 if seed % 4 else 2

        def world(symmetric: bool) -> World:
            program = toys.random_program(seed, own_items=False)  # noqa: B023
            return toys.world(
                program if batch == 1 else toys.in_turn(program),  # noqa: B023
                copies,  # noqa: B023
                faults,  # noqa: B023
                kinds=kinds,  # noqa: B023
                symmetric=symmetric,
                max_receive_count=2,
                batch=batch,  # noqa: B023
            )

        apart = await memo.search(world(symmetric=False), out_of_time=stop_after(1_000))
        if apart.exhausted:
            alike = await memo.search(world(symmetric=True))
            assert nameless(alike) == nameless(apart), seed
            assert alike.interleavings < apart.interleavings


# --- without memory -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "copies", "faults", "executions"),
    [
        (toys.read_add_put, 2, 0, 6),
        (toys.read_add_put, 3, 0, 64),
        (toys.read_add_put, 4, 0, 1_122),
        (toys.conditional_put, 2, 0, 2),
        (toys.conditional_put, 3, 0, 3),
        (toys.conditional_put, 4, 0, 4),
        (toys.claim_then_effect, 4, 0, 4),
    ],
)
async def test_source_dpor_needs_as_few_executions_as_published(
    program: toys.Program, copies: int, faults: int, executions: int
) -> None:
    world = toys.world(program, copies, faults, kinds=CRASHES, symmetric=False)
    found = await executed(world)
    assert found.exhausted
    assert found.executions + found.blocked == executions
    assert signatures(found) == signatures(await memo.search(world))


async def test_source_dpor_stops_at_the_first_failure() -> None:
    async def fails(representative: Representative) -> bool:
        return True

    closed = 0

    async def close() -> None:
        nonlocal closed
        closed += 1

    async def begin() -> Execution:
        world = toys.world(toys.read_then_write, 3)  # anew: nothing is remembered
        return WorldExecution(world, close)

    found = await dpor.search(begin, judge=fails)
    assert found.failed is not None
    assert found.executions == closed == 2
    assert not found.exhausted


async def test_a_path_that_cannot_be_taken_again_is_never_exhausted() -> None:
    number = itertools.count()

    async def begin() -> Execution:
        first = next(number) == 0
        return WorldExecution(toys.world(toys.read_then_write if first else toys.stores_nothing, 2))

    found = await dpor.search(begin)
    assert found.diverged
    assert found.first_diverged is not None
    assert "got something else" in found.first_diverged
    assert not found.exhausted


# --- sampling -------------------------------------------------------------------------


async def sampled(
    world: World, seed: int, executions: int, depth: int = 2, judge: memo.Judge | None = None
) -> pct.Sampled:
    async def begin() -> Execution:
        return WorldExecution(world)

    return await pct.sample(
        begin,
        seed=seed,
        depth=depth,
        faults=world.bounds.faults,
        kinds=len(world.bounds.limits),
        out_of_time=stop_after(executions),
        judge=judge,
    )


@pytest.mark.parametrize(
    ("program", "copies", "faults", "kinds", "kind"),
    [
        (toys.read_then_write, 2, 0, (), FindingKind.OVERWRITE),
        (toys.takeover_too_early, 3, 0, (), FindingKind.OVERWRITE),
        (toys.claim_then_effect, 2, 1, CRASHES, FindingKind.MISSING_EFFECT),
    ],
)
async def test_sampling_finds_at_least_as_often_as_it_states(
    program: toys.Program, copies: int, faults: int, kinds: Sequence[Fault], kind: FindingKind
) -> None:
    hits, draws = 0, 400
    world = toys.world(program, copies, faults, kinds=kinds, meaning=PAYS if faults else None)

    async def count(representative: Representative) -> bool:
        return kind in representative.suspicions

    needed = []
    for seed in range(draws):
        drawn = await sampled(world, seed, executions=2, judge=count)
        hits += drawn.executed.failed is not None
        needed.append(drawn.odds.of_one(faults))
    assert hits / draws >= max(needed)
    assert hits < draws


async def test_a_sample_is_repeated_by_its_seed() -> None:
    world = toys.world(toys.takeover, 2, 2, kinds=CRASHES)
    first, again, other = [await sampled(world, seed, executions=40) for seed in (7, 7, 8)]
    assert first == again
    assert first.odds.executions < first.executed.executions == 40  # drawn with fewer steps
    assert first.executed.representatives != other.executed.representatives
    assert not first.executed.exhausted
    assert signatures(first.executed) <= signatures(await memo.search(world))


def test_a_sample_says_that_it_is_no_proof_and_its_odds() -> None:
    odds = pct.Odds(runs=2, steps=6, depth=3, faults=1, kinds=2, executions=300)
    drawn = pct.Sampled(Executed(False, 301, 0, 0, None, 1_500, ()), odds, seed=4)
    assert ladder.sampling(drawn, varies=False) == (
        "301 schedules were sampled then (PCT, depth 3, seed 4), none failed, and that is no "
        "proof: a failure that 3 orderings of steps bring about was met with a chance of at least "
        "87 %, of at least 15 % if it needs 1 fault"
    )
    told = ladder.sampling(drawn, varies=True)
    assert told.endswith("and that is no proof")
    few = replace(drawn, odds=replace(odds, steps=10, executions=1, faults=0))
    assert ladder.sampling(few, varies=False).endswith("with a chance of at least 1 in 200")


def test_the_odds_are_those_of_the_paper() -> None:
    odds = pct.Odds(runs=4, steps=20, depth=2, faults=0, kinds=1, executions=100)
    assert odds.of_one(0) == pytest.approx(1 / 80)
    assert odds.of_all(0) == pytest.approx(1 - (1 - 1 / 80) ** 100)
    one_fault = replace(odds, faults=1, kinds=5)
    assert one_fault.of_one(1) == pytest.approx(1 / 80 / 2 / 20 / 5)


async def test_a_call_that_is_not_alike_ends_a_path() -> None:
    async def begin() -> Execution:
        return WorldExecution(toys.world(toys.read_then_write, 2))

    found = await dpor.search(begin, alike=lambda before, now: False)
    assert not found.exhausted
    assert found.first_diverged is not None
    assert "step 1, copy 1, receive 1: expected get order:o, got " in found.first_diverged


# --- schedules ------------------------------------------------------------------------


def reorderings(steps: Sequence[Step]) -> list[Schedule]:
    """All orders of steps that keep those that depend on each other as they are, and each end
    of a run behind the step that leads to it."""
    orders = []
    for order in itertools.permutations(range(len(steps))):
        place = {n: position for position, n in enumerate(order)}
        fits = all(
            place[a] < place[b] or not steps[a].depends_on(steps[b])
            for a, b in itertools.combinations(range(len(steps)), 2)
        ) and all(
            place[n] == place[n - 1] + 1
            for n in range(1, len(steps))
            if steps[n].choice.call is None and not steps[n].first
        )
        if fits:
            orders.append(tuple(steps[n].choice for n in order))
    return orders


async def test_a_reordered_schedule_reaches_the_same_state() -> None:
    shorter = 0
    for seed in range(120 * SHARE):
        world = random_world(seed)
        covered = await memo.search(world, out_of_time=stop_after(300))
        for representative in covered.representatives[:6]:
            path = representative.schedule
            steps, state = await schedule.follow(world, path)
            fewest = schedule.fewest_switches(steps)
            again, same = await schedule.follow(world, fewest)
            assert same == state, seed
            assert Counter(c.actor for c in again) == Counter(c.actor for c in steps)
            assert schedule.switches(fewest) <= schedule.switches(path)
            shorter += schedule.switches(fewest) < schedule.switches(path)
            if len(steps) <= 7:
                best = min(map(schedule.switches, reorderings(steps)))
                assert schedule.switches(fewest) == best, seed
    assert shorter > 5


async def test_steps_that_do_not_depend_on_each_other_may_change_places() -> None:
    changed = 0
    for seed in range(200 * SHARE):
        world = random_world(seed)
        covered = await memo.search(world, out_of_time=stop_after(300))
        for representative in covered.representatives[:8]:
            steps, state = await schedule.follow(world, representative.schedule)
            blocks: list[list[Step]] = []  # an end of a run stays behind what leads to it
            for step in steps:
                if step.choice.call is None and not step.first:
                    blocks[-1].append(step)
                else:
                    blocks.append([step])
            for n in range(1, len(blocks)):
                if any(a.depends_on(b) for a in blocks[n - 1] for b in blocks[n]):
                    continue
                order = [*blocks[: n - 1], blocks[n], blocks[n - 1], *blocks[n + 1 :]]
                _, same = await schedule.follow(world, (s.choice for b in order for s in b))
                assert same == state, seed
                changed += 1
    assert changed > 100


async def test_a_long_schedule_is_reordered_in_no_time() -> None:
    world = toys.world(toys.writes_a_lot_of_its_own, 4)
    state, path = world.initial(), []
    rng = random.Random(1)
    while choices := await world.choices(state):
        state, step = await world.step(state, rng.choice(choices))
        path.append(step)
    assert schedule.switches(schedule.fewest_switches(path)) == 3


def clean(world: World) -> Callable[[State], bool]:
    return lambda state: not world.suspicions(state)


async def first_failure(world: World) -> Schedule:
    covered = await memo.search(world)
    return covered.representatives[0].schedule


async def test_the_racing_pair_is_named_and_the_nearest_passing_schedule() -> None:
    world = toys.world(toys.read_then_write, 2)
    failing = await schedule.simplest(world, await first_failure(world))
    assert [schedule.write_step(c) for c in failing] == [
        "copy 1: get order:o",
        "copy 2: get order:o",
        "copy 2: put order:o d",
        "copy 2 ends",
        "copy 1: put order:o d",
        "copy 1 ends",
    ]
    nearest = await schedule.nearest_passing(world, failing, clean(world))
    assert nearest is not None
    assert nearest.differs_at == 1
    assert nearest.race == (1, 4)  # copy 2 read before copy 1 wrote
    assert nearest.schedule[1].call == "put order:o d"


async def test_the_racing_pair_of_two_runs_of_one_copy_is_named() -> None:
    world = toys.world(toys.read_then_write, 1, 1, kinds=(Fault.REDELIVER,))
    failing = (
        Choice(0, None, 1, "get order:o"),
        Choice(0, Fault.REDELIVER, 1, "put order:o d"),
        Choice(0, None, 2, "get order:o"),
        Choice(0, None, 1, "put order:o d"),
        Choice(0, None, 1, None),
        Choice(0, None, 2, "put order:o d"),
        Choice(0, None, 2, None),
    )
    nearest = await schedule.nearest_passing(world, failing, clean(world))
    assert nearest is not None
    assert nearest.differs_at == 2
    assert nearest.race == (2, 3)  # the second run read before the first one wrote


async def test_a_fault_is_what_differs_where_there_is_no_race() -> None:
    world = toys.world(toys.claim_then_effect, 1, 1, kinds=CRASHES, meaning=PAYS)
    failing = await first_failure(world)
    nearest = await schedule.nearest_passing(world, failing, clean(world))
    assert nearest is not None
    assert nearest.race is None
    assert failing[nearest.differs_at].fault is not None
    assert nearest.schedule[nearest.differs_at].fault is None


async def test_the_nearest_passing_schedule_differs_as_late_as_can_be() -> None:
    world = toys.world(toys.claim_then_effect, 1, 2, kinds=CRASHES, meaning=PAYS)
    claim = "change order:o d absent"
    failing = (
        Choice(0, Fault.CRASH_BEFORE, 1, claim),  # harmless
        Choice(0, Fault.CRASH_AFTER, 2, claim),
        Choice(0, None, 3, claim),
        Choice(0, None, 3, None),
    )
    nearest = await schedule.nearest_passing(world, failing, clean(world))
    assert nearest is not None
    assert nearest.differs_at == 1


async def test_the_nearest_passing_schedule_has_no_fault_of_its_own() -> None:
    failing = await first_failure(toys.world(toys.read_then_write, 2))
    world = toys.world(toys.read_then_write, 2, 1, kinds=CRASHES)
    nearest = await schedule.nearest_passing(world, failing, clean(world))
    assert nearest is not None
    assert {choice.fault for choice in nearest.schedule} == {None}


async def test_a_schedule_is_told_in_the_words_of_another_world() -> None:
    world = toys.world(toys.read_then_write, 2)
    failing = await first_failure(world)
    other = tuple(replace(c, call=c.call and f"{c.call} at noon") for c in failing)
    assert await schedule.retold(world, other) == failing
    with pytest.raises(UsageError, match="step 2 of the schedule does not fit"):
        await schedule.retold(toys.world(toys.conditional_put, 1), failing)


async def test_a_handler_that_always_fails_has_no_passing_schedule() -> None:
    world = toys.world(toys.stores_nothing, 2)
    assert await schedule.nearest_passing(world, await first_failure(world), clean(world)) is None


ORIGIN = schedule.Origin(
    handler="app.handler",
    code="sha256:00",
    tool="1.2.3",
    bounds=Bounds((0, 0), faults=1, limits={Fault.CRASH_AFTER: 1}, batch=2),
    world='{"orders": 1}',
)

texts = st.text(st.characters(codec="utf-8")).filter(lambda text: len(text) < 40)
choices = st.builds(
    Choice,
    copy=st.integers(0, 3),
    fault=st.none() | st.sampled_from(Fault),
    receive=st.integers(1, 4),
    call=st.none() | texts,
    others=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=3).map(tuple),
)
origins = st.builds(
    schedule.Origin,
    handler=texts,
    code=texts,
    tool=texts,
    bounds=st.builds(
        Bounds,
        bodies=st.lists(st.integers(0, 3), min_size=4, max_size=4).map(tuple),
        faults=st.integers(0, 3),
        limits=st.dictionaries(st.sampled_from(Fault), st.integers(1, 3)),
        max_receive_count=st.integers(1, 9),
        max_calls=st.integers(1, 99),
        batch=st.integers(4, 9),
    ),
    world=texts,
)


@given(origins, st.lists(choices, max_size=8).map(tuple))
def test_a_schedule_survives_writing_and_reading(origin: schedule.Origin, path: Schedule) -> None:
    text = schedule.write(origin, path)
    assert schedule.read(text, "race.txt") == (origin, path)
    assert schedule.read(text.replace("\n", "\r\n"), "race.txt") == (origin, path)


def test_a_schedule_file_can_be_read_by_a_person() -> None:
    path = (
        Choice(0, None, 1, "get order:o"),
        Choice(1, Fault.CRASH_AFTER, 1, "put order:o d"),
        Choice(0, None, 1, None),
        Choice(1, None, 2, "say\n\\ü"),
        Choice(1, None, 3, None, ((0, 1),)),
    )
    text = schedule.write(ORIGIN, path)
    assert text == (
        "onceproof schedule, version 2\n"
        "handler: app.handler\n"
        "code: sha256:00\n"
        "tool: 1.2.3\n"
        "bodies: 1 1\n"
        "faults: 1\n"
        "kinds: crash-after-call=1\n"
        "max receive count: 3\n"
        "max calls: 40\n"
        "batch: 2\n"
        'world: {"orders": 1}\n'
        "\n"
        "copy 1: get order:o\n"
        "copy 2 [crash-after-call]: put order:o d\n"
        "copy 1 ends\n"
        "copy 2, receive 2: say\\u{a}\\\\ü\n"
        "copy 2, receive 3 + copy 1 ends\n"
    )
    assert schedule.read("\n# by hand\n".join(text.split("\n", 1)), "x") == (ORIGIN, path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("onceproof schedule", "some text", r"race.txt is not a schedule"),
        ("version 2", "version 3", r"of version 3, and this tool reads version 1 and 2"),
        ("version 2", "version 1", r"line 10: 'batch: 2' stands where 'world: ...' is expected"),
        ("code: sha256:00\n", "", r"line 3: 'tool: 1.2.3' stands where 'code: ...' is expected"),
        ("copy 1 ends", "copy 1 end", r"line 15: 'copy 1 end' is not a step"),
        ("copy 1 ends", "copy 1 ends: x", r"line 15: .* is not a step"),
        ("copy 1 ends", "copy 1", r"line 15: 'copy 1' is not a step"),
        ("copy 1 ends", "copy 0 ends", r"line 15: .* is not a step"),
        ("copy 1 ends", "copy 1 + ends", r"line 15: .* is not a step"),
        ("copy 1 ends", "copy 1 ends [fire]", r"line 15: there is no fault 'fire'"),
        ("copy 1 ends", "copy 3 ends", r"step 3 is of copy 3, and 'bodies' has 2"),
        ("copy 1 ends", "copy 2 + copy 3 ends", r"step 3 is of copy 3, and 'bodies' has 2"),
        ("batch: 2", "batch: 1", r"step 4 is of 2 copies, and 'batch' is 1"),
        ("crash-after-call=1", "fire=1", r"'kinds': there is no fault 'fire'"),
        ("faults: 1", "faults: many", r"'faults' has 'many' where a whole number of at least 0"),
        ("bodies: 1 1", "bodies: 1 0", r"'bodies' has '0' where a whole number of at least 1"),
    ],
)
def test_a_damaged_schedule_is_refused(old: str, new: str, message: str) -> None:
    path = (
        Choice(0, None, 1, "get order:o"),
        Choice(1, Fault.CRASH_AFTER, 1, "put order:o d"),
        Choice(0, None, 1, None),
        Choice(0, None, 2, None, ((1, 2),)),
    )
    text = schedule.write(ORIGIN, path)
    with pytest.raises(UsageError, match=message):
        schedule.read(text.replace(old, new, 1), "race.txt")


def test_a_schedule_of_version_1_is_read() -> None:
    origin = replace(ORIGIN, bounds=replace(ORIGIN.bounds, batch=1))
    path = (Choice(1, None, 2, "get order:o"), Choice(1, None, 2))
    text = schedule.write(origin, path).replace("version 2", "version 1").replace("batch: 1\n", "")
    assert schedule.read(text, "race.txt") == (origin, path)


def test_an_incomplete_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match="ends before 'code: "):
        schedule.read("onceproof schedule, version 1\nhandler: app.handler\n", "race.txt")


async def test_a_schedule_that_no_longer_fits_is_refused() -> None:
    failing = await first_failure(toys.world(toys.read_then_write, 2))
    changed = toys.world(toys.conditional_put, 2)
    with pytest.raises(UsageError, match=r"step 1 .* does not fit") as refused:
        await schedule.follow(changed, failing)
    assert "copy 1: change order:o d absent" in str(refused.value)
    passing = (await memo.search(changed)).representatives[0].schedule
    with pytest.raises(UsageError, match="ends after 2 steps, but more must come"):
        await schedule.follow(changed, passing[:2])
    with pytest.raises(UsageError, match="all copies are settled"):
        await schedule.follow(changed, (*passing, passing[0]))


# --- the ladder -----------------------------------------------------------------------


def test_the_ladder_climbs_copies_then_faults() -> None:
    climbed = [(r.copies, r.faults) for r in ladder.rungs(3, 2)]
    assert climbed == [
        *((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)),
        *((1, 2), (2, 2), (3, 2)),
    ]
    assert [r.copies for r in ladder.rungs(4, 0)] == [1, 2, 3, 4]


def covering(states: int, interleavings: int) -> Covered:
    return Covered(
        exhausted=True,
        states=states,
        transitions=0,
        depth=0,
        interleavings=interleavings,
        final_states=1,
        representatives=(),
    )


def test_the_guarantee_says_what_is_covered_and_what_is_not() -> None:
    def known(rungs: Sequence[ladder.Rung]) -> dict[ladder.Rung, Covered]:
        return {rung: covering(100, 2_000) for rung in rungs}

    two = list(ladder.rungs(3, 1, (Fault.CRASH_BEFORE, Fault.LOST_REPLY)))
    assert ladder.guarantee(known(two), asked=two) == (
        "1, 2 and 3 copies of one order, at most 1 fault of {crash-before-call, lost-reply}: "
        "6,000 interleavings in 300 states covered, none failed; not covered: more than 3 "
        "copies, more than 1 fault, crash-after-call, crash-before-answer, timeout, throttle, "
        "transaction-conflict, stale-read and redeliver."
    )
    asked = list(ladder.rungs(3, 1))
    assert ladder.guarantee(known(asked[:3]), asked=asked) == (
        f"1 copy of one order, at most 1 fault of {{{', '.join(Fault)}}}: "
        "2,000 interleavings in 100 states; 2 copies of one order, no fault: "
        "2,000 interleavings in 100 states covered, none failed; not covered: "
        "2 copies with at most 1 fault, 3 copies with no fault, 3 copies with at most 1 fault, "
        "more than 3 copies, more than 1 fault."
    )
    lone = {ladder.Rung(2, 0): covering(1, 1)}
    assert ladder.guarantee(lone, asked=list(lone), of="two orders") == (
        "2 copies of two orders, no fault: 1 interleaving in 1 state covered, none failed; "
        "not covered: more than 2 copies, any fault."
    )
    done = Executed(True, 7, 0, 0, None, 40, ())
    assert ladder.guarantee({ladder.Rung(2, 0): done}, asked=list(lone)) == (
        "2 copies of one order, no fault: all orders of calls that matter in 7 executions "
        "covered, none failed; not covered: more than 2 copies, any fault."
    )
    nothing = ladder.guarantee({}, asked=[ladder.Rung(1, 0)])
    assert nothing == (
        "nothing is covered; not covered: 1 copy with no fault, more than 1 copy, any fault."
    )
