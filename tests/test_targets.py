"""An endpoint in use: what is made and removed there, what counts as proof, what is believed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from analysis.errors import TargetError
from analysis.schema import EffectInfo, Phase, TableInfo, TableRole, item_text
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint, Resources
from tests.cli import Reply, endpoint, forward, names_at

TABLES = (
    TableInfo("orders", TableRole.ORDERS, "id", sort="at", sort_type="N"),
    TableInfo("reference", TableRole.REFERENCE, "id", key_type="B", sort="at", sort_type="N"),
)


@pytest.fixture
def prefix() -> str:
    return f"onceproof-{secrets.token_hex(4)}-"


def opened(url: str) -> Endpoint:
    return Endpoint(url, credentials=LOCAL_CREDENTIALS, connections=20)


async def create(target: Endpoint, prefix: str) -> Resources:
    return await target.create(prefix, TABLES, visibility_timeout_s=30, max_receive_count=3)


async def test_what_is_made_is_there_and_then_gone(emulator_url: str, prefix: str) -> None:
    async with opened(emulator_url) as target:
        made = await create(target, prefix)
        assert made.names["table:orders"] == f"{prefix}orders"
        assert made.names["queue_url"] == made.queue.url
        assert names_at(emulator_url).count(prefix) == 4
        (item,) = [row async for row in target.items(Phase.BEFORE)]
        assert item.resource == f"{prefix}reference"
        assert item.item_key == item_text({"id": {"B": b"reference"}, "at": {"N": "1"}})
        gone = await target.remove()
    assert gone == [
        *(f"queue {prefix}{name}" for name in ("queue", "dlq")),
        *(f"table {prefix}{table.name}" for table in TABLES),
    ]
    assert prefix not in names_at(emulator_url)


EFFECTS = tuple(
    EffectInfo(service, operation, name, "id", f"{service}:{operation} {name}")
    for service, operation, name in (
        ("sqs", "SendMessage", "invoices"),
        ("sqs", "SendMessageBatch", "invoices"),
        ("sqs", "SendMessage", "ledger.fifo"),
        ("sns", "Publish", "receipts"),
        ("sns", "Publish", "audit.fifo"),
        ("http", "POST", "charges"),
        ("dynamodb", "PutItem", "orders"),
    )
)


async def test_queues_and_topics_of_effects_are_made_and_removed(
    emulator_url: str, prefix: str
) -> None:
    async with opened(emulator_url) as target:
        made = await target.create(
            prefix, TABLES, visibility_timeout_s=30, max_receive_count=3, effects=EFFECTS
        )
        names = made.names
        assert names["queue:invoices"] == f"{prefix}invoices"
        assert names["queue:ledger.fifo_url"].endswith(f"/{prefix}ledger.fifo")
        assert names["queue:ledger.fifo_arn"].endswith(f":{prefix}ledger.fifo")
        assert names["topic:receipts"] == f"{prefix}receipts"
        common: dict[str, Any] = {"endpoint_url": emulator_url, "region_name": "us-east-1"}
        sns = boto3.client("sns", **common)
        for topic in ("receipts", "audit.fifo"):
            arn = names[f"topic:{topic}_arn"]
            group = {"MessageGroupId": "one"} if topic == "audit.fifo" else {}
            assert sns.publish(TopicArn=arn, Message="hello", **group)["MessageId"]
        gone = await target.remove()
        assert set(gone) >= {
            *(f"queue {prefix}{name}" for name in ("invoices", "ledger.fifo")),
            *(f"topic {prefix}{name}" for name in ("receipts", "audit.fifo")),
        }
        assert len(gone) == 8
    assert prefix not in names_at(emulator_url) + str(sns.list_topics()["Topics"])


async def test_a_scan_is_read_to_its_last_page(emulator_url: str, prefix: str) -> None:
    def one_a_page(operation: str, body: dict[str, Any]) -> Reply:
        if operation == "Scan":
            assert body["ConsistentRead"] is True
            body["Limit"] = 1
        return forward(emulator_url, operation, body)

    with endpoint(one_a_page) as url:
        async with opened(url) as target:
            await create(target, prefix)
            for at in range(5):
                item = {"id": {"S": "one"}, "at": {"N": str(at)}}
                await target.dynamodb.put_item(TableName=f"{prefix}orders", Item=item)
            rows = [row async for row in target.items(Phase.AFTER)]
            await target.remove()
    assert sum(row.resource == f"{prefix}orders" for row in rows) == 5


NOT_A_PROOF: list[tuple[Reply | None, str]] = [
    (Reply.error(403, "AccessDeniedException"), "refused the credentials"),
    (Reply.error(400, "UnrecognizedClientException"), "refused the credentials"),
    (Reply.error(500, "InternalFailure"), "HTTP 500"),
    (Reply.error(400, "ThrottlingException"), "ThrottlingException"),
    (Reply(404, b"<h1>not found</h1>", "text/html"), "404"),
    (Reply(200, b"{}"), "not AWS"),
    (None, "failed while removing"),
]


@pytest.mark.parametrize("asked", ["GetQueueUrl", "DescribeTable"])
@pytest.mark.parametrize(("reply", "said"), NOT_A_PROOF)
async def test_an_error_is_no_proof_that_something_is_gone(
    asked: str, reply: Reply | None, said: str, emulator_url: str, prefix: str
) -> None:
    removing = False

    def answer(operation: str, body: dict[str, Any]) -> Reply | None:
        return reply if removing and operation == asked else forward(emulator_url, operation, body)

    with endpoint(answer) as url:
        async with opened(url) as target:
            await create(target, prefix)
            removing = True
            with pytest.raises(TargetError, match=said) as raised:
                await target.remove()
            kind = "queue" if asked == "GetQueueUrl" else "table"
            assert f"removing {kind} {prefix}" in str(raised.value)
            left = names_at(emulator_url)
            assert left.count(prefix) == 2, "all the rest is removed nevertheless"
            removing = False
            assert len(await target.remove()) == 4, "it can be tried again"
    assert prefix not in names_at(emulator_url)


@pytest.mark.parametrize("lies", ["DeleteQueue", "DeleteTable"])
async def test_a_deletion_that_is_only_promised_is_found_out(
    lies: str, emulator_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.targets.GONE_TIMEOUT_S", 1.0)
    lying = True

    def answer(operation: str, body: dict[str, Any]) -> Reply:
        if lying and operation == lies:
            return Reply(200, b"{}")
        return forward(emulator_url, operation, body)

    with endpoint(answer) as url:
        async with opened(url) as target:
            await create(target, prefix)
            with pytest.raises(TargetError, match=r"is still there .* remove it by hand"):
                await target.remove()
            lying = False
            await target.remove()
    assert prefix not in names_at(emulator_url)


# --- the self-test ----------------------------------------------------------------------


async def test_the_emulator_passes_the_self_test(emulator_url: str, prefix: str) -> None:
    async with opened(emulator_url) as target:
        await target.self_test(prefix)
    assert prefix not in names_at(emulator_url)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.pop(name, None)


def as_text(body: dict[str, Any]) -> None:
    if body.get("ConditionExpression") == "winner <> :four":
        del body["ConditionExpression"], body["ExpressionAttributeValues"]


@pytest.mark.parametrize(
    ("break_put", "said"),
    [
        (without("ConditionExpression"), "16 of 16 simultaneous conditional puts"),
        (without("ReturnValues"), "ALL_OLD does not return the item that was overwritten"),
        (without("ReturnValuesOnConditionCheckFailure"), "failed condition does not return"),
        (as_text, "numbers are not compared as numbers"),
    ],
)
async def test_an_endpoint_that_is_not_dynamodb_is_found_out(
    break_put: Callable[[dict[str, Any]], None], said: str, emulator_url: str, prefix: str
) -> None:
    def answer(operation: str, body: dict[str, Any]) -> Reply:
        if operation == "PutItem":
            break_put(body)
            if "ConditionExpression" not in body:
                body.pop("ReturnValuesOnConditionCheckFailure", None)
        return forward(emulator_url, operation, body)

    with endpoint(answer) as url:
        async with opened(url) as target:
            with pytest.raises(TargetError, match=said):
                await target.self_test(prefix)
    assert prefix not in names_at(emulator_url), "the table of the test is removed"


async def test_nobody_wins_when_all_are_refused(emulator_url: str, prefix: str) -> None:
    def answer(operation: str, body: dict[str, Any]) -> Reply:
        if operation == "PutItem":
            return Reply.error(400, "ConditionalCheckFailedException")
        return forward(emulator_url, operation, body)

    with endpoint(answer) as url:
        async with opened(url) as target:
            with pytest.raises(TargetError, match="0 of 16 simultaneous conditional puts"):
                await target.self_test(prefix)


async def test_a_number_that_changes_in_the_store_is_found_out(
    emulator_url: str, prefix: str
) -> None:
    def answer(operation: str, body: dict[str, Any]) -> Reply:
        reply = forward(emulator_url, operation, body)
        if operation != "GetItem":
            return reply
        found = json.loads(reply.body)
        found["Item"]["winner"]["N"] = "4.000000000000001"
        return Reply(reply.status, json.dumps(found).encode())

    with endpoint(answer) as url:
        async with opened(url) as target:
            with pytest.raises(TargetError, match="comes back as another"):
                await target.self_test(prefix)
