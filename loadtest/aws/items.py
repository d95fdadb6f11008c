"""The run's own items: read by their keys, removed by their keys, proven gone by their keys.

No scan, and no key that the plan of this run does not name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from analysis.errors import TargetError
from analysis.item_kinds import ANYTHING, ORDER_ID, filled
from analysis.schema import ItemRow, ItemsInfo, Phase, TableInfo, item_text, number_text
from loadtest.aws.account import Account

_READ_AT_ONCE = 100  # keys of a BatchGetItem (API reference)
_DELETED_AT_ONCE = 25  # requests of a BatchWriteItem (API reference)
_ATTEMPTS = 10
_BACKOFF_S = 0.1

Key = Mapping[str, Any]  # DynamoDB JSON
Item = Mapping[str, Any]


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


def id_prefix(short_id: str, key_type: str) -> str:
    """What the order ids of a run begin with.

    :param short_id: of the run, six hexadecimal digits.
    :param key_type: of the attribute that holds the id.
    """
    return str(100_000 + int(short_id, 16) % 900_000) if key_type == "N" else f"{short_id}-"


class OwnKeys:
    """Where a table has, or would have, the items of the run's orders."""

    def __init__(self, table: TableInfo, order_keys: Iterable[str]) -> None:
        self.table = table
        self.keys: dict[str, Key] = {}
        """Whole keys, by their canonical text."""
        self.partitions: dict[str, set[str]] = {}
        """Partition keys with the beginnings of the sort keys under them."""
        kinds = table.items or (ItemsInfo(table.role),)
        for order_key in order_keys:
            for kind in kinds:
                self._add(kind, order_key)

    def _add(self, kind: ItemsInfo, order_key: str) -> None:
        """A key that does not tell the order belongs to no single one, and is left alone."""
        table = self.table
        partition = order_key if kind.key is None else filled(kind.key, order_key)
        tells = kind.key is None or ORDER_ID in kind.key
        if partition is None or not (tells or ORDER_ID in (kind.sort or "")):
            return
        key = {table.key: _value(table.key_type, partition)}
        if table.sort is None:
            self.keys[item_text(key)] = key
            return
        sort = None if kind.sort is None else filled(kind.sort, order_key)
        if sort is not None:
            key[table.sort] = _value(table.sort_type, sort)
            self.keys[item_text(key)] = key
            return
        first = (kind.sort or ANYTHING).partition(ANYTHING)[0]
        if tells or ORDER_ID in first:
            prefix = first.replace(ORDER_ID, order_key)
            self.partitions.setdefault(partition, set()).add(prefix)

    def names(self, key: Key) -> bool:
        """Whether an item with this key is one of these."""
        table = self.table
        if item_text(key) in self.keys:
            return True
        prefixes = self.partitions.get(text_of(key[table.key]) or "", ())
        sort = "" if table.sort is None else text_of(key[table.sort]) or ""
        return any(sort.startswith(prefix) for prefix in prefixes)


def _value(kind: str, text: str) -> dict[str, Any]:
    return {kind: text.encode() if kind == "B" else text}


async def own_items(account: Account, own: OwnKeys) -> AsyncIterator[Item]:
    """Every item of the run's orders that there is, strongly consistent."""
    table = own.table
    async for item in items_of(account, table.name, list(own.keys.values())):
        yield item
    for partition in own.partitions:
        parameters: dict[str, Any] = {
            "TableName": table.name,
            "ConsistentRead": True,
            "KeyConditionExpression": "#key = :key",
            "ExpressionAttributeNames": {"#key": table.key},
            "ExpressionAttributeValues": {":key": _value(table.key_type, partition)},
        }
        while True:
            page = await account.call("dynamodb", "Query", **parameters)
            for item in page.get("Items", ()):
                key = key_of(table, item)
                if own.names(key) and item_text(key) not in own.keys:
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
