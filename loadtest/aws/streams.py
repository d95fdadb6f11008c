"""Accepted writes as the table's stream tells them: each with the item before and after it.

A stream has one record for each write that changed an item, in the order of the writes to that
item; a write that changes nothing leaves none (DynamoDB developer guide, "Change data capture
for DynamoDB Streams"). Who wrote, and under which condition, it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from analysis.schema import Action, Call, CallItem, Decision, TableInfo, item_text
from loadtest.aws.account import Account, RefusedError

_ACTIONS = {"INSERT": Action.PUT, "MODIFY": Action.UPDATE, "REMOVE": Action.DELETE}
_S = 1_000_000_000
_PAGES_AT_ONCE = 10
_LOST = frozenset({"TrimmedDataAccessException"})
_EXPIRED = "ExpiredIteratorException"


@dataclass(frozen=True, slots=True)
class StreamRecord:
    table: str
    event: str  # INSERT, MODIFY or REMOVE
    keys: Mapping[str, Any]  # DynamoDB JSON, as all that follow
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    at_s: int  # rounded down to the second by DynamoDB

    def rows(self, call_id: int) -> tuple[Call, CallItem]:
        """The write as evidence; it happened at some time within its second."""
        sent_at = self.at_s * _S
        call = Call(
            call_id=call_id,
            invocation_id=None,
            attempt=1,
            sdk_id=None,
            service="dynamodb",
            operation=self.event,
            resource=self.table,
            request=None,
            sent_at=sent_at,
            answered_at=sent_at + _S - 1,
            decision=Decision.ACCEPTED,
        )
        item = CallItem(
            call_id=call_id,
            resource=self.table,
            item_key=item_text(self.keys),
            action=_ACTIONS.get(self.event, Action.PUT),
            decision=Decision.ACCEPTED,
            before=item_text(self.before),
            after=item_text(self.after),
        )
        return call, item


def parse_record(table: str, record: Mapping[str, Any]) -> StreamRecord:
    about = record["dynamodb"]
    at = about.get("ApproximateCreationDateTime", 0)
    return StreamRecord(
        table=table,
        event=str(record.get("eventName", "")),
        keys=about["Keys"],
        before=about.get("OldImage"),
        after=about.get("NewImage"),
        at_s=int(at.timestamp() if isinstance(at, datetime) else at),
    )


@dataclass(slots=True)
class _Shard:
    parent: str | None
    iterator: str | None = None
    is_open: bool = False  # its iterator has been asked for
    is_read: bool = False  # to its end: it is closed
    last: str | None = None  # sequence number


@dataclass(slots=True)
class StreamReader:
    """Follows the stream of one table from :meth:`start` on.

    ``records`` are those that ``is_ours``; of all others only their number is kept.

    :raises TargetError: from every method.
    """

    account: Account
    table: TableInfo
    stream_arn: str
    is_ours: Callable[[StreamRecord], bool]
    from_its_beginning: bool = False  # the stream was switched on for this run
    records: list[StreamRecord] = field(default_factory=list)
    foreign: int = 0
    lost: str | None = None  # why records are missing
    _shards: dict[str, _Shard] = field(default_factory=dict)

    async def start(self) -> None:
        """From now on nothing is missed: what was written before is."""
        kind = "TRIM_HORIZON" if self.from_its_beginning else "LATEST"
        for shard_id in await self._discover():
            await self._open(shard_id, kind)

    async def read(self) -> int:
        """Read what has come; how many records of ours."""
        before = len(self.records)
        for shard_id in await self._discover():
            shard = self._shards[shard_id]
            parent = self._shards.get(shard.parent or "")
            # The writes to one item go on in the child of a shard that was closed.
            if parent is not None and not parent.is_read:
                continue
            if not shard.is_open:
                await self._open(shard_id, "TRIM_HORIZON")
            await self._read(shard_id)
        return len(self.records) - before

    async def _discover(self) -> list[str]:
        """The shards that are not read to their end, parents first."""
        start: dict[str, str] = {}
        while True:
            answer = await self.account.call(
                "dynamodbstreams", "DescribeStream", StreamArn=self.stream_arn, **start
            )
            about = answer["StreamDescription"]
            for shard in about.get("Shards", ()):
                self._shards.setdefault(shard["ShardId"], _Shard(shard.get("ParentShardId")))
            if not about.get("LastEvaluatedShardId"):
                return [name for name, shard in self._shards.items() if not shard.is_read]
            start = {"ExclusiveStartShardId": about["LastEvaluatedShardId"]}

    async def _open(self, shard_id: str, kind: str, **at: str) -> None:
        answer = await self.account.call(
            "dynamodbstreams",
            "GetShardIterator",
            StreamArn=self.stream_arn,
            ShardId=shard_id,
            ShardIteratorType=kind,
            **at,
        )
        shard = self._shards[shard_id]
        shard.iterator, shard.is_open = answer.get("ShardIterator"), True

    async def _read(self, shard_id: str) -> None:
        shard = self._shards[shard_id]
        for _ in range(_PAGES_AT_ONCE):
            try:
                page = await self.account.call(
                    "dynamodbstreams", "GetRecords", ShardIterator=shard.iterator
                )
            except RefusedError as error:
                if error.code == _EXPIRED and shard.last is not None:
                    await self._open(shard_id, "AFTER_SEQUENCE_NUMBER", SequenceNumber=shard.last)
                    continue
                if error.code in _LOST or error.code == _EXPIRED:
                    self.lost = f"records of table {self.table.name} are lost ({error.code})"
                    shard.is_read = True
                    return
                raise
            self._take(shard, page.get("Records", ()))
            shard.iterator = page.get("NextShardIterator")
            shard.is_read = shard.iterator is None
            if shard.is_read or not page.get("Records"):
                return

    def _take(self, shard: _Shard, records: Iterable[Mapping[str, Any]]) -> None:
        for raw in records:
            record = parse_record(self.table.name, raw)
            shard.last = str(raw["dynamodb"].get("SequenceNumber", "")) or shard.last
            if self.is_ours(record):
                self.records.append(record)
            else:
                self.foreign += 1


async def enable_stream(account: Account, table: str, *, limit_s: float = 120.0) -> str:
    """Switch a stream of whole items on; its ARN."""
    specification = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    await account.call(
        "dynamodb", "UpdateTable", TableName=table, StreamSpecification=specification
    )

    async def ask() -> str | None:
        answer = await account.call("dynamodb", "DescribeTable", TableName=table)
        about = answer["Table"]
        if about.get("TableStatus") != "ACTIVE" or not about.get("LatestStreamArn"):
            return None
        stream_arn = str(about["LatestStreamArn"])
        stream = await account.call("dynamodbstreams", "DescribeStream", StreamArn=stream_arn)
        enabled = stream["StreamDescription"].get("StreamStatus") == "ENABLED"
        return stream_arn if enabled else None

    return await account.wait(
        f"the stream of table {table} was not ENABLED", ask, limit_s=limit_s, every_s=2
    )


async def disable_stream(account: Account, table: str, *, limit_s: float = 120.0) -> None:
    """Switch it off again, and see that it is."""
    await account.call(
        "dynamodb", "UpdateTable", TableName=table, StreamSpecification={"StreamEnabled": False}
    )

    async def ask() -> bool | None:
        answer = await account.call("dynamodb", "DescribeTable", TableName=table)
        stream = answer["Table"].get("StreamSpecification", {})
        return None if stream.get("StreamEnabled") else True

    await account.wait(
        f"the stream of table {table} was not switched off", ask, limit_s=limit_s, every_s=2
    )
