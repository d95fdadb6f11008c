"""Stale replies, worked out from what was written before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.schema import NO_ITEM, Action, CallItem, Decision, item_text
from consumer.dynamodb_wire import parse, parse_reply
from consumer.stale_reads import PreviousImages, stale

A, B = {"id": {"S": "a"}}, {"id": {"S": "b"}}


def write(
    key: dict[str, Any],
    before: str | None,
    decision: Decision = Decision.ACCEPTED,
    action: Action = Action.PUT,
) -> CallItem:
    return CallItem(1, "t", item_text(key), action, decision=decision, before=before, after=None)


def read(
    operation: str, request: dict[str, Any], reply: dict[str, Any], *written: CallItem
) -> dict[str, Any] | None:
    """The stale reply; None when it is no other."""
    previous = PreviousImages()
    for row in written:
        previous.learn(row)
    asked = parse(operation, json.dumps(request).encode())
    body = json.dumps(reply).encode()
    content = parse_reply(body)
    assert asked is not None
    assert content is not None
    changed = stale(asked, body, content, previous, {"t": ("id",)}.get)
    return None if changed is None else json.loads(changed[0])


GET = {"TableName": "t", "Key": A}


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ([write(A, NO_ITEM)], True),
        ([write(A, NO_ITEM), write(A, None)], False),  # what it replaced is not known
        ([write(A, NO_ITEM), write(A, None, Decision.UNKNOWN)], False),
        ([write(A, NO_ITEM), write(A, item_text(A), Decision.REJECTED)], True),
        ([write(A, NO_ITEM), write(A, None, Decision.FAILED)], True),
        ([write(A, NO_ITEM, action=Action.CHECK)], False),
        ([write(A, NO_ITEM, action=Action.READ)], False),
        ([write(B, NO_ITEM)], False),
        ([], False),
    ],
)
def test_only_the_last_accepted_write_is_undone(written: list[CallItem], known: bool) -> None:
    assert read("GetItem", GET, {"Item": A}, *written) == ({} if known else None)


def test_the_rest_of_the_reply_stays_as_it_is() -> None:
    capacity = {"ConsumedCapacity": {"TableName": "t", "CapacityUnits": 0.5}}
    older = {**A, "n": {"N": "1"}}
    reply = read("GetItem", GET, {"Item": A, **capacity}, write(A, item_text(older)))
    assert reply == {"Item": older, **capacity}


def test_a_part_of_an_attribute_is_not_guessed() -> None:
    asked = {**GET, "ProjectionExpression": "details.city"}
    older = item_text({**A, "details": {"M": {"city": {"S": "x"}}}})
    found = {"Item": {"details": {"M": {"city": {"S": "y"}}}}}
    assert read("GetItem", asked, found, write(A, older)) is None
    assert read("GetItem", asked, found, write(A, NO_ITEM)) == {}  # that it was not there is sure


def batch(**more: Any) -> dict[str, Any]:
    return {"RequestItems": {"t": {"Keys": [A, B], **more}}}


def test_keys_that_the_store_did_not_get_to_stay_so() -> None:
    left = {"UnprocessedKeys": {"t": {"Keys": [A]}}}
    older = item_text({**A, "n": {"N": "1"}})
    reply = {"Responses": {"t": [B]}, **left}
    assert read("BatchGetItem", batch(), reply, write(A, older)) is None
    expected = {"Responses": {"t": []}, **left}
    assert read("BatchGetItem", batch(), reply, write(A, older), write(B, NO_ITEM)) == expected


def test_a_batch_without_keys_in_its_reply_is_left_alone() -> None:
    asked = batch(ProjectionExpression="n")
    older = item_text({**A, "n": {"N": "1"}})
    reply = {"Responses": {"t": [{"n": {"N": "2"}}, {"n": {"N": "5"}}]}}
    assert read("BatchGetItem", asked, reply, write(A, older)) is None


def test_a_count_alone_has_no_items_to_put_back() -> None:
    asked = {"TableName": "t", "Select": "COUNT"}
    assert read("Scan", asked, {"Count": 1, "ScannedCount": 1}, write(A, NO_ITEM)) is None


def test_through_an_index_an_item_may_only_be_missing() -> None:
    asked = {"TableName": "t", "IndexName": "by-city"}
    older = item_text({**A, "n": {"N": "1"}})
    reply = {"Items": [A, B], "Count": 2, "ScannedCount": 2}
    assert read("Query", asked, reply, write(A, older), write(B, NO_ITEM)) == {
        "Items": [A],
        "Count": 1,
        "ScannedCount": 1,
    }


def test_a_batch_that_returned_nothing_at_all_may_return_what_was_there() -> None:
    older = {**A, "n": {"N": "1"}}
    assert read("BatchGetItem", batch(), {}, write(A, item_text(older))) == {
        "Responses": {"t": [older]}
    }
