"""Key locks: who may hold what together, in which order, and that nothing is left over."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumer.key_locks import Key, KeyLocks

A: Key = ("orders", "a")
B: Key = ("orders", "b")


async def steps(count: int = 5) -> None:
    """Let every task that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


class Bench:
    """Holders that stay until they are told to leave."""

    def __init__(self) -> None:
        self.locks = KeyLocks()
        self.inside: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def enter(self, name: str, keys: list[Key], *, exclusive: bool) -> None:
        self._leave[name] = asyncio.Event()

        async def hold() -> None:
            async with self.locks.hold(keys, exclusive=exclusive):
                self.inside.append(name)
                await self._leave[name].wait()
                self.inside.remove(name)

        self._tasks[name] = asyncio.create_task(hold())
        await steps()

    async def leave(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
        await steps()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await steps()


async def test_shared_holders_are_together_and_an_exclusive_one_is_alone() -> None:
    bench = Bench()
    await bench.enter("r1", [A], exclusive=False)
    await bench.enter("r2", [A], exclusive=False)
    await bench.enter("w1", [A], exclusive=True)
    assert bench.inside == ["r1", "r2"]
    await bench.leave("r1")
    assert bench.inside == ["r2"]
    await bench.leave("r2")
    assert bench.inside == ["w1"]
    await bench.leave("w1")
    assert len(bench.locks) == 0


async def test_turns_are_in_the_order_of_arrival_so_nobody_starves() -> None:
    bench = Bench()
    await bench.enter("r1", [A], exclusive=False)
    await bench.enter("w1", [A], exclusive=True)
    await bench.enter("r2", [A], exclusive=False)
    await bench.enter("r3", [A], exclusive=False)
    assert bench.inside == ["r1"]  # r2 does not pass w1
    await bench.leave("r1")
    assert bench.inside == ["w1"]
    await bench.leave("w1")
    assert bench.inside == ["r2", "r3"]
    await bench.leave("r2", "r3")
    assert len(bench.locks) == 0


async def test_other_keys_are_not_held() -> None:
    bench = Bench()
    await bench.enter("a", [A], exclusive=True)
    await bench.enter("b", [B], exclusive=True)
    assert bench.inside == ["a", "b"]
    await bench.leave("a", "b")


async def test_overlapping_sets_in_any_order_do_not_block_each_other_for_ever() -> None:
    bench = Bench()
    await bench.enter("first", [A, B, A], exclusive=True)
    await bench.enter("second", [B, A], exclusive=True)
    assert bench.inside == ["first"]
    await bench.leave("first")
    assert bench.inside == ["second"]
    await bench.leave("second")
    assert len(bench.locks) == 0


async def test_those_behind_a_cancelled_waiter_go_on_at_once() -> None:
    bench = Bench()
    await bench.enter("r1", [A], exclusive=False)
    await bench.enter("w1", [A], exclusive=True)
    await bench.enter("r2", [A], exclusive=False)
    await bench.cancel("w1")
    assert bench.inside == ["r1", "r2"]
    await bench.leave("r1", "r2")
    assert len(bench.locks) == 0


async def test_a_cancelled_holder_of_one_key_gives_it_back_while_waiting_for_the_next() -> None:
    bench = Bench()
    await bench.enter("b", [B], exclusive=True)
    await bench.enter("both", [A, B], exclusive=True)
    await bench.enter("a", [A], exclusive=True)
    assert bench.inside == ["b"]
    await bench.cancel("both")
    assert bench.inside == ["b", "a"]
    await bench.leave("a", "b")
    assert len(bench.locks) == 0


async def test_a_turn_given_at_the_moment_of_cancelling_is_passed_on() -> None:
    bench = Bench()
    await bench.enter("w1", [A], exclusive=True)
    await bench.enter("w2", [A], exclusive=True)
    await bench.enter("w3", [A], exclusive=True)
    bench._leave["w1"].set()
    await steps(1)  # w1 has left and given its turn to w2, which has not run yet
    assert bench.inside == []
    bench._tasks["w2"].cancel()
    await steps()
    assert bench.inside == ["w3"]
    await bench.leave("w3")
    assert len(bench.locks) == 0


KEYS: list[Key] = [("t", name) for name in "abc"]
HOLDER = st.tuples(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
    st.booleans(),  # exclusive
    st.integers(0, 3),  # steps before asking
    st.integers(0, 4),  # steps inside
    st.none() | st.integers(0, 8),  # steps until cancelled
)


@given(st.lists(HOLDER, max_size=10))
def test_whatever_comes_goes_and_is_cancelled_holders_never_conflict(
    holders: list[tuple[list[Key], bool, int, int, int | None]],
) -> None:
    async def play() -> None:
        locks = KeyLocks()
        shared: Counter[Key] = Counter()
        exclusive: Counter[Key] = Counter()

        async def holder(keys: list[Key], alone: bool, before: int, during: int) -> None:
            await steps(before)
            async with locks.hold(keys, exclusive=alone):
                mine = exclusive if alone else shared
                mine.update(set(keys))
                try:
                    for key in keys:
                        assert exclusive[key] <= 1
                        assert not (exclusive[key] and shared[key])
                    await steps(during)
                finally:
                    mine.subtract(set(keys))

        async def cancel_later(task: asyncio.Task[None], after: int | None) -> None:
            if after is not None:
                await steps(after)
                task.cancel()

        tasks = [asyncio.create_task(holder(*entry[:4])) for entry in holders]
        cancels = [cancel_later(task, entry[4]) for task, entry in zip(tasks, holders, strict=True)]
        await asyncio.gather(*cancels)
        async with asyncio.timeout(10):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            result is None or isinstance(result, asyncio.CancelledError) for result in results
        )
        assert len(locks) == 0

    asyncio.run(play())


def test_every_order_of_three_arrivals_ends_with_nothing_held() -> None:
    async def play(kinds: tuple[bool, ...], leaving: tuple[int, ...]) -> None:
        bench = Bench()
        for number, alone in enumerate(kinds):
            await bench.enter(str(number), [A, B], exclusive=alone)
        for number in leaving:
            await bench.leave(str(number))
        assert bench.inside == []
        assert len(bench.locks) == 0

    for kinds in itertools.product([True, False], repeat=3):
        for leaving in itertools.permutations(range(3)):
            asyncio.run(play(kinds, leaving))
