"""Runs of handlers whose messages and tables have shapes of their own, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import Run, loadtest, names_at, only_run

QUICK = """
[queue]
visibility_timeout = 2
max_receive_count = 1
report_batch_item_failures = true
[load]
orders = 4
copies = 3
poison = 0.01
conflicts = 0.01
concurrency = 2
[expect]
contended_orders = 0
"""

COMMON = '''
import base64, json, os
from decimal import Decimal
from urllib.parse import unquote_plus

import boto3
from botocore.exceptions import ClientError

db = boto3.client("dynamodb")
TABLE = os.environ["TABLE_NAME"]


def checked(order, *names):
    """The order, if it has exactly these members and a good amount."""
    if set(order) != {"id", "amount", *names}:
        raise ValueError("other members")
    if type(order["id"]) is not str or type(order["amount"]) is not int:
        raise ValueError("other types")
    if not 1 <= order["amount"] <= 10:
        raise ValueError("out of range")
    return order


def put(item, key):
    """Store it, or find that it is there already; another one there is a conflict."""
    try:
        db.put_item(
            TableName=TABLE,
            Item=item,
            ConditionExpression="attribute_not_exists(#key)",
            ExpressionAttributeNames={"#key": key},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        if error.response["Item"] != item:
            raise ValueError("a conflict") from error


def handler(event, context):
    failed = []
    for record in event["Records"]:
        try:
            process(record)
        except Exception as error:
            print(repr(error))
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}
'''

SNS = """
[order]
key = "order.ref.id"
body = '''{"meta": {"v": 1},
  "order": {"ref": {"id": "{id}", "amount": {amount}}, "note": "{note}"}}'''
conflict = ["amount"]
amount = { integer = [1, 10] }
note = { text = [1, 4] }
[order.item]
order.ref.amount = "details.amount"
order.note = "details.note"
[order.attributes]
tenant = "blue"
shard = { type = "Number", value = 7 }
[order.envelope]
kind = "sns"
topic = "placed"
"""
SNS_HANDLER = """
def process(record):
    outer = json.loads(record["body"])
    assert outer["Type"] == "Notification" and outer["TopicArn"].endswith(":placed")
    assert outer["MessageAttributes"]["tenant"] == {"Type": "String", "Value": "blue"}
    assert record["messageAttributes"].keys() == {"onceproof.message"}
    body = json.loads(outer["Message"])
    if set(body) != {"meta", "order"} or set(body["order"]) != {"ref", "note"}:
        raise ValueError("other members")
    if type(body["order"]["note"]) is not str:
        raise ValueError("other types")
    order = checked(body["order"]["ref"])
    details = {"amount": {"N": str(order["amount"])}, "note": {"S": body["order"]["note"]}}
    put({"id": {"S": order["id"]}, "details": {"M": details}}, "id")
"""

S3 = """
[order]
key = "id"
envelope = "s3"
conflict = ["amount"]
near_ids = 0.3
amount = { integer = [1, 10] }
[handler.environment]
TABLE_NAME = "{table:orders}"
BUCKET = "{bucket}"
"""
S3_ORDER = 'key = "id"\nenvelope = "s3"\nn = { integer = [1, 2] }'
S3_HANDLER = """
s3 = boto3.client("s3")


def process(record):
    (found,) = json.loads(record["body"])["Records"]
    assert found["s3"]["bucket"]["name"] == os.environ["BUCKET"]
    key = unquote_plus(found["s3"]["object"]["key"])
    content = s3.get_object(Bucket=os.environ["BUCKET"], Key=key)["Body"].read()
    assert len(content) == found["s3"]["object"]["size"]
    order = checked(json.loads(content))
    if key.split("/")[1] != order["id"]:
        raise ValueError("another order's object")
    put({"id": {"S": order["id"]}, "amount": {"N": str(order["amount"])}}, "id")
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
[[table.items]]
role = "guard"
key = "SEEN#*"
"""
LINES = """
[order]
key = "id"
body = '{"id": "{id}", "amount": {amount}, "lines": [{"sku": "{sku}"}, {"sku": "b"}]}'
conflict = ["amount"]
item = { lines = false }
amount = { integer = [1, 10] }
sku = { text = [3, 3] }
envelope = { kind = "eventbridge", source = "shop", detail_type = "OrderPlaced" }
[handler.environment]
TABLE_NAME = "{table:shop}"
"""
LINES_HANDLER = '''
def process(record):
    """The order, its lines, the day's total and a record of the message, all or nothing."""
    event = json.loads(record["body"])
    assert (event["source"], event["detail-type"]) == ("shop", "OrderPlaced")
    order = checked(event["detail"], "lines")
    if type(order["lines"][0]["sku"]) is not str:
        raise ValueError("other types")
    key = {"pk": {"S": "ORDER#" + order["id"]}, "sk": {"S": "META"}}
    meta = key | {"amount": {"N": str(order["amount"])}}
    lines = [
        {"pk": key["pk"], "sk": {"S": f"LINE#{number}"}, "sku": {"S": line["sku"]}}
        for number, line in enumerate(order["lines"])
    ]
    total = {
        "TableName": TABLE,
        "Key": {"pk": {"S": "TOTAL"}, "sk": {"S": "today"}},
        "UpdateExpression": "ADD amount :amount",
        "ExpressionAttributeValues": {":amount": meta["amount"]},
    }
    seen = {"pk": {"S": "SEEN#" + base64.b16encode(order["id"].encode()).decode()}}
    insert = {"TableName": TABLE, "ConditionExpression": "attribute_not_exists(pk)"}
    try:
        db.transact_write_items(
            TransactItems=[
                {"Put": {**insert, "Item": meta}},
                {"Put": {**insert, "Item": seen | {"sk": {"S": "-"}}}},
                *({"Put": {"TableName": TABLE, "Item": line}} for line in lines),
                {"Update": total},
            ]
        )
    except ClientError as error:
        reasons = [one["Code"] for one in error.response.get("CancellationReasons", ())]
        if "ConditionalCheckFailed" not in reasons:
            raise
        there = db.get_item(TableName=TABLE, Key=key, ConsistentRead=True)["Item"]
        if there != meta:
            raise ValueError("a conflict") from error
'''


def run_of(cwd: Path, url: str, configuration: str, process: str, verdict: int) -> Run:
    (cwd / "src").mkdir()
    (cwd / "src" / "app.py").write_text(COMMON + process)
    handler = '[handler]\ncode = "src"\nhandler = "app.handler"\ntimeout = 2\n'
    (cwd / "loadtest.toml").write_text(handler + configuration + QUICK)
    end = loadtest("run", "--endpoint-url", url, cwd=cwd)
    assert end.code == verdict, end.said
    run = only_run(cwd)
    assert run.info.run_id.lower() not in names_at(url).lower()
    return run


@pytest.mark.parametrize(
    ("configuration", "process"),
    [(SNS, SNS_HANDLER), (S3, S3_HANDLER), (SINGLE + LINES, LINES_HANDLER)],
    ids=["sns", "s3", "eventbridge"],
)
def test_a_correct_handler_of_such_messages_passes(
    tmp_path: Path, emulator_url: str, configuration: str, process: str
) -> None:
    run = run_of(tmp_path, emulator_url, configuration, process, verdict=0)
    counts = run.verdict.counts
    assert counts.stored_items == counts.orders
    assert counts.poison == 1
    assert counts.dead_lettered >= 2, "the poison and a conflict"
    if process is LINES_HANDLER:
        kinds = run.rows("SELECT resource, count(*) AS n FROM items GROUP BY 1 ORDER BY 1")
        there = {row["resource"].partition("-shop")[2]: row["n"] for row in kinds}
        assert {name: n for name, n in there.items() if name or n == 4} == {
            "": 4,
            " SEEN#*": 4,
            ", other items": 9,
        }
        (row,) = run.rows("SELECT body FROM messages WHERE kind = 'order' LIMIT 1")
        assert json.loads(row["body"])["detail"]["lines"]


# --- a plan of one's own ----------------------------------------------------------------

PLAN = """
[order]
plan = "consumer:orders"
[handler.environment]
TABLE_NAME = "{table:shop}"
"""
PLAN_FUNCTION = """
import random

import analysis


def orders(seed, load):
    print("not a message")
    dice = random.Random(seed)
    for number in range(load["orders"]):
        order = {"id": f"n-{number}", "amount": dice.randint(1, 9)}
        for copy in range(load["copies"]):
            yield {
                "key": order["id"],
                "body": order,
                "item": {"amount": order["amount"], "by": analysis.WHO},
                "attributes": {"trace": b"\\x01" * (copy + 1)},
            }
        other = {"amount": 10, "by": analysis.WHO}
        yield {"key": order["id"], "body": order | {"amount": 10}, "item": other}
    yield {"body": "{", "kind": "poison"}
"""
KEYED_BY_MESSAGE = '''
def process(record):
    """Keyed by the message, so every copy of an order is an order. A conflict has no trace."""
    assert record["messageAttributes"]["trace"]["binaryValue"].startswith("AQ")
    order = checked(json.loads(record["body"]))
    for pk, sk, more in (
        ("ORDER#" + record["messageId"], "META", {"amount": {"N": str(order["amount"])}}),
        ("ORDER#" + order["id"], "LINE#1", {}),
    ):
        item = {"pk": {"S": pk}, "sk": {"S": sk}, "by": {"S": "shop"}} | more
        db.put_item(TableName=TABLE, Item=item)
'''


def test_a_plan_function_and_a_bug_in_a_single_table(tmp_path: Path, emulator_url: str) -> None:
    """Its modules are called as ours are, and still are its own."""
    (tmp_path / "consumer.py").write_text(PLAN_FUNCTION)
    (tmp_path / "analysis.py").write_text('WHO = "shop"\n')
    run = run_of(tmp_path, emulator_url, SINGLE + PLAN, KEYED_BY_MESSAGE, verdict=1)
    found = {check.kind.value for check in run.verdict.checks if check.count}
    assert found == {"wrong-key", "double-accept"}
    assert (run.verdict.counts.copies, run.verdict.counts.conflicts) == (8, 4)
    assert run.info.plan.arrangement == "by consumer:orders"
    assert run.info.order.attributes == {"id": "pk", "amount": "amount", "by": "by"}


@pytest.mark.parametrize(
    ("command", "order", "why"),
    [
        (("run", "--control"), 'plan = "made:orders"', "--control: goes without order.plan"),
        (("run", "--control"), S3_ORDER, '--control: goes without order.envelope "s3"'),
        (("explore",), 'plan = "made:orders"', "explore goes without order.plan"),
        (("explore",), S3_ORDER, 'explore goes without order.envelope "s3"'),
    ],
)
def test_what_makes_messages_of_its_own_refuses_those(
    tmp_path: Path, command: tuple[str, ...], order: str, why: str
) -> None:
    (tmp_path / "loadtest.toml").write_text(f"[order]\n{order}\n")
    (tmp_path / "made.py").write_text("def orders(**_): yield {'key': 1, 'body': {'id': 1}}\n")
    end = loadtest(*command, cwd=tmp_path)
    assert end.code == 2
    assert why in end.said
    assert not (tmp_path / "runs").exists()
