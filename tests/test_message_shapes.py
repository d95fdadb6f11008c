"""Messages and items of any shape: paths, attributes, envelopes, tables of several kinds."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import UsageError
from analysis.item_kinds import filled, order_key_of, pattern_of
from analysis.schema import ItemsInfo, MessageKind, OrderInfo, TableInfo, TableRole, item_text
from consumer.mapping import sqs_event
from consumer.sqs_queue import QueueAddress
from loadtest import paths, run
from loadtest.config import Settings, load_settings
from loadtest.explore.oracles import SettingsMeaning
from loadtest.plan import Plan, make_plan
from loadtest.stage import table_infos

NESTED = """
[order]
key = "detail.orderId"
body = '''{"source": "{source}", "tags": ["a", {"b": {rank}}], "detail": {"orderId": "{id}",
  "amount": {amount}, "customer": {"name": "{name}", "vip": true}, "lines": [{"sku": "{sku}"}]}}'''
conflict = ["amount", "source"]
source = { choice = ["shop", "app"] }
rank = { integer = [1, 9] }
amount = { decimal = [0.5, 9, 2] }
name = { text = [1, 5] }
sku = { text = [3, 3] }
[order.item]
source = "channel"
detail.customer.name = "who.name"
"detail.lines" = false
"tags.1.b" = "rank"
"""

SINGLE = """
[[table]]
name = "shop"
key = "pk"
sort = "sk"
[[table.items]]
role = "orders"
key = "ORDER#{id}"
sort = "META"
complete_when = { status = ["PAID"] }
[[table.items]]
role = "guard"
key = "IDEMP#*"
"""


def settings_of(cwd: Path, text: str) -> Settings:
    (cwd / "loadtest.toml").write_text(text)
    return load_settings(None, {}, cwd)


def problems_of(cwd: Path, text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        settings_of(cwd, text)
    return [line.removeprefix("loadtest.toml: ") for line in str(caught.value).splitlines()]


def plan_of(cwd: Path, text: str, **load: Any) -> Plan:
    order = settings_of(cwd, text).order
    return make_plan(order, **{"orders": 6, "copies": 2, "conflicts": 0.5, "poison": 2, **load})


# --- places in bodies and items ---------------------------------------------------------


def test_a_name_is_taken_as_it_stands_before_it_is_a_path() -> None:
    value = {"a.b": 1, "a": {"b": 2, "b.c": [{"d.e": 3}]}}
    assert paths.find(value, "a.b") == ("a.b",)
    assert paths.find(value, "a.b.c.0.d.e") == ("a", "b.c", 0, "d.e")
    for name in ("a.c", "a.b.c.1", "a.b.c.x", "b", "a.b.c.0.d.e.f"):
        assert paths.find(value, name) is None


def test_details_are_what_stands_beside_the_key_and_what_is_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, NESTED, orders=1)
    message = next(m for m in plan.messages if m.kind is MessageKind.ORDER)
    body = json.loads(message.body)
    detail = body["detail"]
    assert detail["orderId"] == message.order_key
    assert message.expected_item == item_text(
        {
            "orderId": {"S": message.order_key},
            "amount": {"N": str(detail["amount"])},
            "who": {"M": {"name": {"S": detail["customer"]["name"]}}},
            "channel": {"S": body["source"]},
            "rank": {"N": str(body["tags"][1]["b"])},
        }
    )


def test_paths_reach_run_json(tmp_path: Path) -> None:
    assert settings_of(tmp_path, NESTED).order_info() == OrderInfo(
        "detail.orderId",
        {
            "detail.orderId": "orderId",
            "detail.amount": "amount",
            "source": "channel",
            "detail.customer.name": "who.name",
            "tags.1.b": "rank",
        },
    )


def test_poison_reaches_into_the_object_of_the_order(tmp_path: Path) -> None:
    text = NESTED.replace("key =", 'poison = ["extra-field", "missing-field"]\nkey =')
    bodies = [m.body for m in plan_of(tmp_path, text).messages if m.kind is MessageKind.POISON]
    assert sum('"unexpected": true, "amount"' in " ".join(body.split()) for body in bodies) == 6
    assert all(json.loads(body)["detail"] for body in bodies)


# --- message attributes -----------------------------------------------------------------

ATTRIBUTES = """
[order]
key = "id"
n = { integer = [1, 3] }
note = { text = [1, 1], optional = 0.5 }
[order.attributes]
tenant = "a"
trace = "{id}/{n}"
weight = 2.5
digest = { type = "Binary.sha", value = "{note}" }
"""


def test_attributes_are_filled_like_the_body_and_left_out_with_their_field(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ATTRIBUTES, conflicts=0, orders=20)
    noted = 0
    for message in plan.messages:
        told = {one.name: (one.type, one.value) for one in message.attributes}
        assert told["tenant"] == ("String", "a")
        assert told["weight"] == ("Number", "2.5")
        if message.kind is MessageKind.POISON:
            continue
        body = json.loads(message.body)
        assert told["trace"] == ("String", f"{body['id']}/{body['n']}")
        assert told.get("digest") == (
            ("Binary.sha", body["note"].encode()) if "note" in body else None
        )
        noted += "note" in body
    assert 0 < noted < len(plan.messages)
    other = plan_of(tmp_path, ATTRIBUTES.replace('"a"', '"b"'), conflicts=0, orders=20)
    assert plan.digest() != other.digest()


def test_an_event_spells_attributes_as_lambda_does() -> None:
    address = QueueAddress("url", "arn", "", "us-east-1", 30, 3)
    message = {
        "MessageId": "m",
        "ReceiptHandle": "r",
        "Body": "{}",
        "MessageAttributes": {
            "n": {"DataType": "Number", "StringValue": "4"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    }
    (record,) = json.loads(sqs_event([message], address))["Records"]
    lists: dict[str, list[str]] = {"stringListValues": [], "binaryListValues": []}
    assert record["messageAttributes"] == {
        "n": {"stringValue": "4", "dataType": "Number", **lists},
        "b": {"binaryValue": "AP8=", "dataType": "Binary", **lists},
    }


# --- envelopes --------------------------------------------------------------------------

SIMPLE = '[order]\nkey = "id"\nconflict = ["n"]\nn = { integer = [1, 9] }\n'


def enveloped(name: str, more: str = "") -> str:
    return f"{SIMPLE}[order.envelope]\nkind = '{name}'\n{more}"


def inner(kind: str, plan: Plan, body: str) -> str:
    outer = json.loads(body)
    match kind:
        case "sns":
            return str(outer["Message"])
        case "eventbridge":
            return json.dumps(outer["detail"])
    (record,) = outer["Records"]
    return plan.objects[record["s3"]["object"]["key"]]


@pytest.mark.parametrize("kind", ["sns", "eventbridge", "s3"])
def test_an_envelope_holds_the_order_and_ids_of_its_own(tmp_path: Path, kind: str) -> None:
    plan, plain = plan_of(tmp_path, enveloped(kind)), plan_of(tmp_path, SIMPLE)
    valid = [
        (message, before)
        for message, before in zip(plan.messages, plain.messages, strict=True)
        if message.kind is not MessageKind.POISON
    ]
    for message, before in valid:
        assert json.loads(inner(kind, plan, message.body)) == json.loads(before.body)
        assert (message.kind, message.expected_item) == (before.kind, before.expected_item)
    assert len({message.body for message, _ in valid}) == len(valid)
    assert plan.digest() == plan_of(tmp_path, enveloped(kind)).digest()
    assert plan.digest() != plan_of(tmp_path, enveloped(kind), seed=2).digest()


@pytest.mark.parametrize("kind", ["sns", "eventbridge", "s3"])
def test_poison_spoils_the_order_or_what_is_around_it(tmp_path: Path, kind: str) -> None:
    poison = [
        m for m in plan_of(tmp_path, enveloped(kind), poison=40).messages if m.expected_item is None
    ]
    ways: Counter[str] = Counter()
    for message in poison:
        try:
            outer = json.loads(message.body)
        except ValueError:
            ways["no JSON"] += 1
            continue
        payload = {"sns": '"Message"', "eventbridge": '"detail"', "s3": '"object"'}[kind]
        whole = isinstance(outer, dict) and payload in message.body
        if kind == "s3" and isinstance(outer, dict):
            assert len(outer["Records"]) == 1, "else it is like an s3:TestEvent"
        ways["inside" if whole else "around"] += 1
    assert ways.keys() == {"no JSON", "inside", "around"}


def test_the_envelope_of_sns(tmp_path: Path) -> None:
    more = 'topic = "t"\nsubject = "An order"\n[order.attributes]\ntenant = "a"\n'
    plan = plan_of(tmp_path, enveloped("sns", more), poison=0)
    assert all(message.attributes == () for message in plan.messages)
    outer = json.loads(plan.messages[0].body)
    assert outer["Type"] == "Notification"
    assert outer["TopicArn"].endswith(":t")
    assert outer["Subject"] == "An order"
    assert outer["MessageAttributes"] == {"tenant": {"Type": "String", "Value": "a"}}
    assert outer["Timestamp"] == "2026-01-01T00:00:00.000Z"


def test_different_contents_of_an_order_are_different_objects(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, enveloped("s3"), conflicts=1, poison=0)
    assert len(plan.objects) == 12
    assert plan.objects[f"orders/{plan.messages[0].order_key}/1.json"]
    body = json.loads(plan.for_bucket("b").messages[0].body)
    assert body["Records"][0]["s3"]["bucket"]["arn"] == "arn:aws:s3:::b"


# --- tables of several kinds ------------------------------------------------------------


def test_kinds_of_items_reach_run_json(tmp_path: Path) -> None:
    loaded = settings_of(tmp_path, SINGLE + SIMPLE)
    table = table_infos(loaded)[0]
    assert table == TableInfo(
        "shop",
        TableRole.ORDERS,
        "pk",
        sort="sk",
        items=(
            ItemsInfo(TableRole.ORDERS, "ORDER#{id}", "META", {"status": ["PAID"]}),
            ItemsInfo(TableRole.GUARD, "IDEMP#*"),
        ),
    )
    plan = make_plan(loaded.order, orders=1, copies=1)
    item = json.loads(plan.messages[0].expected_item or "")
    assert item["pk"] == {"S": f"ORDER#{plan.messages[0].order_key}"}


FORMS = st.sampled_from(["ORDER#{id}", "{id}", "A.{id}+x", "*#{id}", "{id}#*", "META", "L#*", "[x"])


@settings(deadline=None, max_examples=50)
@given(FORMS, st.text(max_size=6), st.text("#aMETALx.+[", max_size=8))
def test_python_and_the_judge_read_a_form_alike(form: str, order_key: str, text: str) -> None:
    with duckdb.connect() as connection:
        for value in (text, filled(form, order_key) or order_key):
            asked = "SELECT regexp_matches($1, $2), regexp_extract($1, $2, $3)"
            found = connection.execute(asked, [value, pattern_of(form), int("{id}" in form)])
            row = found.fetchone()
            assert row is not None
            kind = ItemsInfo(TableRole.ORDERS, form)
            key = order_key_of(kind, value)
            assert row[0] is (key is not None)
            if key is not None and "{id}" in form:
                assert row[1] == key
        if order_key and "*" not in form and "{id}" in form:
            assert order_key_of(ItemsInfo(TableRole.ORDERS, form), value) == order_key


def test_explore_knows_which_item_is_the_order(tmp_path: Path) -> None:
    loaded = settings_of(tmp_path, SINGLE + SIMPLE)
    meaning = SettingsMeaning([], table_infos(loaded), loaded.order_info(), [])

    def stored(pk: str, sk: str, **more: Any) -> Any:
        return meaning.stored("shop key", json.dumps({"pk": {"S": pk}, "sk": {"S": sk}, **more}))

    order = stored("ORDER#7", "META", n={"N": "4"}, status={"S": "PAID"})
    assert (order.order, order.complete) == ("7", True)
    assert not stored("ORDER#7", "META").complete
    for pk, sk in (("ORDER#7", "LINE#1"), ("IDEMP#7", "META"), ("TOTALS", "META")):
        assert stored(pk, sk) is None


# --- problems ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            NESTED.replace('"{id}"', '"x"'),
            "order.body: has no {id}, the place of the order id",
        ),
        (
            NESTED.replace("orderId\n", "x").replace("detail.orderId", "detail.id"),
            'order.body: must be an object with {id} at "detail.id", the path to the order id',
        ),
        (
            NESTED.replace('source = "channel"', ""),
            'order.conflict: "source" is not among the details that are compared: name it in '
            "order.item",
        ),
        (
            NESTED.replace('"tags.1.b"', '"tags.2.b"'),
            "order.item.tags.2.b: the body has no such field",
        ),
        (
            NESTED.replace('"rank"', '"who"'),
            'order.item: "who" and "who.name" would be one within the other',
        ),
        (
            NESTED.replace('"detail.lines" = false', '"detail.lines" = true'),
            "order.item.detail.lines: must be the name of an attribute, or false where the item "
            "does not have it (got true)",
        ),
        (
            SIMPLE + "[order.attributes]\na = { type = 'Text', value = 'x' }",
            "order.attributes.a.type: must be String, Number or Binary, perhaps with a label as "
            'in Number.int (got "Text")',
        ),
        (
            SIMPLE + "[order.attributes]\na = true",
            'order.attributes.a: must be a text, a number, or { type = "String" | "Number" | '
            '"Binary", value = "..." } (got true)',
        ),
        (
            SIMPLE + "[order.attributes]\na = '{m}'",
            "order.attributes.a: {m} has no generator",
        ),
        (
            SIMPLE + "[order.attributes]\na = { type = 'Number', value = 'x' }",
            'order.attributes.a: is no number (got "x")',
        ),
        (
            ATTRIBUTES + "size = { type = 'Number', value = '{note}' }",
            'order.attributes.size: is no number (got "x")',
        ),
        (
            "[order]\nkey = 'id'\nenvelope = 'sns'\n"
            + "".join(f"t{n} = {{ text = [0, 100000] }}\n" for n in range(11)),
            "order.body: may grow to 1100707 bytes, envelope included; at most 1047552 can be sent",
        ),
        (
            SIMPLE + "[order.attributes]\n'AWS.a' = 'x'",
            "order.attributes.AWS.a: must be up to 256 letters, digits, _, - and single full "
            "stops within; AWS. and Amazon. are taken",
        ),
        (
            SIMPLE + "[order.attributes]\n'onceproof.message' = 'x'",
            "order.attributes.onceproof.message: is the attribute by which a run knows its "
            "messages",
        ),
        (
            SIMPLE + "[order.attributes]\n" + "".join(f"a{n} = 'x'\n" for n in range(10)),
            "order.attributes: may hold 9: SQS takes 10 a message, and one tells the run's own",
        ),
        (
            SIMPLE + "envelope = 'sqs'",
            'order.envelope.kind: must be one of "sns", "s3", "eventbridge" (got "sqs")',
        ),
        (
            SIMPLE + "envelope = 3",
            'order.envelope: must be "sns", "s3", "eventbridge" or a table with kind (got 3)',
        ),
        (
            enveloped("sns", "source = 'x'"),
            "order.envelope: source is none of sns's settings: topic, subject",
        ),
        (
            enveloped("s3", "object_key = 'x'"),
            "order.envelope.object_key: has no {id}, the place of the order id",
        ),
        (
            enveloped("s3", "object_key = '{id}'"),
            "order.envelope.object_key: needs {n} with order.conflict: an order's different "
            "contents are different objects",
        ),
        (
            enveloped("s3", "object_key = '{id}{n}{x}'"),
            "order.envelope: object_key: {x} is not known here: {id} is the order's id, {n} the "
            "number of its content",
        ),
        (
            enveloped("s3", "[order.attributes]\na = 'x'"),
            "order.attributes: messages from S3 have no message attributes",
        ),
        (
            SINGLE + "[[table.items]]\nrole = 'orders'\nkey = 'B#{id}'",
            "table[0].items[2].role: only one kind of a table can be the orders; declare the "
            "others as other",
        ),
        (
            SINGLE + "[[table.items]]\nrole = 'other'\nkey = 'IDEMP#*'",
            "table[0].items[2]: another kind of this table has the same keys",
        ),
        (
            SINGLE + "[[table.items]]\nrole = 'other'",
            'table[0].items[2]: needs key or sort, the form of its keys: key = "ORDER#{id}"',
        ),
        (
            SINGLE + "[[table.items]]\nrole = 'reference'\nkey = 'R'",
            'table[0].items[2].role: must be "orders", "guard" or "other": what must not change '
            "is a table of its own",
        ),
        (
            SINGLE + "[[table.items]]\nrole = 'other'\nkey = 'R#{ix}'",
            "table[0].items[2].key: {ix} is not known here: {id} stands for the order's id, * for "
            "any text",
        ),
        (
            SINGLE.replace("ORDER#{id}", "ORDER"),
            "table[0].items[0]: needs {id}, the place of the order's id, in key or sort",
        ),
        (
            SINGLE.replace('sort = "sk"\n', ""),
            "table[0].items[0].sort: the table has no sort key: set sort beside its key",
        ),
        (
            SINGLE.replace('key = "pk"\n', 'key = "pk"\nrole = "orders"\n'),
            "table[0].role: goes without items: set it there, [[table.items]] role",
        ),
        (
            SINGLE.replace('sort = "sk"\n', 'sort = "sk"\nsort_type = "N"\n'),
            "table[0].items[0].sort: needs a key of type S (is N)",
        ),
    ],
)
def test_a_problem_is_named_with_its_cure(tmp_path: Path, text: str, problem: str) -> None:
    assert problems_of(tmp_path, text) == [problem]


# --- what README shows ------------------------------------------------------------------


def test_the_examples_of_the_readme_work(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    section = text.partition("## Your messages")[2].partition("\n## ")[0]
    nested, around, table, by_function = re.findall(r"```toml\n(.*?)```", section, re.S)
    (function,) = re.findall(r"```python\n(.*?)```", section, re.S)
    (tmp_path / "messages.py").write_text(function)
    nested_plan = plan_of(tmp_path, nested)
    assert all(
        '"channel":{"S":"shop"}' in (m.expected_item or '"channel":{"S":"shop"}')
        for m in nested_plan.messages
    )
    assert '"Type": "Notification"' in plan_of(tmp_path, SIMPLE + around, poison=0).messages[0].body
    assert settings_of(tmp_path, table + SIMPLE).tables[0].order_items is not None
    planned = run.plan_of(settings_of(tmp_path, by_function + "[load]\norders = 2\n"))
    assert [message.kind.value for message in planned.messages].count("copy") == 8
