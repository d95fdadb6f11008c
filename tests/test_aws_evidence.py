"""What is concluded from logs, streams and queues, and what is left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from analysis.schema import (
    NO_ITEM,
    Ack,
    AckOutcome,
    Action,
    Delivery,
    Message,
    MessageKind,
    QueueRole,
    TableInfo,
    TableRole,
    item_text,
)
from consumer.clock import HostClock
from consumer.ledger import STAMP, Ledger
from loadtest.aws.account import Account
from loadtest.aws.deployed import DeployedQueue
from loadtest.aws.evidence import Attribution, Ends, attribute, delivery_rows, invocation_rows
from loadtest.aws.logs import Logged
from loadtest.aws.queues import OwnMessage, own_messages
from loadtest.aws.streams import StreamReader
from tests.aws_endpoint import REGION, Answer, Error, Script, simulated_aws

FIRST, SECOND = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
MESSAGES = {
    sqs_id: Message(number, "a", MessageKind.ORDER, "{}", "{}", 0, 0, 0, sqs_id, 1)
    for number, sqs_id in enumerate((FIRST, SECOND), 1)
}


def _logged(number: int, *lines: str) -> Logged:
    return Logged(
        f"request-{number}", "stream", 1_000 * number, 1_000 * number + 50, True, lines=[*lines]
    )


def _attributed(*invocations: Logged, batch_size: int = 1, all_whole: bool = True) -> Attribution:
    return attribute(invocations, MESSAGES, batch_size, all_whole=all_whole)


def test_every_message_and_every_invocation_must_be_accounted_for() -> None:
    first, second = _logged(1, f"got {FIRST}"), _logged(2, f"got {SECOND}")
    assert _attributed(first, second) == Attribution(
        {"request-1": [FIRST], "request-2": [SECOND]}, None
    )
    for attributed, said in (
        (_attributed(), "shows no invocation"),
        (_attributed(first), "names the ids of 1 message of this run"),
        (_attributed(first, second, _logged(3, "hello")), "of 1 of 3 invocations name no message"),
        (_attributed(first, second, all_whole=False), "had not told all in time"),
        # It speaks of the one that came before: which one was it given?
        (_attributed(first, _logged(2, f"{SECOND} copies {FIRST}")), "more message ids than a"),
    ):
        assert said in (attributed.unseen or "")
    assert _attributed(_logged(1, FIRST, SECOND), batch_size=2).unseen is None


def _ends(*dead: OwnMessage, quiet_at: int | None = 9_000_000_000) -> Ends:
    return Ends(quiet_at, dead, None if quiet_at else "The queue did not run empty.")


def _letter(number: int, sqs_id: str, *, is_marked: bool = True) -> OwnMessage:
    return OwnMessage(number, sqs_id, "handle", 3, 9_000_000_001, is_marked)


def _told(invocations: list[Logged], ends: Ends) -> list[tuple[int | None, object, object]]:
    """Message, queue or invocation, and how each delivery ended."""
    rows = list(
        delivery_rows(MESSAGES, invocation_rows(invocations), _attributed(*invocations), ends)
    )
    acks = {row.delivery_id: row.outcome for row in rows if isinstance(row, Ack)}
    return [
        (
            row.message_no,
            row.invocation_id if row.queue is QueueRole.QUEUE else "dlq",
            acks.get(row.delivery_id),
        )
        for row in rows
        if isinstance(row, Delivery)
    ]


def test_what_is_in_neither_queue_was_deleted_after_its_last_invocation() -> None:
    again = [_logged(1, FIRST), _logged(2, SECOND), _logged(3, FIRST)]
    assert _told(again, _ends()) == [
        (1, 1, AckOutcome.RETURNED),
        (1, 3, AckOutcome.DELETED),
        (2, 2, AckOutcome.DELETED),
    ]
    assert _told([_logged(1, "hello")], _ends()) == [
        (1, None, AckOutcome.DELETED),
        (2, None, AckOutcome.DELETED),
    ]


def test_a_dead_letter_was_returned_each_time() -> None:
    assert _told([_logged(1, FIRST), _logged(2, SECOND)], _ends(_letter(1, FIRST))) == [
        (1, 1, AckOutcome.RETURNED),
        (2, 2, AckOutcome.DELETED),
        (1, "dlq", AckOutcome.DEAD_LETTERED),
    ]


def test_what_a_handler_set_aside_is_not_deleted_as_done() -> None:
    aside = _letter(1, "an id of its own", is_marked=False)
    assert _told([_logged(1, FIRST), _logged(2, SECOND)], _ends(aside)) == [
        (1, 1, AckOutcome.RETURNED),
        (2, 2, AckOutcome.DELETED),
        (1, "dlq", AckOutcome.DEAD_LETTERED),
    ]


def test_before_the_queue_was_empty_nothing_is_known_of_any_end() -> None:
    assert _told([_logged(1, FIRST), _logged(2, "hello")], _ends(quiet_at=None)) == [(1, 1, None)]


# --- streams ------------------------------------------------------------------------------

_ORDERS = TableInfo("orders", TableRole.ORDERS, "id")
_ARN = f"arn:aws:dynamodb:{REGION}:123456789012:table/orders/stream/2026-01-01T00:00:00.000"


def _shard(number: int) -> str:
    return f"shardId-0000000000000000000{number}-00000001"


def _record(key: str, number: int, **images: Any) -> dict[str, Any]:
    event = {(): "", ("NewImage",): "INSERT", ("OldImage",): "REMOVE"}.get((*images,), "MODIFY")
    about = {"Keys": {"id": {"S": key}}, "SequenceNumber": f"{number:030d}", **images}
    about["ApproximateCreationDateTime"] = 1_700_000_000
    return {"eventName": event, "dynamodb": about}


def _item(key: str, quantity: str) -> dict[str, Any]:
    return {"id": {"S": key}, "quantity": {"N": quantity}}


async def _read(answers: Mapping[str, Script], reads: int) -> StreamReader:
    async with (
        simulated_aws(answers) as (url, _),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        reader = StreamReader(
            account, _ORDERS, _ARN, lambda record: record.keys["id"]["S"] == "ours"
        )
        await reader.start()
        for _ in range(reads):
            await reader.read()
        return reader


def _stream(*shards: dict[str, Any]) -> Answer:
    return {"StreamDescription": {"StreamStatus": "ENABLED", "Shards": list(shards)}}


def _iterator(asked: Mapping[str, Any]) -> Answer:
    return {"ShardIterator": f"{asked['ShardId']} {asked['ShardIteratorType']}"}


async def test_a_child_shard_is_read_after_its_parent_and_from_its_beginning() -> None:
    old, new = _item("ours", "1"), _item("ours", "2")
    first, parent, child = map(_shard, range(3))
    pages: dict[str, Answer] = {
        f"{first} LATEST": {"Records": []},  # closed
        f"{parent} TRIM_HORIZON": {
            "Records": [_record("ours", 1, NewImage=old), _record("theirs", 2, NewImage={})],
            "NextShardIterator": "parent's end",
        },
        "parent's end": {"Records": []},
        f"{child} TRIM_HORIZON": {
            "Records": [
                _record("ours", 3, NewImage=new, OldImage=old),
                _record("ours", 4, OldImage=new),
            ],
            "NextShardIterator": "child's end",
        },
        "child's end": {"Records": [], "NextShardIterator": "child's end"},
    }
    then = _stream(
        {"ShardId": child, "ParentShardId": parent}, {"ShardId": parent, "ParentShardId": first}
    )
    reader = await _read(
        {
            "dynamodb:DescribeStream": [_stream({"ShardId": first}), then],
            "dynamodb:GetShardIterator": _iterator,
            "dynamodb:GetRecords": lambda asked: pages[asked["ShardIterator"]],
        },
        reads=3,
    )
    assert (reader.foreign, reader.lost) == (1, None)
    rows = [record.rows(number) for number, record in enumerate(reader.records, 1)]
    assert [item.action for _, item in rows] == [Action.PUT, Action.UPDATE, Action.DELETE]
    assert [(item.before, item.after) for _, item in rows] == [
        (NO_ITEM, item_text(old)),
        (item_text(old), item_text(new)),
        (item_text(new), NO_ITEM),
    ]
    # A write happened at some time in its second.
    call = rows[0][0]
    assert (call.sent_at, call.answered_at) == (1_700_000_000 * 10**9, 1_700_000_001 * 10**9 - 1)


@pytest.mark.parametrize(
    ("code", "lost"), [("ExpiredIteratorException", False), ("TrimmedDataAccessException", True)]
)
async def test_an_iterator_that_expired_is_taken_up_again_and_lost_records_are_told(
    code: str, lost: bool
) -> None:
    first = {"Records": [_record("ours", 1, NewImage=_item("ours", "1"))], "NextShardIterator": "x"}
    second = {"Records": [_record("ours", 2, NewImage=_item("ours", "2"))]}
    starts: list[Mapping[str, Any]] = []

    def iterator(asked: Mapping[str, Any]) -> Answer:
        starts.append(asked)
        return {"ShardIterator": "y"}

    reader = await _read(
        {
            "dynamodb:DescribeStream": _stream({"ShardId": _shard(1)}),
            "dynamodb:GetShardIterator": iterator,
            "dynamodb:GetRecords": [first, Error(code), second],
        },
        reads=1,
    )
    assert (reader.lost is not None) == lost
    assert len(reader.records) == (1 if lost else 2)
    if not lost:
        assert starts[-1]["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
        assert starts[-1]["SequenceNumber"] == f"{1:030d}"


# --- queues -------------------------------------------------------------------------------

_DLQ = DeployedQueue("dlq", "http://q/1/dlq", "arn", 30, False, False, 0)


async def test_messages_of_others_are_put_back_also_when_reading_fails() -> None:
    stamp = {STAMP: {"StringValue": "run-1:7", "DataType": "String"}}
    own = {"MessageId": "m1", "ReceiptHandle": "h1", "Body": "b", "MessageAttributes": stamp}
    other_run = {"onceproof.message": {"StringValue": "run-2:7", "DataType": "String"}}
    foreign = {**own, "MessageId": "m2", "ReceiptHandle": "h2", "MessageAttributes": other_run}
    answers: dict[str, Script] = {
        "sqs:ReceiveMessage": [{"Messages": [own, foreign]}, Error("AccessDenied", "no", 403)],
        "sqs:ChangeMessageVisibilityBatch": {"Successful": []},
    }
    async with (
        simulated_aws(answers) as (url, aws),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        reading = own_messages(account, _DLQ, Ledger("run-1"), HostClock(), id_prefix=None)
        with pytest.raises(Exception, match="AWS refuses sqs:ReceiveMessage"):
            await reading
        aws.answers["sqs:ReceiveMessage"] = [{"Messages": [own, foreign]}, {}]
        found = await own_messages(account, _DLQ, Ledger("run-1"), HostClock(), id_prefix=None)
    assert [(one.message_no, one.receipt_handle) for one in found.own] == [(7, "h1")]
    assert found.foreign == 1
    put_back = [asked for action, asked in aws.requests if "ChangeMessage" in action]
    assert [entry["ReceiptHandle"] for asked in put_back for entry in asked["Entries"]] == [
        "h2",
        "h2",
    ]
    assert all(entry["VisibilityTimeout"] == 0 for asked in put_back for entry in asked["Entries"])


async def test_a_body_is_the_runs_only_with_an_id_of_the_run_in_it() -> None:
    ledger = Ledger("run-1")
    bodies = ('{"id": "a1b2c3-kT4f"}', "{}")  # an order, and poison that anybody could send
    for number, body in enumerate(bodies, 1):
        ledger.plan(Message(number, "k", MessageKind.POISON, body, None, 0))
    sent = [{"MessageId": body, "ReceiptHandle": body, "Body": body} for body in (*bodies, "else")]
    answers: dict[str, Script] = {
        "sqs:ReceiveMessage": [{"Messages": sent}, {}],
        "sqs:ChangeMessageVisibilityBatch": {"Successful": []},
    }
    async with (
        simulated_aws(answers) as (url, _),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        found = await own_messages(account, _DLQ, ledger, HostClock(), id_prefix="a1b2c3-")
    assert [(one.message_no, one.is_marked) for one in found.own] == [(1, False)]
    assert (found.foreign, found.unsure) == (2, 1)
