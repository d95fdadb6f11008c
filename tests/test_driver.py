"""The driver against the emulator, and against an endpoint with scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from analysis.errors import TargetError
from analysis.schema import MessageKind
from consumer.clock import HostClock
from consumer.faults import FaultPlan
from consumer.injector import Injector
from consumer.ledger import STAMP, Ledger
from consumer.recorder import Recorder
from loadtest.driver import Driver, Sent
from loadtest.orders import MessageAttribute
from loadtest.plan import Plan, PlannedMessage
from loadtest.targets import Credentials, Endpoint

Answer = Callable[[list[dict[str, Any]]], dict[str, Any] | int | None]
"""Entries of one send -> its reply; None closes the connection, a number is a status."""


def plan(count: int, every_ns: int = 0) -> Plan:
    return Plan(
        tuple(
            PlannedMessage(n, f"o{n}", MessageKind.ORDER, f"body {n}", "{}", (n - 1) * every_ns)
            for n in range(1, count + 1)
        )
    )


def accept(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "Successful": [
            {"Id": entry["Id"], "MessageId": f"m{entry['Id']}", "MD5OfMessageBody": ""}
            for entry in entries
        ],
        "Failed": [],
    }


def refuse(entries: list[dict[str, Any]], *, sender_fault: bool) -> list[dict[str, Any]]:
    return [
        {"Id": entry["Id"], "SenderFault": sender_fault, "Code": "Nope", "Message": "not now"}
        for entry in entries
    ]


class ScriptedQueue:
    """An SQS endpoint that answers each send as it is told, and keeps what it was sent."""

    def __init__(self, answers: Iterator[Answer]) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self._answers = answers

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        entries = json.loads(await request.read())["Entries"]
        self.batches.append(entries)
        reply = next(self._answers, accept)(entries)
        if reply is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if isinstance(reply, int):
            body = {"__type": "com.amazonaws.sqs#AccessDenied", "message": "no"}
            return web.json_response(body, status=reply, content_type="application/x-amz-json-1.0")
        return web.json_response(reply, content_type="application/x-amz-json-1.0")


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[tuple[ScriptedQueue, Endpoint]]:
    queue = ScriptedQueue(iter(answers))
    server = web.Server(queue.handle, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        async with Endpoint(url, credentials=Credentials("a", "b"), connections=10) as endpoint:
            yield queue, endpoint
    finally:
        listener.close()
        await server.shutdown(0)


async def drive(
    endpoint: Endpoint,
    messages: Plan,
    directory: Path,
    *,
    url: str = "http://127.0.0.1/q",
    rate_per_s: float | None = None,
    stop: asyncio.Event | None = None,
    **fifo: bool,
) -> tuple[list[dict[str, Any]], Ledger, Sent]:
    """Run the driver; the last line on record of every message, the ledger, the totals."""
    recorder = Recorder(directory)
    ledger, sent = Ledger("run"), Sent()
    driver = Driver(
        endpoint.sqs,
        url,
        messages,
        rate_per_s=rate_per_s,
        ledger=ledger,
        recorder=recorder,
        clock=HostClock(),
        sent=sent,
        injector=Injector(FaultPlan(), recorder, HostClock()),
        **fifo,
    )
    try:
        await driver.run(stop or asyncio.Event())
    finally:
        recorder.close()
    lines = map(json.loads, (directory / "messages.jsonl").read_text().splitlines())
    return list({line["message_no"]: line for line in lines}.values()), ledger, sent


async def test_every_message_is_sent_once_with_its_stamp(emulator_url: str, tmp_path: Path) -> None:
    async with Endpoint(emulator_url, credentials=None, connections=10) as endpoint:
        url = (await endpoint.sqs.create_queue(QueueName="driver"))["QueueUrl"]
        rows, ledger, sent = await drive(endpoint, plan(95), tmp_path, url=url)
        stamps: list[str] = []
        while len(stamps) < 95:
            got = await endpoint.sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
            )
            stamps += [
                message["MessageAttributes"][STAMP]["StringValue"] for message in got["Messages"]
            ]
    assert sorted(stamps) == sorted(f"run:{number}" for number in range(1, 96))
    assert sent.accepted == len(rows) == 95
    assert ledger.all_sent
    assert ledger.expected == set(range(1, 96))
    for row in rows:
        assert row["intended_at"] <= row["sent_at"] <= row["accepted_at"]
        assert (row["attempts"], row["error"]) == (1, None)


async def test_only_the_failed_entries_of_a_batch_are_sent_again(tmp_path: Path) -> None:
    def half(entries: list[dict[str, Any]]) -> dict[str, Any]:
        reply = accept(entries[:5])
        return reply | {"Failed": refuse(entries[5:], sender_fault=False)}

    async with scripted(half) as (queue, endpoint):
        rows, ledger, sent = await drive(endpoint, plan(10), tmp_path)
    assert [len(batch) for batch in queue.batches] == [10, 5]
    assert [row["attempts"] for row in rows] == [1] * 5 + [2] * 5
    assert (sent.accepted, sent.resent) == (10, 5)
    assert len(ledger.expected) == 10


async def test_a_lost_answer_is_sent_again_under_the_same_stamp(tmp_path: Path) -> None:
    async with scripted(lambda _: None) as (queue, endpoint):
        rows, _, sent = await drive(endpoint, plan(3), tmp_path)
    stamps = [
        [entry["MessageAttributes"][STAMP]["StringValue"] for entry in batch]
        for batch in queue.batches
    ]
    assert stamps == [["run:1", "run:2", "run:3"]] * 2
    assert [row["attempts"] for row in rows] == [2, 2, 2]
    assert sent.accepted == 3


async def test_a_message_that_the_queue_cannot_take_is_given_up_and_said(tmp_path: Path) -> None:
    def never(entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {"Successful": [], "Failed": refuse(entries, sender_fault=True)}

    async with scripted(never) as (queue, endpoint):
        rows, ledger, sent = await drive(endpoint, plan(2), tmp_path)
    assert len(queue.batches) == 1, "a sender's fault is not repeated"
    assert [row["error"] for row in rows] == ["Nope: not now"] * 2
    assert (sent.refused, ledger.expected) == (2, set())


async def test_a_refusal_of_the_whole_call_ends_the_run(tmp_path: Path) -> None:
    async with scripted(lambda _: 403) as (_, endpoint):
        with pytest.raises(TargetError, match="the queue refuses messages"):
            await drive(endpoint, plan(3), tmp_path)


async def test_a_server_error_is_repeated(tmp_path: Path) -> None:
    async with scripted(lambda _: 500, lambda _: 503) as (queue, endpoint):
        rows, _, _ = await drive(endpoint, plan(1), tmp_path)
    assert len(queue.batches) == 3
    assert rows[0]["attempts"] == 3
    assert rows[0]["accepted_at"] is not None


async def test_nothing_is_sent_before_its_time(tmp_path: Path) -> None:
    async with scripted() as (_, endpoint):
        rows, _, _ = await drive(endpoint, plan(30, 5_000_000), tmp_path, rate_per_s=200)
    assert [row["intended_at"] - rows[0]["intended_at"] for row in rows] == [
        number * 5_000_000 for number in range(30)
    ]
    assert all(row["sent_at"] >= row["intended_at"] for row in rows)


async def test_above_two_hundred_a_second_messages_travel_together(tmp_path: Path) -> None:
    async with scripted() as (queue, endpoint):
        await drive(endpoint, plan(200, 1_000_000), tmp_path, rate_per_s=1000)
    assert len(queue.batches) <= 100


async def test_stopping_sends_nothing_further(tmp_path: Path) -> None:
    stop = asyncio.Event()

    def first(entries: list[dict[str, Any]]) -> dict[str, Any]:
        stop.set()
        return accept(entries)

    async with scripted(first) as (_, endpoint):
        rows, ledger, sent = await drive(
            endpoint, plan(3, 3_600 * 10**9), tmp_path, rate_per_s=1, stop=stop
        )
    assert sent.accepted == 1
    assert len(rows) == 3, "the whole plan is on record"
    assert ledger.all_sent


async def test_a_fifo_queue_gets_a_group_for_each_order_and_an_id_for_each_message(
    tmp_path: Path,
) -> None:
    keys = ("Order-1", " Order-1", "order\t1", "x" * 200)
    messages = Plan(
        tuple(
            PlannedMessage(number, key, MessageKind.ORDER, "body", "{}", 0)
            for number, key in enumerate(keys, 1)
        )
    )
    async with scripted() as (queue, endpoint):
        rows, _, _ = await drive(endpoint, messages, tmp_path / "stamp", fifo=True)
        await drive(
            endpoint, messages, tmp_path / "content", fifo=True, deduplicate_by_content=True
        )
    by_stamp, by_content = queue.batches
    groups = [entry["MessageGroupId"] for entry in by_stamp]
    assert groups == ["Order-1", "%20Order-1", "order%091", "x" * 128], "no blanks, 128 at most"
    assert [entry["MessageDeduplicationId"] for entry in by_stamp] == [
        f"run:{number}" for number in range(1, 5)
    ]
    assert not any("MessageDeduplicationId" in entry for entry in by_content)
    assert all(row["accepted_at"] is not None for row in rows)


async def test_a_message_has_its_own_group_and_attributes(tmp_path: Path) -> None:
    attributes = (MessageAttribute("a", "Number", "4"), MessageAttribute("b", "Binary", b"\x00"))
    first, *others = plan(2).messages
    messages = Plan((replace(first, group="all", attributes=attributes), *others))
    async with scripted() as (queue, endpoint):
        await drive(endpoint, messages, tmp_path, fifo=True)
    one, other = (entry for batch in queue.batches for entry in batch)
    assert (one["MessageGroupId"], other["MessageGroupId"]) == ("all", "o2")
    assert one["MessageAttributes"] == {
        STAMP: other["MessageAttributes"][STAMP] | {"StringValue": "run:1"},
        "a": {"DataType": "Number", "StringValue": "4"},
        "b": {"DataType": "Binary", "BinaryValue": "AA=="},
    }


async def test_what_a_fifo_queue_has_dropped_was_not_accepted(tmp_path: Path) -> None:
    def same(entries: list[dict[str, Any]]) -> dict[str, Any]:
        """It says yes to all, with the id of the first."""
        found = accept(entries)
        return found | {"Successful": [one | {"MessageId": "m"} for one in found["Successful"]]}

    async with scripted(same) as (_, endpoint):
        rows, ledger, sent = await drive(endpoint, plan(2), tmp_path, fifo=True)
    assert [row["error"] for row in rows] == [
        None,
        "the queue deduplicated it: it has kept message 1",
    ]
    assert (ledger.expected, sent.accepted, sent.refused) == ({1}, 1, 1)
