"""The recorder's lines as evidence, for what an emulator does not make happen."""

from __future__ import annotations

import itertools
import json
from typing import Any

from analysis.schema import (
    NO_ITEM,
    Action,
    Call,
    CallItem,
    Decision,
    Effect,
    EffectInfo,
    Invocation,
    Message,
    MessageKind,
    Outcome,
    Result,
    ResultInfo,
    ResultRow,
    TableInfo,
    TableRole,
    item_text,
)
from consumer.faults import FaultName, FaultRule
from loadtest.aws.logs import Logged
from loadtest.aws.recorded import Recorded, gap

TABLE = TableInfo("orders", TableRole.ORDERS, "id")
KEY = {"id": {"S": "a"}}
ITEM = {**KEY, "quantity": {"N": "4"}}
ROW = Invocation(7, "request", 1, False, 1_000_000, 9_000_000, Outcome.RETURNED)


def line(kind: str, **members: Any) -> str:
    return json.dumps({"onceproof": kind, "environment": "e", **members})


def start(*ids: str, environment: str = "e") -> str:
    messages = [{"id": one, "receives": "1"} for one in ids]
    text = line("start", request_id="r", at=100, cold=True, messages=messages)
    return text.replace('"e"', f'"{environment}"')


def end(**members: Any) -> str:
    return line(
        "end", request_id="r", at=900, **{"outcome": "returned", "response": "null"} | members
    )


def call(number: int, operation: str, body: dict[str, Any], /, **members: Any) -> str:
    about = {
        "service": "dynamodb",
        "region": "eu-west-1",
        "attempt": 1,
        "sdk_id": "sdk",
        "method": "POST",
        "path": "/",
        "target": f"DynamoDB_20120810.{operation}",
        "content_type": "application/x-amz-json-1.0",
        "request": json.dumps(body),
    }
    return line("call", call=number, request_id="r", at=200 + number, **about | members)


def reply(number: int, status: int = 200, body: Any = None, **members: Any) -> str:
    text = json.dumps(body or {})
    return line("reply", call=number, at=300 + number, status=status, reply=text, **members)


def logged(*lines: str, outcome: Outcome | None = None) -> Logged:
    return Logged("request", "stream", 1, 9, True, outcome=outcome, lines=["mine", *lines])


def rows(*lines: str, batch: bool = False) -> tuple[Recorded, list[Any]]:
    message = Message(3, "a", MessageKind.ORDER, "{}", "{}", 0)
    numbers = itertools.count(1)
    recorded = Recorded(
        [TABLE],
        {"m": message},
        report_batch_item_failures=batch,
        result_fields=ResultInfo("done", "again"),
        effects=[EffectInfo("sns", "Publish", "receipts", "id", "sns:Publish receipts")],
        faults=[FaultRule(FaultName.LOST_REPLY)],
        next_id=lambda _: next(numbers),
    )
    one = logged(*lines)
    return recorded, list(recorded.rows(one, recorded.invocation(one, ROW)))


PUT = {"TableName": "orders", "Item": ITEM, "ConditionExpression": "attribute_not_exists(id)"}


def test_an_attempt_without_an_answer_is_unknown_and_its_repeat_is_another_call() -> None:
    refused = {"__type": "x#ConditionalCheckFailedException", "Item": ITEM}
    _, made = rows(
        start("m"),
        call(1, "PutItem", PUT),
        line("reply", call=1, at=301, failed="ReadTimeoutError"),
        call(2, "PutItem", PUT, attempt=2),
        reply(2, 400, refused),
        call(3, "PutItem", PUT),
        end(response='{"again": true}'),
    )
    calls = [row for row in made if isinstance(row, Call)]
    assert [(one.attempt, one.decision, one.error_code, one.answered_at) for one in calls] == [
        (1, Decision.UNKNOWN, "ReadTimeoutError", 301),
        (2, Decision.REJECTED, "ConditionalCheckFailedException", 302),
        (1, Decision.UNKNOWN, None, None),
    ]
    assert all(one.invocation_id == 7 and one.resource == "orders" for one in calls)
    items = [row for row in made if isinstance(row, CallItem)]
    assert [(one.decision, one.before) for one in items] == [
        (Decision.UNKNOWN, None),
        (Decision.REJECTED, item_text(ITEM)),
        (Decision.UNKNOWN, None),
    ]
    assert made[-1] == ResultRow(7, 3, Result.DUPLICATE, '{"again": true}')


def test_what_a_put_replaced_is_known_and_what_a_transaction_replaced_is_not() -> None:
    transaction = {"ClientRequestToken": "t", "TransactItems": [{"Put": PUT}]}
    recorded, made = rows(
        start("m"),
        call(1, "PutItem", PUT),
        reply(1),
        call(2, "GetItem", {"TableName": "orders", "Key": KEY}),
        reply(2, 200, {"Item": ITEM}),
        call(3, "TransactWriteItems", transaction),
        reply(3),
        end(),
    )
    items = [row for row in made if isinstance(row, CallItem)]
    assert [(one.action, one.before) for one in items] == [
        (Action.PUT, NO_ITEM),
        (Action.READ, item_text(ITEM)),
        (Action.PUT, None),
    ]
    assert items[0].after == item_text(ITEM)
    assert recorded.unknown_before == 1


def test_other_services_and_unknown_tables_are_calls_without_items() -> None:
    publish = (
        "Action=Publish&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A1%3Areceipts"
        "&Message=%7B%22id%22%3A+%22a%22%7D"
    )
    form = {
        "service": "sns",
        "target": None,
        "content_type": "application/x-www-form-urlencoded; charset=utf-8",
        "request": publish,
    }
    _, made = rows(
        start("m"),
        call(1, "", {}, **form),
        reply(1),
        call(2, "PutItem", {**PUT, "TableName": "elsewhere"}),
        reply(2),
        end(),
    )
    assert made.pop(1) == Effect(1, 1, 1, "a", Decision.ACCEPTED)
    assert [(row.service, row.operation, row.resource) for row in made] == [
        ("sns", "Publish", "receipts"),
        ("dynamodb", "PutItem", "elsewhere"),
    ]


def test_a_batch_tells_which_of_its_messages_failed() -> None:
    failures = {"batchItemFailures": [{"itemIdentifier": "m"}]}
    _, made = rows(start("other", "m"), end(response=json.dumps(failures)), batch=True)
    assert made == [ResultRow(7, 3, Result.FAILED, "reported in batchItemFailures")]


def test_an_invocation_has_its_own_times_and_environment() -> None:
    recorded, _ = rows(start("m"), end())
    ended = logged(
        start("m"), end(outcome="raised", error_type="E", error_message="e", response=None)
    )
    first = recorded.invocation(ended, ROW)
    assert (first.started_at, first.ended_at, first.cold) == (100, 900, True)
    assert (first.outcome, first.error_type, first.response) == (Outcome.RAISED, "E", None)
    killed = logged(start("m", environment="f"), outcome=Outcome.TIMED_OUT)
    second = recorded.invocation(killed, ROW)
    assert (second.outcome, second.ended_at) == (ROW.outcome, ROW.ended_at)
    assert (first.environment, second.environment) == (1, 2)
    assert recorded.invocation(logged(), ROW) == ROW


def test_lines_that_are_missing_are_noticed() -> None:
    whole = logged(start("m"), end())
    killed = logged(start("m"), outcome=Outcome.TIMED_OUT)
    assert gap([whole, killed]) is None
    for broken in (logged(end()), logged(start("m")), logged(start("m"), end()[:-5]), logged()):
        assert gap([whole, broken]) == (
            "The lines of the recorder are missing in 1 of 2 invocations."
        )
