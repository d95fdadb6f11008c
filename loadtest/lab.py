"""``loadtest lab``: the smallest story, walked step by step with the reference handler.

One order alone, then two copies of it, then one other order. Each step is over before
the next begins, so every decision is certain: four deliveries, two accepted writes, two
rejections whose item is the same before and after.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.schema import Decision, MessageKind, Phase, RunStatus, item_text, typed_value
from analysis.store import Evidence, finish_evidence, open_evidence
from consumer.clock import Clock
from loadtest.config import load_settings
from loadtest.event_loop import run_in_loop
from loadtest.plan import Plan, PlannedMessage
from loadtest.run import finished, new_run_dir, run_info, write_run_info
from loadtest.stage import Stage
from loadtest.targets import KEEP_UNCHANGED

STORY: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    ("one order alone", (("dedup-order", 4),)),
    ("two copies of it", (("dedup-order", 4), ("dedup-order", 4))),
    ("one other order", (("other-order", 1),)),
)
_EXPECTED_ITEMS = {
    ("dedup-order", "4", "1100"),
    ("other-order", "1", "350"),
}


@dataclass(frozen=True, slots=True)
class Held:
    """One thing that the story promises."""

    what: str
    holds: bool
    seen: str


def walk(*, endpoint_url: str | None, out: Path, clock: Clock, console: Console) -> bool:
    """Walk the story and print it; whether everything it promises held.

    :raises OnceproofError: when it could not be walked.
    """
    run_id, run_dir = new_run_dir(out, clock)
    counters, gone = run_in_loop(_walk(endpoint_url, run_id, run_dir, clock, console))
    finish_evidence(run_dir)
    with open_evidence(run_dir) as evidence:
        console.print(_deliveries(evidence))
        promises = _promises(evidence, counters)
    promises.append(Held("everything removed and proven gone", len(gone) >= 4, ", ".join(gone)))
    print_held(console, promises)
    console.print(Text(f"evidence  {run_dir}"), soft_wrap=True)
    return all(promise.holds for promise in promises)


def print_held(console: Console, promises: Sequence[Held]) -> None:
    for promise in promises:
        mark = Text("✓ ", "green") if promise.holds else Text("✗ ", "red")
        console.print(mark + Text(f"{promise.what}: {promise.seen}"))


async def _walk(
    endpoint_url: str | None, run_id: str, run_dir: Path, clock: Clock, console: Console
) -> tuple[tuple[int, int], list[str]]:
    flags = {"load.concurrency": 2, "load.orders": 2, "load.copies": 2}
    settings = load_settings(None, flags, run_dir)
    steps = _plans()
    whole = Plan(tuple(message for plan in steps for message in plan.messages))
    info = run_info(
        settings,
        whole,
        run_id=run_id,
        endpoint_url=endpoint_url,
        created_at=clock.now_ns(),
        command="loadtest lab",
    )
    write_run_info(run_dir, info)

    def say(text: str) -> None:
        console.print(Text(text, style="dim"))

    stage = Stage(
        settings,
        run_dir,
        run_id=run_id,
        endpoint_url=endpoint_url,
        clock=clock,
        phase=say,
        warn=say,
    )
    async with stage:
        for (name, _), plan in zip(STORY, steps, strict=True):
            say(name)
            await stage.carry_out(
                plan, rate_per_s=None, stop=asyncio.Event(), drain=asyncio.Event()
            )
        await stage.finish()
        counters = await stage.endpoint.final_counters()
        write_run_info(run_dir, finished(info, stage, RunStatus.FINISHED, clock))
    return counters, stage.gone


def _plans() -> list[Plan]:
    plans = []
    number = 0
    seen: set[str] = set()
    for _, orders in STORY:
        messages = []
        for order_key, quantity in orders:
            number += 1
            order = {"id": order_key, "quantity": quantity}
            messages.append(
                PlannedMessage(
                    message_no=number,
                    order_key=order_key,
                    kind=MessageKind.COPY if order_key in seen else MessageKind.ORDER,
                    body=json.dumps(order),
                    expected_item=item_text(
                        {name: typed_value(value) for name, value in order.items()}
                    ),
                    offset_ns=0,
                )
            )
            seen.add(order_key)
        plans.append(Plan(tuple(messages)))
    return plans


def _deliveries(evidence: Evidence) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    for name in ("message", "env", "result", "write", "item before", "item after"):
        table.add_column(name, overflow="fold")
    rows = evidence.rows(
        """
        SELECT d.message_no, m.kind, i.environment, r.result, c.decision, c.before, c.after
        FROM deliveries d
        JOIN messages m USING (message_no)
        JOIN invocations i USING (invocation_id)
        LEFT JOIN results r USING (invocation_id, message_no)
        LEFT JOIN calls USING (invocation_id)
        LEFT JOIN call_items c USING (call_id)
        ORDER BY i.started_at
        """
    )
    for row in rows:
        table.add_row(
            f"{row['message_no']} {row['kind']}",
            str(row["environment"]),
            row["result"],
            row["decision"],
            Text(_short(row["before"])),
            Text(_short(row["after"])),
        )
    return table


def _short(item: str | None) -> str:
    """An item as plain values; ``-`` for none."""
    if item is None:
        return "not known"
    return "/".join(str(next(iter(value.values()))) for value in json.loads(item).values()) or "-"


def _promises(evidence: Evidence, counters: tuple[int, int]) -> list[Held]:
    def count(sql: str, *parameters: Any) -> int:
        return int(evidence.scalar(sql, parameters))

    deliveries = count("SELECT count(*) FROM deliveries WHERE queue = 'queue'")
    by_decision = {
        decision: count("SELECT count(*) FROM call_items WHERE decision = ?", decision)
        for decision in (Decision.ACCEPTED, Decision.REJECTED)
    }
    unchanged = count(
        "SELECT count(*) FROM call_items WHERE decision = 'rejected' AND before = after"
    )
    after = evidence.rows("SELECT resource, item FROM items WHERE phase = ?", [Phase.AFTER])
    items = [json.loads(row["item"]) for row in after]
    orders = {
        (item["id"]["S"], item["quantity"]["N"], item["total_cents"]["N"])
        for item in items
        if "quantity" in item
    }
    notes = [item["note"]["S"] for item in items if "note" in item]
    accepted, rejected = by_decision[Decision.ACCEPTED], by_decision[Decision.REJECTED]
    return [
        Held("four deliveries", deliveries == 4, str(deliveries)),
        Held("two accepted writes", accepted == 2, str(accepted)),
        Held(
            "two rejections, their item unchanged",
            rejected == unchanged == 2,
            f"{rejected}, {unchanged} unchanged",
        ),
        Held(
            "items exactly those two",
            orders == _EXPECTED_ITEMS,
            ", ".join("/".join(order) for order in sorted(orders)),
        ),
        Held(
            "queue empty (waiting and in flight)",
            counters == (0, 0),
            f"{counters[0]} and {counters[1]}",
        ),
        Held("reference item untouched", notes == [KEEP_UNCHANGED], ", ".join(notes)),
    ]
