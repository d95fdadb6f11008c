"""How fast does the driver send, beside plain loops against the same endpoint?

    python -m benchmarks.send [--messages 5000] [--rounds 5]

In turn, against one emulator: a plain boto3 loop of batches, boto3 in eight threads, a
plain aioboto3 loop of batches (eight at once), and the driver, which also stamps, records
and accounts for every message. Goal: the driver reaches at least 0.9 of the aioboto3 loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aioboto3
import boto3

from consumer.clock import HostClock
from consumer.faults import FaultPlan
from consumer.injector import Injector
from consumer.ledger import Ledger
from consumer.processes import Processes
from consumer.recorder import Recorder
from loadtest.config import load_settings
from loadtest.driver import Driver, Sent
from loadtest.emulator import Emulator
from loadtest.event_loop import run_in_loop
from loadtest.plan import Plan, make_plan
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint

AT_ONCE = 8
COPIES = 5


def batches(plan: Plan) -> Iterator[list[dict[str, str]]]:
    bodies = [message.body for message in plan.messages]
    for start in range(0, len(bodies), 10):
        yield [
            {"Id": str(number), "MessageBody": body}
            for number, body in enumerate(bodies[start : start + 10])
        ]


def boto3_loop(client: Any, queue_url: str, plan: Plan) -> None:
    for entries in batches(plan):
        client.send_message_batch(QueueUrl=queue_url, Entries=entries)


def boto3_threads(client: Any, queue_url: str, plan: Plan) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(
            pool.map(
                lambda entries: client.send_message_batch(QueueUrl=queue_url, Entries=entries),
                batches(plan),
            )
        )


async def aioboto3_loop(client: Any, queue_url: str, plan: Plan) -> None:
    waiting = batches(plan)

    async def send() -> None:
        for entries in waiting:
            await client.send_message_batch(QueueUrl=queue_url, Entries=entries)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))


async def driver(endpoint: Endpoint, queue_url: str, plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(Path(directory))
        await Driver(
            endpoint.sqs,
            queue_url,
            plan,
            rate_per_s=None,
            ledger=Ledger("bench"),
            recorder=recorder,
            clock=HostClock(),
            sent=Sent(),
            injector=Injector(FaultPlan(), recorder, HostClock()),
        ).run(asyncio.Event())
        recorder.close()


async def measure(messages: int, rounds: int) -> dict[str, list[float]]:
    """Messages a second of each way, for every round."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = await stack.enter_async_context(Processes())
        emulator = Emulator(directory / "emulator", processes)
        stack.push_async_callback(emulator.close)
        url = await emulator.start()
        endpoint = await stack.enter_async_context(
            Endpoint(url, credentials=LOCAL_CREDENTIALS, connections=40)
        )
        account = {
            "endpoint_url": url,
            "region_name": "us-east-1",
            "aws_access_key_id": LOCAL_CREDENTIALS.access_key,
            "aws_secret_access_key": LOCAL_CREDENTIALS.secret_key,
        }
        plain: Any = boto3.client("sqs", **account)
        plain_async: Any = await stack.enter_async_context(
            aioboto3.Session().client("sqs", **account)
        )
        shape = load_settings(None, {}, directory).order
        ways: dict[str, Callable[[str, Plan], Awaitable[None]]] = {
            "boto3 loop": lambda queue, plan: asyncio.to_thread(boto3_loop, plain, queue, plan),
            "boto3 threads": lambda queue, plan: asyncio.to_thread(
                boto3_threads, plain, queue, plan
            ),
            "aioboto3 loop": lambda queue, plan: aioboto3_loop(plain_async, queue, plan),
            "driver": lambda queue, plan: driver(endpoint, queue, plan),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            plan = make_plan(shape, orders=messages // COPIES, copies=COPIES, seed=number)
            for name, way in ways.items():
                made = await endpoint.sqs.create_queue(QueueName=f"q{number}-{name.split()[-1]}")
                began = time.perf_counter()
                await way(made["QueueUrl"], plan)
                rates[name].append(len(plan.messages) / (time.perf_counter() - began))
                await endpoint.sqs.delete_queue(QueueUrl=made["QueueUrl"])
        return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    rates = run_in_loop(measure(asked.messages, asked.rounds))
    for name, values in rates.items():
        print(
            f"{name:14} {statistics.median(values):7.0f} messages/s "
            f"(lowest {min(values):.0f}, highest {max(values):.0f})"
        )
    pairs = zip(rates["driver"], rates["aioboto3 loop"], strict=True)
    ratios = [ours / plain for ours, plain in pairs]
    print(
        f"driver / aioboto3 loop {statistics.median(ratios):.2f} "
        f"(lowest {min(ratios):.2f}, highest {max(ratios):.2f}), {asked.messages} messages, "
        f"{asked.rounds} rounds"
    )


if __name__ == "__main__":
    main()
