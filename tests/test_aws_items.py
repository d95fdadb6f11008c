"""Which items of a table are the run's own: known by their keys, in every shape of key."""

from __future__ import annotations

import pytest

from analysis.schema import ItemsInfo, TableInfo, TableRole
from loadtest.aws.account import Account
from loadtest.aws.items import OwnKeys, own_items, remove_items
from tests.aws_endpoint import REGION, Answer, Error, simulated_aws

ORDERS = TableRole.ORDERS
SHOP = TableInfo(
    "shop",
    ORDERS,
    "pk",
    sort="sk",
    items=(
        ItemsInfo(ORDERS, key="ORDER#{id}", sort="META"),
        ItemsInfo(TableRole.OTHER, key="ORDER#{id}", sort="LINE#*"),
        ItemsInfo(TableRole.GUARD, key="IDEMP#*"),
        ItemsInfo(TableRole.OTHER, key="TOTALS", sort="DAY#*"),
    ),
)


def test_a_plain_table_has_one_key_an_order() -> None:
    own = OwnKeys(TableInfo("orders", ORDERS, "id"), ["a", "b"])
    assert list(own.keys.values()) == [{"id": {"S": "a"}}, {"id": {"S": "b"}}]
    assert not own.partitions
    assert own.names({"id": {"S": "a"}})
    assert not own.names({"id": {"S": "c"}})


def test_numbers_are_known_in_every_spelling() -> None:
    own = OwnKeys(TableInfo("orders", ORDERS, "id", key_type="N"), ["12"])
    assert own.names({"id": {"N": "12.0"}})


def test_a_single_table_has_only_the_keys_that_tell_the_order() -> None:
    own = OwnKeys(SHOP, ["a"])
    assert list(own.keys.values()) == [{"pk": {"S": "ORDER#a"}, "sk": {"S": "META"}}]
    assert own.partitions == {"ORDER#a": {"LINE#"}}
    assert own.names({"pk": {"S": "ORDER#a"}, "sk": {"S": "LINE#1"}})
    # Those of another order, of nobody in particular, and of something else in the partition.
    assert not own.names({"pk": {"S": "ORDER#ab"}, "sk": {"S": "LINE#1"}})
    assert not own.names({"pk": {"S": "IDEMP#a"}, "sk": {"S": "LINE#1"}})
    assert not own.names({"pk": {"S": "TOTALS"}, "sk": {"S": "DAY#1"}})
    assert not own.names({"pk": {"S": "ORDER#a"}, "sk": {"S": "NOTE"}})


async def test_reads_what_was_left_over_and_nothing_else_of_a_partition() -> None:
    meta = {"pk": {"S": "ORDER#a"}, "sk": {"S": "META"}}
    lines = [{"pk": {"S": "ORDER#a"}, "sk": {"S": text}} for text in ("LINE#1", "META", "NOTE")]
    keys = {"Keys": [meta], "ConsistentRead": True}
    reads: list[Answer] = [
        {"Responses": {}, "UnprocessedKeys": {"shop": keys}},
        {"Responses": {"shop": [meta]}},
    ]
    pages: list[Answer] = [
        {"Items": lines[:1], "LastEvaluatedKey": lines[0]},
        {"Items": lines[1:]},
    ]
    answers = {"dynamodb:BatchGetItem": reads, "dynamodb:Query": pages}
    async with (
        simulated_aws(answers) as (url, aws),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        found = [item async for item in own_items(account, OwnKeys(SHOP, ["a"]))]
    assert found == [meta, lines[0]]
    assert all(
        asked["ConsistentRead"] for action, asked in aws.requests if action == "dynamodb:Query"
    )


async def test_what_is_still_there_is_not_gone_and_what_cannot_be_asked_neither() -> None:
    item = {"id": {"S": "a"}}
    still: Answer = {"Responses": {"orders": [item]}}
    denied = Error("AccessDeniedException", "no", 403)
    for read, said in ((still, "1 of 1 items of the run are still"), (denied, "AWS refuses")):
        answers = {"dynamodb:BatchWriteItem": {}, "dynamodb:BatchGetItem": read}
        async with (
            simulated_aws(answers) as (url, _),
            Account(endpoint_url=url, region=REGION) as account,
        ):
            with pytest.raises(Exception, match=said):
                await remove_items(account, "orders", [item])
