"""A gateway between real boto3 clients and an upstream, for the tests of the gateway."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import ClientError

from analysis.schema import Call, CallItem, Effect, EffectInfo, Fault, Row, TableInfo, TableRole
from consumer.clock import HostClock
from consumer.faults import FaultPlan, FaultRule
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.recorder import Recorder
from consumer.signing import Signer

SECRETS = ("AKIDHANDLER", "handler-secret", "handler-session-token")
names = itertools.count(1)


def client(
    service: str,
    url: str,
    attempts: int | None = 1,
    *,
    mode: str = "legacy",
    read_timeout: float = 20,
) -> Any:
    """
    :param attempts: in all, for one call; None leaves it to the SDK.
    """
    retries: dict[str, Any] = {"mode": mode}
    if attempts is not None:
        retries["total_max_attempts"] = attempts
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id=SECRETS[0],
        aws_secret_access_key=SECRETS[1],
        aws_session_token=SECRETS[2],
        config=Config(retries=retries, read_timeout=read_timeout),
    )


class WatchedRecorder(Recorder):
    """Lets a test wait for evidence instead of for time."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        self.wrote = asyncio.Event()

    def write(self, row: Row) -> None:
        super().write(row)
        self.wrote.set()

    def _rows(self, table: Any) -> list[Any]:
        rows: dict[tuple[Any, ...], Any] = {}
        for line in (self.directory / f"{table.TABLE}.jsonl").read_bytes().splitlines():
            row = msgspec.json.decode(line, type=table)
            rows[tuple(getattr(row, name) for name in table.KEY)] = row
        return list(rows.values())

    def calls(self) -> list[Call]:
        return self._rows(Call)

    def items(self, call_id: int | None = None) -> list[CallItem]:
        return [row for row in self._rows(CallItem) if call_id in (None, row.call_id)]

    def faults(self) -> list[Fault]:
        return self._rows(Fault)

    def effects(self) -> list[Effect]:
        return self._rows(Effect)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.wrote.clear()
                await self.wrote.wait()


@dataclass
class Occupied:
    """Stands for the environment behind a door."""

    slot: int
    current_invocation: int | None
    killed: int = 0

    async def kill(self) -> None:
        self.killed += 1


class Lab:
    """One gateway with one door, a table, and boto3 clients that go through the door."""

    def __init__(
        self, gateway: Gateway, injector: Injector, recorder: WatchedRecorder, table: str
    ) -> None:
        self.gateway = gateway
        self.injector = injector
        self.recorder = recorder
        self.table = table
        self.occupant = Occupied(1, 7)

    async def open(self) -> None:
        self.door = await self.gateway.open_door(self.occupant)
        self.dynamodb = client("dynamodb", self.door)

    async def call(self, operation: str, **members: Any) -> dict[str, Any]:
        return await call(self.dynamodb, operation, **{"TableName": self.table} | members)

    @property
    def last(self) -> Call:
        return self.recorder.calls()[-1]

    @property
    def last_items(self) -> list[CallItem]:
        return self.recorder.items(self.last.call_id)


def no_faults(recorder: Recorder) -> Injector:
    return Injector(FaultPlan(), recorder, HostClock())


async def call(aws: Any, operation: str, **members: Any) -> dict[str, Any]:
    """The parsed reply, or the parsed error, as a handler would see it."""
    try:
        reply: dict[str, Any] = await asyncio.to_thread(getattr(aws, operation), **members)
    except ClientError as error:
        return dict(error.response)
    return reply


@asynccontextmanager
async def gateway_to(
    url: str,
    directory: Path,
    table: str,
    signer: Signer | None = None,
    *,
    rules: Sequence[FaultRule] = (),
    effects: Sequence[EffectInfo] = (),
) -> AsyncIterator[Lab]:
    recorder = WatchedRecorder(directory / "evidence")
    injector = Injector(FaultPlan(tuple(rules), seed=1), recorder, HostClock())
    injector.begin(7, message_no=1, receive=1)
    gateway = Gateway(
        url,
        HostClock(),
        recorder,
        [TableInfo(table, TableRole.ORDERS, "id")],
        signer,
        injector,
        effects,
    )
    try:
        lab = Lab(gateway, injector, recorder, table)
        await lab.open()
        yield lab
        lab.dynamodb.close()
        for _ in range(3):  # the gateway shares this loop: let it notice
            await asyncio.sleep(0)
        if any(door.connections for _, door in gateway._doors.values()):
            # Errors that an SDK raised or met keep their connections in reference cycles, and
            # the gateway would wait for those.
            gc.collect()
    finally:
        await gateway.close()
        recorder.close()
        assert len(gateway._locks) == 0
    for file in recorder.directory.iterdir():
        text = file.read_text()
        assert not any(secret in text for secret in (*SECRETS, "AWS4-HMAC")), file


def make_table(aws: Any, name: str, sort: bool = False) -> None:
    keys = ["id", "version"] if sort else ["id"]
    aws.create_table(
        TableName=name,
        KeySchema=[
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ["HASH", "RANGE"], strict=False)
        ],
        AttributeDefinitions=[
            {"AttributeName": key, "AttributeType": kind}
            for key, kind in zip(keys, ["S", "N"], strict=False)
        ],
        BillingMode="PAY_PER_REQUEST",
    )


def order(name: str, quantity: int | str = 1, **more: Any) -> dict[str, Any]:
    return {"id": {"S": name}, "quantity": {"N": str(quantity)}, **more}


def key(name: str) -> dict[str, Any]:
    return {"id": {"S": name}}


def raw_put(door: str, table: str = "orders") -> bytes:
    """An insert of order ``a``, as bytes."""
    insert = {"Item": order("a", 1), "ConditionExpression": "attribute_not_exists(id)"}
    body = msgspec.json.encode({"TableName": table, **insert})
    return (
        b"POST / HTTP/1.1\r\nHost: %s\r\nX-Amz-Target: DynamoDB_20120810.PutItem\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (door.removeprefix("http://").encode(), len(body), body)
    )


async def connect(door: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = door.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))
