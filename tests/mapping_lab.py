"""A plan carried out with real queues and real environments, and what their handler saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.schema import MessageKind, RunStatus, item_text, typed_value
from analysis.store import finish_evidence
from consumer.clock import HostClock
from consumer.faults import FaultPlan, FaultRule
from loadtest.config import Settings, settings_of
from loadtest.plan import Plan, PlannedMessage
from loadtest.run import finished, new_run_dir, run_info, write_run_info
from loadtest.stage import Stage
from tests.cli import Run

_HANDLER = """
import json, os, time
import boto3
table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])

def note(**entry):
    entry |= {"at": time.monotonic_ns(), "process": os.getpid()}
    with open(os.environ["DIARY"], "a") as diary:
        diary.write(json.dumps(entry) + "\\n")

def noted(what, order=None):
    with open(os.environ["DIARY"]) as diary:
        entries = [json.loads(line) for line in diary]
    return [e for e in entries if e["what"] == what and order in (None, *e["orders"])]

def until(condition):
    while not condition():
        time.sleep(0.01)

def store(order):
    try:
        table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
    except table.meta.client.exceptions.ConditionalCheckFailedException:
        return {"processed": False, "duplicate": True}
    return {"processed": True, "duplicate": False}

def handler(event, context):
    records = event["Records"]
    orders = [json.loads(record["body"]) for record in records]
    run = {
        "orders": [order["id"] for order in orders],
        "messages": [record["messageId"] for record in records],
        "receives": [int(record["attributes"]["ApproximateReceiveCount"]) for record in records],
        "run": context.aws_request_id,
    }
    note(what="start", **run)
    try:
        return work(orders, run)
    finally:
        note(what="end", **run)
"""
"""Keeps a diary on a clock that all processes share; ``work`` is the test's own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One event as the handler had it."""

    orders: tuple[str, ...]
    messages: tuple[str, ...]
    receives: tuple[int, ...]
    process: int
    started_ns: int
    ended_ns: int | None  # None: its process was ended first

    def overlaps(self, other: Seen) -> bool:
        assert self.ended_ns is not None
        assert other.ended_ns is not None
        return self.started_ns < other.ended_ns and other.started_ns < self.ended_ns


@dataclass(frozen=True, slots=True)
class Carried:
    """What a plan that was carried out leaves behind."""

    run: Run
    diary: Path
    settled: bool
    started_ns: int  # by the run's clock, before anything was sent or received
    gone: tuple[str, ...]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self.run.rows(sql)

    def fired(self, name: str) -> list[dict[str, Any]]:
        return self.rows(f"FROM faults WHERE name = '{name}' ORDER BY fault_id")

    def deliveries(self, message_no: int) -> list[dict[str, Any]]:
        """Of one message, with their acknowledgements, in order."""
        return self.rows(
            "SELECT d.*, a.outcome FROM deliveries d LEFT JOIN acks a USING (delivery_id) "
            f"WHERE message_no = {message_no} ORDER BY received_at, delivery_id"
        )

    def outcomes(self, message_no: int) -> list[str]:
        return [row["outcome"] for row in self.deliveries(message_no)]

    def seen(self, order: str | None = None) -> list[Seen]:
        """The handler's events, of one order or of all, in the order of their starts."""
        entries = [json.loads(line) for line in self.diary.read_text().splitlines()]
        ends = {entry["run"]: entry["at"] for entry in entries if entry["what"] == "end"}
        return [
            Seen(
                tuple(entry["orders"]),
                tuple(entry["messages"]),
                tuple(entry["receives"]),
                entry["process"],
                entry["at"],
                ends.get(entry["run"]),
            )
            for entry in sorted(entries, key=lambda entry: int(entry["at"]))
            if entry["what"] == "start" and order in (None, *entry["orders"])
        ]


def plan_of(*orders: str) -> Plan:
    """One message for each name; a name that comes again is a copy."""
    messages = []
    for number, order in enumerate(orders, 1):
        body = {"id": order, "quantity": 1}
        messages.append(
            PlannedMessage(
                message_no=number,
                order_key=order,
                kind=MessageKind.COPY if order in orders[: number - 1] else MessageKind.ORDER,
                body=json.dumps(body),
                expected_item=item_text({name: typed_value(body[name]) for name in body}),
                offset_ns=0,
            )
        )
    return Plan(tuple(messages))


def carry_out(
    directory: Path,
    url: str,
    work: str,
    plan: Plan,
    *rules: FaultRule,
    queue: Mapping[str, Any],
    concurrency: int = 2,
    drain_limit_s: float = 40.0,
) -> Carried:
    """Carry it out at this endpoint; ``work(orders, run)`` is what the handler does."""
    settings = settings_of(
        {
            "handler": {
                "code": "src",
                "handler": "app.handler",
                "timeout": queue["visibility_timeout"],
                "environment": {
                    "TABLE_NAME": "{table:orders}",
                    "DIARY": str(directory / "diary"),
                },
            },
            "queue": queue,
            "load": {
                "concurrency": concurrency,
                "drain_limit": drain_limit_s,
                "orders": len(plan.messages),
                "copies": 1,
            },
            "result": {"processed": "processed", "duplicate": "duplicate"},
        },
        _code(directory, work),
    )
    settings = replace(settings, faults=FaultPlan(rules, seed=1))
    return asyncio.run(_carried(directory, url, settings, plan))


def _code(directory: Path, work: str) -> Path:
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "app.py").write_text(_HANDLER + work)
    (directory / "diary").touch()
    return directory


async def _carried(directory: Path, url: str, settings: Settings, plan: Plan) -> Carried:
    clock = HostClock()
    run_id, run_dir = new_run_dir(directory / "runs", clock)
    info = run_info(
        settings, plan, run_id=run_id, endpoint_url=url, created_at=clock.now_ns(), command="-"
    )
    said: list[str] = []
    stage = Stage(
        settings,
        run_dir,
        run_id=run_id,
        endpoint_url=url,
        clock=clock,
        phase=said.append,
        warn=said.append,
    )
    async with stage:
        started_ns = clock.now_ns()
        await stage.carry_out(plan, rate_per_s=None, stop=asyncio.Event(), drain=asyncio.Event())
        settled = stage.ledger.is_settled
        await stage.finish()
        write_run_info(run_dir, finished(info, stage, RunStatus.FINISHED, clock))
    finish_evidence(run_dir)
    return Carried(Run(run_dir), directory / "diary", settled, started_ns, tuple(stage.gone))
