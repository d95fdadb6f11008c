"""What people and other systems do to a running consumer: a redrive of the dead-letter
queue, and an item that somebody deletes. (A plan that is sent again is a second driver.)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from analysis.errors import TargetError
from analysis.item_kinds import ANYTHING, filled, order_key_of
from analysis.schema import (
    NO_ITEM,
    Action,
    Call,
    CallItem,
    Decision,
    TableInfo,
    TableRole,
    item_text,
)
from consumer.clock import Clock
from consumer.faults import FaultName, Strike
from consumer.injector import Injector
from consumer.ledger import Ledger
from consumer.recorder import Recorder
from consumer.sqs_queue import Queue, Received


class Redrive:
    """Puts what is in the dead-letter queue back into the queue: new message ids, the same
    bodies and attributes.

    Early, every planned message goes back once, as soon as it is seen there. Else all of
    them wait for :meth:`all`.
    """

    def __init__(self, queue: Queue, ledger: Ledger, injector: Injector, strike: Strike) -> None:
        self._queue = queue
        self._ledger = ledger
        self._injector = injector
        self._strike = strike
        self._early = strike.rule.option == "early"
        self._redriven: set[int] = set()
        self._waiting: list[Received] = []

    async def seen(self, dead_letter: Received) -> bool:
        """A message was received from the dead-letter queue; whether it has gone back."""
        number = dead_letter.message_no
        if not self._early:
            self._waiting.append(dead_letter)
            return False
        if number is None or number in self._redriven:
            return False
        self._redriven.add(number)
        new_id = await self._send(dead_letter)
        place = replace(self._strike.place, message_no=number)
        self._injector.fire(
            replace(self._strike, place=place),
            delivery_id=dead_letter.delivery_id,
            detail=f"received and sent again as {new_id}",
        )
        return True

    async def all(self) -> bool:
        """Put back all that was seen; whether there was anything."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return False
        # What was seen in a FIFO queue is not there any more.
        if not self._queue.address.fifo and await self._queue.move_dead_letters(waiting):
            how = "by StartMessageMoveTask"
            for dead_letter in waiting:
                self._ledger.reopen(dead_letter.message_no, None)
        else:
            how = "received and sent again, without StartMessageMoveTask"
            for dead_letter in waiting:
                await self._send(dead_letter)
        self._injector.fire(self._strike, detail=f"{len(waiting)} messages {how}")
        return True

    async def _send(self, dead_letter: Received) -> str:
        new_id = await self._queue.send_again(dead_letter)
        self._ledger.reopen(dead_letter.message_no, new_id)
        if not self._queue.address.fifo:
            await self._queue.delete_dead_letters([dead_letter.receipt_handle])
        return new_id


class WriteGuard(Protocol):
    """The gateway, as far as somebody who writes past it needs it."""

    def outside_write(self, table: str, item_key: str) -> AbstractAsyncContextManager[None]:
        """While it is open, no handler's call changes this item."""
        ...

    def learn(self, row: CallItem) -> None:
        """What was done to the item."""
        ...


class ItemDeletion:
    """Deletes the stored item of an order, as a person or the table's time to live does.

    Recorded as a call outside any invocation, so that the images of the item stay a chain.

    :param dynamodb: an open aioboto3 DynamoDB client.
    :param table: where the orders are.
    :param attribute: the item attribute that carries the order key; not asked where the table
        says by the form of their keys which of its items are orders.
    :param order_keys: message_no -> order key.
    """

    def __init__(
        self,
        dynamodb: Any,
        table: TableInfo,
        attribute: str,
        order_keys: Mapping[int, str],
        guard: WriteGuard,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._dynamodb = dynamodb
        self._table = table
        self._attribute = attribute
        self._order_keys = order_keys
        self._guard = guard
        self._recorder = recorder
        self._clock = clock

    async def __call__(self, message_no: int) -> int | None:
        """Delete what is stored of a planned message's order.

        :returns: the id of the last call that deleted an item; None when there was none.
        :raises TargetError: the table cannot be read or written.
        """
        order_key = self._order_keys.get(message_no)
        if order_key is None:
            return None
        try:
            call_id = None
            for key in await self._keys(order_key):
                call_id = await self._delete(key) or call_id
            return call_id
        except (BotoCoreError, ClientError) as error:
            raise TargetError(
                f"the item of order {order_key} in {self._table.name} could not be deleted for "
                f"the fault {FaultName.ITEM_DELETED}: {error}"
            ) from error

    async def _keys(self, order_key: str) -> list[dict[str, Any]]:
        """The primary keys of the order's items, read strongly."""
        table = self._table
        kind = next((one for one in table.items if one.role is TableRole.ORDERS), None)
        attribute = self._attribute if kind is None else table.key
        text = order_key if kind is None else filled(kind.key or ANYTHING, order_key)
        arguments: dict[str, Any] = {"TableName": table.name, "ConsistentRead": True}
        is_key = text is not None and attribute == table.key
        if text is not None:
            type_ = {table.key: table.key_type, table.sort: table.sort_type}.get(attribute, "S")
            arguments |= {
                "ExpressionAttributeNames": {"#order": attribute},
                "ExpressionAttributeValues": {
                    ":order": {type_: text.encode() if type_ == "B" else text}
                },
                "KeyConditionExpression" if is_key else "FilterExpression": "#order = :order",
            }
        read = self._dynamodb.query if is_key else self._dynamodb.scan
        own = [name for name in (table.key, table.sort) if name is not None]
        keys = []
        while True:
            page = await read(**arguments)
            for item in page["Items"]:
                key = {name: item[name] for name in own}
                texts = [str(next(iter(key[name].values()))) for name in own]
                if kind is None or order_key_of(kind, *texts) == order_key:
                    keys.append(key)
            if "LastEvaluatedKey" not in page:
                return keys
            arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def _delete(self, key: dict[str, Any]) -> int | None:
        call = Call(
            call_id=self._recorder.next_id(Call),
            invocation_id=None,
            attempt=1,
            sdk_id=None,
            service="dynamodb",
            operation="DeleteItem",
            resource=self._table.name,
            request=None,
            sent_at=self._clock.now_ns(),
            fault=FaultName.ITEM_DELETED,
        )
        item = CallItem(call.call_id, self._table.name, item_text(key), Action.DELETE)
        async with self._guard.outside_write(item.resource, item.item_key):
            self._recorder.write(call)
            self._recorder.write(item)
            reply = await self._dynamodb.delete_item(
                TableName=self._table.name, Key=key, ReturnValues="ALL_OLD"
            )
            before = item_text(reply.get("Attributes"))
            accepted = Decision.ACCEPTED
            item = replace(item, decision=accepted, before=before, after=NO_ITEM)
            self._recorder.write(item)
            self._guard.learn(item)
            self._recorder.write(replace(call, answered_at=self._clock.now_ns(), decision=accepted))
        return call.call_id if before != NO_ITEM else None  # somebody else was faster
