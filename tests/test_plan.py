"""The plan: what is sent, in which order and when, from a seed."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.schema import MessageKind, item_text, typed_value
from loadtest.orders import (
    Choice,
    Dice,
    Field,
    NumberRange,
    OrderShape,
    PoisonKind,
    Text,
    fill,
    members,
    placeholders,
    poison_bodies,
)
from loadtest.plan import Arrangement, Plan, PlannedMessage, make_plan

SIMPLE = OrderShape(
    key="id",
    template='{"id": "{id}", "quantity": {quantity}}',
    fields={"quantity": Field(NumberRange(1, 10, 0))},
    attributes={"id": "id", "quantity": "quantity"},
    conflict=("quantity",),
)
RICH = OrderShape(
    key="order",
    template=(
        '{ "note": "{note}", "order": {order}, "lines": [{"sku": "x-{sku}", "n": {n}}],\n'
        '  "price": {price}, "gift": {gift}, "fixed": 4.50 }'
    ),
    fields={
        "note": Field(Text(0, 8), optional=0.4),
        "sku": Field(Choice(("a", 'b"\\', "ü"))),
        "n": Field(NumberRange(-3, 3, 0)),
        "price": Field(NumberRange(150, 225, 2)),
        "gift": Field(Choice((True, False)), optional=0.5),
    },
    attributes={
        name: f"at_{name}" for name in ("note", "order", "lines", "price", "gift", "fixed")
    },
    conflict=("price", "gift", "sku"),
    near_ids=0.3,
)
SHAPES = {"simple": SIMPLE, "rich": RICH}


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "shape": draw(st.sampled_from([SIMPLE, RICH])),
        "orders": draw(st.integers(1, 40)),
        "copies": draw(st.integers(1, 6)),
        "conflicts": draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        "poison": draw(st.sampled_from([0.0, 0.02, 0.5, 1.0])),
        "rate_per_s": draw(st.sampled_from([None, 0.5, 7, 1000.0])),
        "arrangement": draw(st.sampled_from(list(Arrangement))),
        "seed": draw(st.integers(0, 2**63 - 1)),
    }


def by_order(plan: Plan) -> dict[str, list[PlannedMessage]]:
    messages: dict[str, list[PlannedMessage]] = defaultdict(list)
    for message in plan.messages:
        messages[message.order_key].append(message)
    return messages


def details(shape: OrderShape, message: PlannedMessage) -> str:
    body = json.loads(message.body, parse_float=Decimal)
    return item_text({shape.attributes[name]: typed_value(value) for name, value in body.items()})


def share(fraction: float, count: int) -> int:
    return max(1, int(fraction * count + 0.5)) if fraction else 0


@settings(deadline=None)
@given(asked())
def test_every_order_has_its_messages_and_no_more(asked: dict[str, Any]) -> None:
    plan = make_plan(**asked)
    kinds = {
        key: Counter(message.kind for message in messages)
        for key, messages in by_order(plan).items()
    }
    poison = [key for key, count in kinds.items() if MessageKind.POISON in count]
    orders = {key: count for key, count in kinds.items() if key not in poison}

    wanted = asked["orders"] + share(asked["shape"].near_ids, asked["orders"])
    assert len(orders) == wanted == plan.orders()
    assert len(poison) == share(asked["poison"], wanted)
    assert all(kinds[key].total() == 1 for key in poison)
    assert all(count[MessageKind.ORDER] == 1 for count in orders.values())
    assert all(count[MessageKind.COPY] == asked["copies"] - 1 for count in orders.values())
    assert all(count[MessageKind.CONFLICT] <= 1 for count in orders.values())
    conflicts = sum(count[MessageKind.CONFLICT] for count in orders.values())
    assert conflicts == share(asked["conflicts"], wanted)
    assert [message.message_no for message in plan.messages] == list(
        range(1, len(plan.messages) + 1)
    )


@settings(deadline=None)
@given(asked())
def test_copies_are_identical_and_conflicts_differ_in_their_details(asked: dict[str, Any]) -> None:
    for key, messages in by_order(make_plan(**asked)).items():
        same = [m for m in messages if m.kind in {MessageKind.ORDER, MessageKind.COPY}]
        assert len({(m.body, m.expected_item) for m in same}) <= 1
        assert [m.kind for m in same[:1]] in ([], [MessageKind.ORDER])
        for message in messages:
            if message.kind is MessageKind.POISON:
                assert message.expected_item is None
                continue
            assert json.loads(message.body)[asked["shape"].key] == key
            assert message.expected_item == details(asked["shape"], message)
            if message.kind is MessageKind.CONFLICT:
                assert message.expected_item != same[0].expected_item


@settings(deadline=None)
@given(asked())
def test_other_spellings_say_the_same(asked: dict[str, Any]) -> None:
    spelled = make_plan(**asked | {"shape": replace(asked["shape"], spellings=True)})
    plain = make_plan(**asked)
    for one, other in zip(plain.messages, spelled.messages, strict=True):
        assert (one.order_key, one.kind, one.expected_item) == (
            other.order_key,
            other.kind,
            other.expected_item,
        )
        if one.kind is MessageKind.COPY:
            assert json.loads(one.body, parse_float=Decimal) == json.loads(
                other.body, parse_float=Decimal
            )
        else:
            assert one.body == other.body


def test_copies_in_other_spellings_have_other_bytes() -> None:
    plan = make_plan(replace(SIMPLE, spellings=True), orders=10, copies=5)
    for messages in by_order(plan).values():
        assert len({message.body for message in messages}) > 2


@settings(deadline=None)
@given(asked())
def test_the_same_arguments_give_the_same_plan(asked: dict[str, Any]) -> None:
    plan = make_plan(**asked)
    again = make_plan(**asked)
    other = make_plan(**asked | {"seed": asked["seed"] + 1})
    assert plan == again
    assert plan.digest() == again.digest() != other.digest()


@pytest.mark.parametrize(
    ("shape", "arrangement", "digest"),
    [
        (
            "simple",
            Arrangement.BURST,
            "b8102511e75b97c376869fbc2a5100325a078f9dca75073aa9b7473af039c6b3",
        ),
        (
            "rich",
            Arrangement.INTERLEAVED,
            "113792ae80f0b2d6fdc9b49b79e11b9f1bb8ef18feb1b4232c481da5de3ca0f2",
        ),
        (
            "rich",
            Arrangement.SPREAD,
            "cbbe0c7dbb679eeba5e3e218738212919ac8d4b85faa1d6b3de44d5630716a85",
        ),
    ],
)
def test_the_plan_is_the_same_on_every_machine(
    shape: str, arrangement: Arrangement, digest: str
) -> None:
    plan = make_plan(
        SHAPES[shape],
        orders=50,
        copies=3,
        conflicts=0.1,
        poison=0.2,
        rate_per_s=30,
        arrangement=arrangement,
        seed=7,
    )
    assert plan.digest() == digest


def test_more_poison_leaves_ids_and_details_of_the_orders_as_they_are() -> None:
    few = by_order(make_plan(SIMPLE, orders=30, copies=2, poison=0.1))
    many = by_order(make_plan(SIMPLE, orders=30, copies=2, poison=1.0, conflicts=0.5))
    orders = {k: m[0].body for k, m in few.items() if m[0].kind is not MessageKind.POISON}
    assert all(body in {m.body for m in many[key]} for key, body in orders.items())


# --- order ids --------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_ids_mix_cases_digits_and_a_hyphen(seed: int) -> None:
    for key in by_order(make_plan(SIMPLE, orders=20, copies=1, seed=seed)):
        assert any(c.islower() for c in key)
        assert any(c.isupper() for c in key)
        assert any(c.isdigit() for c in key)
        assert key.count("-") == 1
        assert key.replace("-", "").isalnum()


def test_near_ids_differ_in_case_zeros_or_blanks_only_and_stand_beside_each_other() -> None:
    shape = OrderShape("id", SIMPLE.template, SIMPLE.fields, SIMPLE.attributes, near_ids=0.5)
    keys = list(by_order(make_plan(shape, orders=40, copies=2)))
    near = [
        (first, second)
        for first, second in pairwise(keys)
        if first.strip().lstrip("0").lower() == second.strip().lstrip("0").lower()
    ]
    assert len(keys) == 60
    assert len(near) == 20
    assert {"case" if a == b.swapcase() else b.replace(a, "_") for a, b in near} == {
        "case",
        "0_",
        " _",
        "_ ",
    }


@pytest.mark.parametrize(
    ("key_type", "template", "attribute"),
    [
        ("N", '{"id": {id}}', {"N": "{}"}),
        ("N", '{"id": "{id}"}', {"N": "{}"}),
        ("S", '{"id": {id}}', {"S": "{}"}),
    ],
)
def test_the_expected_key_has_the_type_of_the_table(
    key_type: str, template: str, attribute: dict[str, str]
) -> None:
    shape = OrderShape("id", template, {}, {"id": "pk"}, key_type=key_type)
    for message in make_plan(shape, orders=5, copies=1).messages:
        ((kind, text),) = attribute.items()
        assert message.expected_item == item_text({"pk": {kind: text.format(message.order_key)}})


def test_a_binary_key_is_expected_as_its_bytes() -> None:
    shape = OrderShape("id", '{"id": "{id}"}', {}, {"id": "pk"}, key_type="B")
    (message,) = make_plan(shape, orders=1, copies=1).messages
    assert message.expected_item == item_text({"pk": typed_value(message.order_key.encode())})


# --- arrangement and times --------------------------------------------------------------


@settings(deadline=None)
@given(asked())
def test_in_a_burst_the_messages_of_an_order_are_adjacent(asked: dict[str, Any]) -> None:
    plan = make_plan(**asked | {"arrangement": Arrangement.BURST})
    runs = [key for key, _ in groupby(plan.messages, key=lambda message: message.order_key)]
    assert len(runs) == len(set(runs))


@settings(deadline=None)
@given(asked())
def test_spread_messages_of_an_order_are_far_apart(asked: dict[str, Any]) -> None:
    asked |= {"shape": SIMPLE, "arrangement": Arrangement.SPREAD, "poison": 0.0}
    plan = make_plan(**asked)
    # An order of n messages has one in each n-th of the run.
    for messages in by_order(plan).values():
        apart = [b.message_no - a.message_no for a, b in pairwise(messages)]
        assert all(
            gap >= len(plan.messages) // len(messages) - asked["orders"] / 2 for gap in apart
        )
        if not asked["conflicts"]:
            assert set(apart) <= {asked["orders"]}


@settings(deadline=None)
@given(asked())
def test_interleaved_messages_of_an_order_come_one_a_round(asked: dict[str, Any]) -> None:
    asked |= {"shape": SIMPLE, "arrangement": Arrangement.INTERLEAVED}
    plan = make_plan(**asked | {"poison": 0.0, "conflicts": 0.0})
    orders = [message.order_key for message in plan.messages]
    rounds = [orders[i : i + asked["orders"]] for i in range(0, len(orders), asked["orders"])]
    assert all(sorted(each) == sorted(rounds[0]) for each in rounds)


def test_interleaved_rounds_are_shuffled_each_for_itself() -> None:
    plan = make_plan(SIMPLE, orders=20, copies=4, arrangement=Arrangement.INTERLEAVED)
    orders = [message.order_key for message in plan.messages]
    assert len({tuple(orders[i : i + 20]) for i in range(0, 80, 20)}) == 4


@settings(deadline=None)
@given(asked())
def test_times_follow_the_rate(asked: dict[str, Any]) -> None:
    plan = make_plan(**asked)
    if asked["rate_per_s"] is None:
        assert {message.offset_ns for message in plan.messages} == {0}
        return
    first_of: dict[str, int] = {}
    for number, message in enumerate(plan.messages):
        position = number
        if asked["arrangement"] is Arrangement.BURST:
            position = first_of.setdefault(message.order_key, number)
        assert abs(message.offset_ns - position * 1e9 / asked["rate_per_s"]) <= 1


def test_a_conflict_may_come_anywhere_in_its_order() -> None:
    plan = make_plan(SIMPLE, orders=60, copies=3, conflicts=1.0)
    places = {
        [message.kind for message in messages].index(MessageKind.CONFLICT)
        for messages in by_order(plan).values()
    }
    assert places == {0, 1, 2, 3}


# --- poison -----------------------------------------------------------------------------


def is_good(body: str) -> bool:
    """What the strictest handler would accept: the fields, types and range of SIMPLE."""
    try:
        order = json.loads(body)
    except ValueError:
        return False
    return (
        isinstance(order, dict)
        and set(order) == {"id", "quantity"}
        and isinstance(order["id"], str)
        and type(order["quantity"]) is int
        and 1 <= order["quantity"] <= 10
    )


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_poison_is_never_an_order(seed: int) -> None:
    plan = make_plan(SIMPLE, orders=20, copies=1, poison=1.0, seed=seed)
    for message in plan.messages:
        assert is_good(message.body) == (message.kind is not MessageKind.POISON)


def test_the_kinds_of_poison_take_turns() -> None:
    ways = poison_bodies(SIMPLE, "k-1", Dice(1, "poison"))
    assert list(ways) == list(PoisonKind)
    assert ways[PoisonKind.BAD_JSON][0].startswith('{"id": "k-1", "quantity": ')
    quantity = json.loads(ways[PoisonKind.ARRAY][0])[0]["quantity"]
    assert ways[PoisonKind.MISSING_FIELD] == (f'{{"quantity": {quantity}}}', '{"id": "k-1"}')
    assert ways[PoisonKind.OUT_OF_RANGE] == (
        '{"id": "k-1", "quantity": 0}',
        '{"id": "k-1", "quantity": 11}',
    )
    assert f'{{"id": "k-1", "quantity": "{quantity}"}}' in ways[PoisonKind.WRONG_TYPE]
    assert '{"id": "k-1", "quantity": true}' in ways[PoisonKind.WRONG_TYPE]
    assert f'{{"id": 7, "quantity": {quantity}}}' in ways[PoisonKind.WRONG_TYPE]

    plan = make_plan(SIMPLE, orders=80, copies=1, poison=0.1)
    poison = {m.order_key: m.body for m in plan.messages if m.kind is MessageKind.POISON}
    assert len(poison) == len(PoisonKind)
    assert sum(body in {"{}", "null"} or body.startswith("[") for body in poison.values()) == 3


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_poison_of_any_shape_differs_from_its_order_as_its_kind_says(seed: int) -> None:
    ways = poison_bodies(RICH, "k-1", Dice(seed, "poison"))
    order = json.loads(ways[PoisonKind.ARRAY][0])[0]
    for kind, bodies in ways.items():
        for body in bodies:
            if kind is PoisonKind.BAD_JSON:
                with pytest.raises(ValueError, match=r"delimiter|Expecting"):
                    json.loads(body)
                continue
            # As text: True == 1 in Python.
            assert json.dumps(json.loads(body)) != json.dumps(order)
    # The members that every order has: gift and note may be missing, sku is part of a text.
    assert len(ways[PoisonKind.MISSING_FIELD]) == 3
    for body in ways[PoisonKind.EXTRA_FIELD]:
        assert set(json.loads(body)) - set(order) == {"unexpected"}


def test_only_the_asked_kinds_of_poison_are_made() -> None:
    kinds = (PoisonKind.NULL, PoisonKind.EMPTY_OBJECT)
    shape = OrderShape("id", '{"id": "{id}"}', {}, {"id": "id"}, poison=kinds)
    plan = make_plan(shape, orders=10, copies=1, poison=1.0)
    bodies = Counter(m.body for m in plan.messages if m.kind is MessageKind.POISON)
    assert bodies == {"{}": 5, "null": 5}


# --- the template -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "body"),
    [
        ('{"a": {a}, "b": {b}, "c": "{c}"}', '{"a": "x\\"y", "b": 2.50, "c": "q"}'),
        ('{"a": {a}, "gone": {z}, "c": "{c}"}', '{"a": "x\\"y", "c": "q"}'),
        ('{"gone": "{z}", "c": "{c}"}', '{"c": "q"}'),
        ('{"c": "{c}" , "gone" : {z} }', '{"c": "q"  }'),
        ('{"gone": {z}}', "{}"),
        ('{"o": {"gone": {z}}, "t": "a: {a}, {b}"}', '{"o": {}, "t": "a: x\\"y, 2.50"}'),
        ('{"t": "a, \\"b\\": {c}", "gone": {z}}', '{"t": "a, \\"b\\": q"}'),
    ],
)
def test_a_template_is_filled_byte_for_byte(template: str, body: str) -> None:
    assert fill(template, {"a": 'x"y', "b": Decimal("2.50"), "c": "q"}) == body
    json.loads(body)


def test_placeholders_and_members() -> None:
    template = '{"a": {x}, "b": "{y}", "c": "no. {z}", "d": [{w}], "e": {v}, "f": "{v}"}'
    assert placeholders(template) == ("x", "y", "z", "w", "v")
    assert members(template) == ("x", "y")


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_any_choice_of_members_can_be_left_out(present: list[bool]) -> None:
    names = [name for name, is_there in zip("abcd", present, strict=True) if is_there]
    template = '{"a": {a},"b": "{b}", "c" :{c}\n, "d": {d}}'
    assert json.loads(fill(template, dict.fromkeys(names, "v"))) == dict.fromkeys(names, "v")


# --- chance -----------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**64), st.integers(1, 10**40))
def test_dice_stay_below_their_bound(seed: int, count: int) -> None:
    assert 0 <= Dice(seed, "test").below(count) < count


def test_dice_reach_every_value_about_equally_often() -> None:
    dice = Dice(1, "test")
    counts = Counter(dice.below(6) for _ in range(6000))
    assert set(counts) == set(range(6))
    assert all(850 < count < 1150 for count in counts.values())


def test_draws_cover_both_ends_of_a_range_and_all_its_digits() -> None:
    dice = Dice(1, "test")
    assert {str(NumberRange(-1, 1, 2).draw(dice)) for _ in range(60)} == {"-0.01", "0.00", "0.01"}
    big = NumberRange(10**37, 10**37 + 1, 0)
    assert {format(big.draw(dice), "f") for _ in range(20)} == {str(10**37), str(10**37 + 1)}
    assert {len(Text(0, 2).draw(dice)) for _ in range(60)} == {0, 1, 2}


def test_a_hundred_thousand_messages_take_little_memory() -> None:
    tracemalloc.start()
    try:
        plan = make_plan(SIMPLE, orders=10_000, copies=10)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan.messages) == 100_000
    assert kept < 40_000_000
    assert peak < 80_000_000
