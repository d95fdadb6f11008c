"""What people do to a running consumer: redrives, a plan sent again, an item deleted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from analysis.schema import CallItem, ItemsInfo, TableInfo, TableRole
from consumer.clock import HostClock
from consumer.faults import FaultName, FaultRule
from consumer.recorder import Recorder
from loadtest.operations import ItemDeletion
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint
from tests.cli import Reply, endpoint, forward, names_at
from tests.mapping_lab import Carried, carry_out, plan_of

NEEDS_A_SECOND_CHANCE = """
def work(orders, run):
    (order,) = orders
    ids = {message for e in noted("start", order["id"]) for message in e["messages"]}
    if order["id"].startswith("late") and len(ids) < 2:
        raise ValueError("not yet")
    return order | store(order)
"""
"""Refuses a late order until it comes under another message id."""

QUEUE = {"visibility_timeout": 2, "max_receive_count": 1}
ORDERS = ("order-1", "late-1", "late-2")


def assert_redriven(ended: Carried) -> None:
    assert ended.settled
    for number in (2, 3):
        first, dead, again = ended.deliveries(number)
        assert (first["outcome"], dead["outcome"], again["outcome"]) == (
            "returned",
            "dead_lettered",
            "deleted",
        )
        assert dead["sqs_message_id"] == first["sqs_message_id"] != again["sqs_message_id"]
        (sent,) = ended.rows(f"FROM messages WHERE message_no = {number}")
        assert sent["sqs_message_id"] == first["sqs_message_id"], "the first send stays"
    assert ended.outcomes(1) == ["deleted"]
    refused, done = ended.seen("late-1")
    assert refused.messages != done.messages
    assert len(ended.rows("FROM items WHERE phase = 'after' AND item_key LIKE '%late%'")) == 2


def test_after_everything_has_settled_dead_letters_go_back(
    tmp_path: Path, emulator_url: str
) -> None:
    ended = carry_out(
        tmp_path,
        emulator_url,
        NEEDS_A_SECOND_CHANCE,
        plan_of(*ORDERS),
        FaultRule(FaultName.REDRIVE),
        queue=QUEUE,
    )
    assert_redriven(ended)
    (fault,) = ended.fired("redrive")
    assert fault["detail"] == (
        "2 messages received and sent again, without StartMessageMoveTask"
    ), "the embedded endpoint has none"


def test_the_endpoint_moves_them_itself_where_it_can(tmp_path: Path, emulator_url: str) -> None:
    moved: list[str] = []
    asked = 0

    def answer(operation: str, body: dict[str, Any]) -> Reply:
        nonlocal asked
        if operation == "StartMessageMoveTask":
            moved.extend(move(emulator_url, body["SourceArn"]))
            return Reply(200, b'{"TaskHandle": "task"}')
        if operation == "ListMessageMoveTasks":
            asked += 1
            status = "RUNNING" if asked == 1 else "COMPLETED"
            return Reply(200, json.dumps({"Results": [{"Status": status}]}).encode())
        return forward(emulator_url, operation, body)

    with endpoint(answer) as url:
        ended = carry_out(
            tmp_path,
            url,
            NEEDS_A_SECOND_CHANCE,
            plan_of(*ORDERS),
            FaultRule(FaultName.REDRIVE),
            queue=QUEUE,
        )
    assert_redriven(ended)
    assert (len(moved), asked) == (2, 2), "nothing was hidden from the task, and its end awaited"
    (fault,) = ended.fired("redrive")
    assert fault["detail"] == "2 messages by StartMessageMoveTask"


def move(url: str, source_arn: str) -> list[str]:
    """What StartMessageMoveTask does: all visible messages go back, under new ids. It is
    a while before the first receive shows them."""

    def ask(operation: str, **body: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(forward(url, operation, body).body)
        return found

    name = source_arn.rpartition(":")[2]
    source = ask("GetQueueUrl", QueueName=name)["QueueUrl"]
    target = ask("GetQueueUrl", QueueName=name.removesuffix("dlq") + "queue")["QueueUrl"]
    wanted = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    found = ask("ReceiveMessage", QueueUrl=source, **wanted).get("Messages", [])
    for message in found:
        copied = {"MessageAttributes": message["MessageAttributes"], "DelaySeconds": 2}
        ask("SendMessage", QueueUrl=target, MessageBody=message["Body"], **copied)
        ask("DeleteMessage", QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
    return [message["MessageId"] for message in found]


def test_early_a_dead_letter_goes_back_once_and_at_once(tmp_path: Path, emulator_url: str) -> None:
    never = "def work(orders, run):\n    if orders[0]['id'] == 'never': raise ValueError\n"
    ended = carry_out(
        tmp_path,
        emulator_url,
        never,
        plan_of("never", "order-1"),
        FaultRule(FaultName.REDRIVE, option="early"),
        FaultRule(FaultName.LONG_DELAY, message=2, seconds=(4, 4)),
        queue={"visibility_timeout": 1, "max_receive_count": 1},
    )
    assert ended.settled
    assert ended.outcomes(1) == ["returned", "dead_lettered"] * 2, "once, not again and again"
    assert len({row["sqs_message_id"] for row in ended.deliveries(1)}) == 2
    _, again = ended.seen("never")
    (last,) = ended.seen("order-1")
    assert again.started_ns < last.started_ns, "in the middle of the run"
    (fault,) = ended.fired("redrive")
    new_id = ended.deliveries(1)[2]["sqs_message_id"]
    assert (fault["message_no"], fault["detail"]) == (1, f"received and sent again as {new_id}")


def test_the_whole_plan_is_sent_again(tmp_path: Path, emulator_url: str) -> None:
    ended = carry_out(
        tmp_path,
        emulator_url,
        NEEDS_A_SECOND_CHANCE,
        plan_of("order-1", "order-2"),
        FaultRule(FaultName.REDRIVE),
        FaultRule(FaultName.RESEND),
        queue={"visibility_timeout": 10},
    )
    assert ended.settled
    assert ended.fired("redrive") == [], "nothing was in the dead-letter queue"
    for number in (1, 2):
        first, again = ended.deliveries(number)
        assert first["sqs_message_id"] != again["sqs_message_id"]
        assert (first["receive_count"], again["receive_count"]) == (1, 1)
        (sent,) = ended.rows(f"FROM messages WHERE message_no = {number}")
        assert sent["sqs_message_id"] == first["sqs_message_id"], "the first send stays"
        results = ended.rows(
            f"SELECT result FROM results WHERE message_no = {number} ORDER BY invocation_id"
        )
        assert [row["result"] for row in results] == ["processed", "duplicate"]
    last = max(row["acked_at"] for row in ended.rows("FROM acks"))
    (fault,) = ended.fired("resend")
    assert fault["detail"] == "2 messages"
    assert ended.started_ns < fault["at"] < last


# --- an item that somebody deletes ------------------------------------------------------


class Guard:
    """In the gateway's place; keeps what it was asked and told."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str]] = []
        self.learnt: list[CallItem] = []

    @asynccontextmanager
    async def outside_write(self, table: str, item_key: str) -> AsyncIterator[None]:
        self.open.append((table, item_key))
        yield

    def learn(self, row: CallItem) -> None:
        self.learnt.append(row)


@pytest.mark.parametrize(
    ("key_form", "sort_form"), [("ORDER#{id}", "META"), ("SHOP#*", "ORDER#{id}")]
)
async def test_of_several_kinds_of_items_the_order_is_deleted(
    key_form: str, sort_form: str, tmp_path: Path, emulator_url: str
) -> None:
    kinds = (ItemsInfo(TableRole.ORDERS, key_form, sort_form), ItemsInfo(TableRole.GUARD, "D#*"))
    table = TableInfo("shop", TableRole.ORDERS, "pk", sort="sk", items=kinds)
    guard, recorder = Guard(), Recorder(tmp_path)
    prefix = f"onceproof-kinds-{len(key_form)}-"
    async with Endpoint(emulator_url, credentials=LOCAL_CREDENTIALS, connections=2) as target:
        made = await target.create(prefix, [table], visibility_timeout_s=9, max_receive_count=2)
        name = made.tables[0].name
        keys = {1: "wanted", 2: "never stored"}
        deletion = ItemDeletion(
            target.dynamodb, made.tables[0], "pk", keys, guard, recorder, HostClock()
        )
        for form in (sort_form, "LINE#1#{id}", "{id}"):
            for order in ("wanted", "wanted too"):
                pk, sk = (one.replace("{id}", order).replace("*", "1") for one in (key_form, form))
                await target.dynamodb.put_item(
                    TableName=name, Item={"pk": {"S": pk}, "sk": {"S": sk}}
                )
        assert await deletion(2) is None
        assert await deletion(1) == 1
        assert await deletion(1) is None, "it is gone"
        assert len((await target.dynamodb.scan(TableName=name))["Items"]) == 5
        await target.remove()
    recorder.close()
    (learnt,) = guard.learnt
    pk, sk = (form.replace("{id}", "wanted").replace("*", "1") for form in (key_form, sort_form))
    assert json.loads(learnt.item_key) == {"pk": {"S": pk}, "sk": {"S": sk}}


@pytest.mark.parametrize(
    ("attribute", "key", "sort"), [("id", "id", "at"), ("number", "id", None), ("at", "id", "at")]
)
async def test_the_item_is_found_by_the_key_that_the_store_uses(
    attribute: str, key: str, sort: str | None, tmp_path: Path, emulator_url: str
) -> None:
    table = TableInfo("orders", TableRole.ORDERS, key, sort=sort)
    guard, recorder = Guard(), Recorder(tmp_path)
    prefix = f"onceproof-deletion-{attribute}-"
    async with Endpoint(emulator_url, credentials=LOCAL_CREDENTIALS, connections=2) as target:
        made = await target.create(prefix, [table], visibility_timeout_s=9, max_receive_count=2)
        deletion = ItemDeletion(
            target.dynamodb,
            made.tables[0],
            attribute,
            {1: "wanted", 2: "never stored"},
            guard,
            recorder,
            HostClock(),
        )
        for other in ("wanted", "other"):
            item = {name: {"S": "same"} for name in ("id", "at", "number")}
            item |= {"id": {"S": f"own-{other}"}, attribute: {"S": other}}
            await target.dynamodb.put_item(TableName=made.tables[0].name, Item=item)
        assert await deletion(2) is None
        assert await deletion(1) == 1
        assert await deletion(1) is None, "it is gone"
        (left,) = (await target.dynamodb.scan(TableName=made.tables[0].name))["Items"]
        assert left[attribute] == {"S": "other"}
        await target.remove()
    recorder.close()
    assert prefix not in names_at(emulator_url)
    (learnt,) = guard.learnt
    assert [(learnt.resource, learnt.item_key)] == guard.open
    assert learnt.after == "{}"
    assert json.loads(learnt.before or "")[attribute] == {"S": "wanted"}
    lines = (tmp_path / "call_items.jsonl").read_text().splitlines()
    assert [json.loads(line)["decision"] for line in lines] == ["unknown", "accepted"], (
        "on record before it is sent"
    )
