"""The run's own items: read by their keys, removed by their keys, proven gone by their keys.

No scan, and no key that the plan of this run does not name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from analysis.errors import TargetError
from analysis.schema import ItemRow, Phase, TableInfo, item_text, number_text
from loadtest.aws.account import Account

_READ_AT_ONCE = 100  # keys of a BatchGetItem (API reference)
_DELETED_AT_ONCE = 25  # requests of a BatchWriteItem (API reference)
_ATTEMPTS = 10
_BACKOFF_S = 0.1

Key = Mapping[str, Any]  # DynamoDB JSON
Item = Mapping[str, Any]


def partition_key(table: TableInfo, order_key: str) -> Key:
    """The partition key under which an order belongs."""
    value: str | bytes = order_key.encode() if table.key_type == "B" else order_key
    return {table.key: {table.key_type: value}}


def text_of(value: Mapping[str, Any] | None) -> str | None:
    """A scalar attribute value as the text of an order key; numbers in their one spelling."""
    match value:
        case {"S": str(text)}:
            return text
        case {"N": str(text)}:
            return number_text(text)
        case {"B": bytes(content)}:
            return content.decode("utf-8", "replace")
    return None


def key_of(table: TableInfo, item: Item) -> Key:
    return {name: item[name] for name in (table.key, table.sort) if name is not None}


async def own_items(
    account: Account, table: TableInfo, order_keys: Sequence[str]
) -> AsyncIterator[Item]:
    """Every item under the partition keys of these orders, strongly consistent."""
    if table.sort is None:
        keys = [partition_key(table, order_key) for order_key in order_keys]
        async for item in items_of(account, table.name, keys):
            yield item
        return
    for order_key in order_keys:
        parameters: dict[str, Any] = {
            "TableName": table.name,
            "ConsistentRead": True,
            "KeyConditionExpression": "#key = :key",
            "ExpressionAttributeNames": {"#key": table.key},
            "ExpressionAttributeValues": {":key": partition_key(table, order_key)[table.key]},
        }
        while True:
            page = await account.call("dynamodb", "Query", **parameters)
            for item in page.get("Items", ()):
                yield item
            if "LastEvaluatedKey" not in page:
                break
            parameters["ExclusiveStartKey"] = page["LastEvaluatedKey"]


async def items_of(account: Account, table: str, keys: Sequence[Key]) -> AsyncIterator[Item]:
    """The items that there are of these keys, strongly consistent."""
    for place in range(0, len(keys), _READ_AT_ONCE):
        asked: Any = {table: {"Keys": keys[place : place + _READ_AT_ONCE], "ConsistentRead": True}}
        for attempt in range(_ATTEMPTS):
            answer = await account.call("dynamodb", "BatchGetItem", RequestItems=asked)
            for item in answer.get("Responses", {}).get(table, ()):
                yield item
            asked = answer.get("UnprocessedKeys")
            if not asked:
                break
            await account.sleep(_BACKOFF_S * 2**attempt)
        else:
            raise TargetError(
                f"table {table} did not read all items within {_ATTEMPTS} attempts: it is asked "
                "for more than its read capacity allows."
            )


async def remove_items(account: Account, table: str, keys: Iterable[Key]) -> None:
    """Delete the items of these keys; it is no error that there is none.

    :raises TargetError: some are still there when their keys are read again, or that could not
        be asked: then they may be.
    """
    keys = list(keys)
    for place in range(0, len(keys), _DELETED_AT_ONCE):
        requests = [
            {"DeleteRequest": {"Key": key}} for key in keys[place : place + _DELETED_AT_ONCE]
        ]
        asked: Any = {table: requests}
        for attempt in range(_ATTEMPTS):
            answer = await account.call("dynamodb", "BatchWriteItem", RequestItems=asked)
            asked = answer.get("UnprocessedItems")
            if not asked:
                break
            await account.sleep(_BACKOFF_S * 2**attempt)
    left = [item async for item in items_of(account, table, keys)]
    if left:
        raise TargetError(
            f"{len(left)} of {len(keys)} items of the run are still in table {table} after they "
            "were deleted. Does something write them again? Run: loadtest clean --run DIR"
        )


def row_of(table: TableInfo, item: Item, phase: Phase) -> ItemRow:
    return ItemRow(table.name, item_text(key_of(table, item)), item_text(item), phase)
