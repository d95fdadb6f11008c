"""``[order] plan``: a function of the user's makes the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from analysis.errors import UsageError
from analysis.schema import MessageKind, OrderInfo, item_text
from loadtest import plan_function
from loadtest.aws.run import with_prefix
from loadtest.config import load_settings
from loadtest.orders import MessageAttribute
from loadtest.plan import Plan
from loadtest.run import plan_of


def plan(cwd: Path, code: str, more: str = "", flags: Mapping[str, object] | None = None) -> Plan:
    (cwd / "made.py").write_text(dedent(code))
    (cwd / "loadtest.toml").write_text(f'[order]\nplan = "made:orders"\n{more}')
    return plan_of(load_settings(None, flags or {}, cwd))


def problem(cwd: Path, code: str, more: str = "") -> str:
    with pytest.raises(UsageError) as caught:
        plan(cwd, code, more)
    return str(caught.value)


ORDERS = """
    import random
    def orders(seed, load):
        dice = random.Random(seed)
        for number in range(load["orders"]):
            order = {"id": number, "n": dice.random(), "tags": ["a", {"b": True}]}
            for copy in range(load["copies"]):
                yield {"key": number, "body": order, "group": "g"}
            yield {"key": number, "body": order | {"n": None}, "attributes": {"a": 5, "b": b"x"}}
        yield {"kind": "poison", "body": "{"}
"""


def test_messages_are_understood(tmp_path: Path) -> None:
    flags = {"load.orders": 2, "load.copies": 2, "load.rate": 10.0}
    made = plan(tmp_path, ORDERS, flags=flags)
    order, copy, conflict = made.messages[:3]
    assert [m.kind.value for m in made.messages] == 2 * ["order", "copy", "conflict"] + ["poison"]
    assert [m.offset_ns for m in made.messages[:3]] == [0, 100_000_000, 200_000_000]
    body = json.loads(order.body)
    assert order.expected_item == copy.expected_item
    assert order.expected_item == item_text(
        {
            "id": {"N": "0"},
            "n": {"N": str(body["n"])},
            "tags": {"L": [{"S": "a"}, {"M": {"b": {"BOOL": True}}}]},
        }
    )
    assert order.group == "g"
    assert '"n":{"NULL":true}' in str(conflict.expected_item)
    assert conflict.attributes == (
        MessageAttribute("a", "Number", "5"),
        MessageAttribute("b", "Binary", b"x"),
    )
    assert made.order == OrderInfo("id", {"id": "id", "n": "n", "tags": "tags"})
    poison = made.messages[-1]
    assert (poison.order_key, poison.expected_item) == ("poison-7", None)
    assert made.digest() == plan(tmp_path, ORDERS, flags=flags).digest()
    assert made.digest() != plan(tmp_path, ORDERS, flags={**flags, "load.seed": 2}).digest()


def test_details_come_from_the_body_by_path_or_from_the_item(tmp_path: Path) -> None:
    code = """
        def orders(seed, load):
            body = {"detail": {"id": "a", "n": 1, "x": {"y": 2}}, "at": 3}
            yield {"key": "a", "body": body}
            yield {"key": "b", "body": "<b/>", "item": {"n": 1.5, "total.sum": 4}}
            yield {"key": "b", "body": "<b />", "item": {"total.sum": 4, "n": 1.50}}
    """
    made = plan(tmp_path, code, 'key = "detail.id"\nitem = { detail.x.y = "y", detail.n = "m" }')
    first, second, third = made.messages
    assert first.expected_item == item_text({"id": {"S": "a"}, "m": {"N": "1"}, "y": {"N": "2"}})
    assert second.expected_item == third.expected_item
    assert third.kind is MessageKind.COPY
    assert made.order is not None
    assert set(made.order.attributes.values()) == {"id", "m", "y", "n", "total.sum"}


def test_the_users_frames_are_shown_and_no_others(tmp_path: Path) -> None:
    said = problem(
        tmp_path,
        """
        def orders(seed, load):
            yield {"key": "a", "body": {"id": "a"}}
            yield helper(seed)

        def helper(seed):
            return 1 / 0
        """,
    )
    first, *lines = said.splitlines()
    assert first == "order.plan: made:orders failed:"
    assert [line.strip().partition(", ")[2] for line in lines if "File" in line] == [
        "line 4, in orders",
        "line 7, in helper",
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere", "failed:\nTraceback (most recent call last):\n  File"),
        ("def others(): pass", "AttributeError: module 'made' has no attribute 'orders'"),
        ("def orders(seed): yield {}", "got an unexpected keyword argument 'load'"),
        ("def orders(seed, load): return 5", "'int' object is not iterable"),
        ("def orders(seed, load): yield 5", "TypeError: message 1 is not a dict but int"),
        (
            "def orders(seed, load): yield {'key': 'a', 'body': {1, 2}}",
            "TypeError: a message holds {1, 2}, which is not JSON",
        ),
        (
            "import os\ndef orders(seed, load):\n    print('bye', flush=True)\n    os._exit(3)",
            "ended its process (code 3) before its last message. It printed: bye",
        ),
        ("import sys\nsys.exit(4)", "SystemExit: 4"),
        ("def orders(seed, load): return []", "yields no message at all"),
        (
            "def orders(seed, load): yield {'body': 'x', 'kind': 'poison'}",
            "yields no message of an order: all are poison",
        ),
        (
            "import random\ndef orders(seed, load):\n    yield {'key': 'a', 'body': {'id': 'a'}}\n"
            "    yield {'key': 'a', 'body': {'id': 'a', 'n': random.random()}}",
            "does not yield the same messages each time: message 2 was {",
        ),
        (
            "def orders(seed, load):\n    for key in {'a', 'b', 'c', 'd', 'e', 'f', 'g'}:\n"
            "        yield {'key': key, 'body': {'id': key}}",
            "does not yield the same messages each time: message",
        ),
    ],
)
def test_a_function_that_does_not_make_a_plan(tmp_path: Path, code: str, said: str) -> None:
    told = problem(tmp_path, code)
    assert told.startswith("order.plan: made:orders ")
    assert said in told
    assert "plan_child" not in told


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("{'key': 'a'}", '"body" must be text, or what becomes a JSON text'),
        ("{'body': {'id': 'a'}}", '"key" must be the order\'s id, text or a whole number'),
        (
            "{'key': 'a', 'body': {'id': 'b'}}",
            "\"key\" is 'a', but its body says 'b' at id",
        ),
        (
            "{'key': 'a', 'body': 'x'}",
            'has no "item", and its body is no JSON object with "id" in it ([order] key) from '
            "which to take the details",
        ),
        ("{'key': 'a', 'body': 'x', 'item': []}", '"item" must be the order\'s details: '),
        ("{'key': 'a', 'body': 'x', 'sort': 1}", '"sort" is none of its fields: key, body, kind, '),
        ("{'key': 'a', 'body': 'x', 'kind': 'x'}", '"kind" must be one of order, copy, conflict, '),
        ("{'key': 'a', 'body': 'x', 'group': ''}", '"group" must be text of 1 to 128 characters'),
        ("{'key': 'a', 'body': 'x' * 2**20, 'item': {'n': 1}}", "has 1048576 bytes; at most 10475"),
        (
            "{'key': 'a', 'body': {'id': 'a'}, 'attributes': {'AWS.x': '1'}}",
            "cannot have an attribute of the name 'AWS.x'",
        ),
        (
            "{'key': 'a', 'body': {'id': 'a'}, 'attributes': {'x': ''}}",
            'attribute "x" needs the type String, Number or Binary, and a value',
        ),
        (
            "{'key': 'a', 'body': {'id': 'a'}, 'attributes': {'x': True}}",
            'attribute "x" must be text, a number, bytes, or a dict with type and value',
        ),
        (
            "{'key': 'a', 'body': {'id': 'a'}, 'kind': 'copy'}",
            "is a copy of order 'a', of which there is no message of kind order",
        ),
    ],
)
def test_what_is_no_message(tmp_path: Path, message: str, said: str) -> None:
    told = problem(tmp_path, f"def orders(seed, load): yield {message}")
    assert told.startswith(f"order.plan: made:orders yields message 1: {said}")


def test_keys_begin_with_the_prefix_of_a_run_in_an_account(tmp_path: Path) -> None:
    code = """
        def orders(seed, load):
            yield {"key": load["id_prefix"] + "a", "body": "x", "item": {"n": 1}}
            yield {"body": "x", "kind": "poison"}
            if seed == 2:
                yield {"key": "b", "body": "x", "item": {"n": 1}}
    """
    plan(tmp_path, code)
    loaded = with_prefix(load_settings(None, {}, tmp_path), "a1b2c3")
    keys = [message.order_key for message in plan_of(loaded).messages]
    assert keys == ["a1b2c3-a", "a1b2c3-poison-2"]
    loaded = with_prefix(load_settings(None, {"load.seed": 2}, tmp_path), "a1b2c3")
    with pytest.raises(UsageError, match=r'message 3: "key" must begin with load\["id_prefix"\]'):
        plan_of(loaded)


def test_kinds_must_be_what_the_messages_are(tmp_path: Path) -> None:
    told = problem(
        tmp_path,
        """
        def orders(seed, load):
            for kind, n in (("order", 1), ("order", 1), (None, 1)):
                yield {"key": "a", "body": {"id": "a", "n": n}, "kind": kind}
            for kind, n in (("conflict", 1), (None, 1), ("copy", 2)):
                yield {"key": "b", "body": {"id": "b", "n": n}, "kind": kind}
            for kind in ("poison", None):
                yield {"key": "c", "body": {"id": "c"}, "kind": kind}
        """,
    )
    assert [line.partition(" yields ")[2] for line in told.splitlines()] == [
        "message 2: is the order 'a', and so is message 1: further ones are a copy or a conflict",
        "message 4: is a conflict, but has the same details as message 5, the order",
        "message 6: is a copy, but has other details than message 5, the order",
        "message 7: is poison, and another message has its key 'c': give each poison message a "
        "key of its own, or none",
    ]


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = """
        def orders(seed, load):
            while True:
                yield {"key": "a", "body": {"id": "a"}}
    """
    monkeypatch.setattr(plan_function, "MAX_MESSAGES", 50)
    assert "yields more than a run can send: at most 50 messages" in problem(tmp_path, endless)
    monkeypatch.setattr(plan_function, "TIME_LIMIT_S", 0.2)
    waits = "import time\ndef orders(seed, load): time.sleep(60)"
    assert problem(tmp_path, waits) == (
        "order.plan: made:orders had not yielded all its messages after 0.2 s."
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("body = '{}'", "order.body: goes without plan: its function makes the messages"),
        ("n = { integer = [1, 2] }", "order.n: goes without plan: its function makes the messages"),
        ("key = 1", "order.key: must be text (got 1)"),
    ],
)
def test_settings_beside_a_plan(tmp_path: Path, more: str, said: str) -> None:
    assert problem(tmp_path, "", more) == f"loadtest.toml: {said}"


@pytest.mark.parametrize("name", ["made", "made:", "made.py:orders()", ":orders", "made:a.b"])
def test_the_name_of_a_function(tmp_path: Path, name: str) -> None:
    (tmp_path / "loadtest.toml").write_text(f'[order]\nplan = "{name}"')
    with pytest.raises(UsageError, match=r"order\.plan: must be module:function, a function in"):
        load_settings(None, {}, tmp_path)


def test_a_field_may_be_called_plan(tmp_path: Path) -> None:
    text = '[order]\nkey = "id"\nplan = { choice = ["basic", "premium"] }\n'
    (tmp_path / "loadtest.toml").write_text(text)
    (message, *_) = plan_of(load_settings(None, {}, tmp_path)).messages
    assert json.loads(message.body)["plan"] in ("basic", "premium")
