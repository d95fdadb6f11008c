"""What is asked before anything is sent to an account: whose it is, how much it may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.errors import UsageError
from analysis.schema import MessageKind
from analysis.text import count
from loadtest.aws.account import Account
from loadtest.aws.cost import Load, Units, expected, usd_text
from loadtest.aws.deployed import Deployed
from loadtest.aws.resources import TAG, tags_of
from loadtest.plan import Plan
from loadtest.sections import AwsSettings

_LOGGED_BYTES = 1024
"""What a handler logs of a message."""
_RECORDED_BYTES = 8192
"""With a recorder; the reference handler came to 3,500."""
_USUAL_MS = 100.0
_MOST_RECEIVES = 10
"""Without a dead-letter queue there is no bound; so many are reckoned with."""


async def check_ownership(account: Account, deployed: Deployed, aws: AwsSettings) -> None:
    """:raises UsageError: something is neither made by this tool nor named as owned."""
    others = []
    for kind, name, seen in deployed.owned_parts():
        if name not in aws.owned and TAG not in await tags_of(account, kind, name, seen):
            others.append((kind, name))
    if not others:
        return
    names = dict.fromkeys([*aws.owned, *(name for _, name in others)])
    listed = ", ".join(f'"{name}"' for name in names)
    what = ", ".join(f"{kind} {name}" for kind, name in others)
    raise UsageError(
        f"[aws] owned: {what} in {account.identity} was not made by this tool, and the "
        "configuration does not say that a run may use it. A run sends it orders that are not "
        "real, and removes their items and messages again. If it may, put this into "
        f"loadtest.toml:\n\n[aws]\nowned = [{listed}]"
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    usual: Units
    most: Units

    def text(self) -> str:
        return (
            f"{_about(self.usual.usd)}, at most {usd_text(self.most.usd)}: every message "
            "received as often as the queue allows, every invocation until its timeout "
            "(list prices of us-east-1)"
        )


def estimate(
    plan: Plan, deployed: Deployed, *, with_stream: bool, recorded: bool = False
) -> Estimate:
    """What AWS will bill for the plan, as a rule and at worst."""
    refused = sum(
        message.kind in (MessageKind.CONFLICT, MessageKind.POISON) for message in plan.messages
    )
    receives = min(deployed.max_receive_count, _MOST_RECEIVES)
    messages = len(plan.messages)
    keys = len({message.order_key for message in plan.messages})
    lasting_s = 120.0 + plan.messages[-1].offset_ns / 1e9

    def load(deliveries_per_message: float, records: int, billed_ms: float) -> Units:
        return expected(
            Load(
                messages=messages,
                body_bytes=max(len(message.body.encode()) for message in plan.messages),
                deliveries_per_message=deliveries_per_message,
                records_per_invocation=records,
                billed_ms=billed_ms,
                memory_mb=deployed.memory_mb,
                arm=deployed.arm,
                keys_read=3 * keys,  # before, after, and when they have been removed
                stream_reads=math.ceil(lasting_s) if with_stream else 0,
                log_bytes_per_delivery=_RECORDED_BYTES if recorded else _LOGGED_BYTES,
                lasting_s=lasting_s,
            )
        )

    deliveries = (messages + refused * (receives - 1)) / messages
    usual_ms = min(_USUAL_MS, deployed.timeout_s * 1000)
    return Estimate(
        load(deliveries, deployed.batch_size, usual_ms),
        load(receives, 1, deployed.timeout_s * 1000),
    )


def check_ceilings(plan: Plan, cost: Estimate, aws: AwsSettings) -> None:
    """:raises UsageError: the plan is larger than the configuration allows."""
    messages = len(plan.messages)
    if messages > aws.max_messages:
        raise UsageError(
            f"[aws] max_messages: the plan has {messages:,} messages, at most "
            f"{aws.max_messages:,} are allowed. Send fewer (--orders, --copies), or raise it."
        )
    sending_s = plan.messages[-1].offset_ns / 1e9
    if sending_s > aws.max_seconds:
        raise UsageError(
            f"[aws] max_seconds: sending alone takes {sending_s:,.0f} s at this rate, at most "
            f"{aws.max_seconds:g} s are allowed. Send faster (--rate), or raise it."
        )
    if cost.most.usd > aws.max_usd:
        raise UsageError(
            f"[aws] max_usd: the run may cost {usd_text(cost.most.usd)} at worst, at most "
            f"{usd_text(aws.max_usd)} are allowed. Send fewer (--orders, --copies), or raise it."
        )


def check_queue_is_empty(deployed: Deployed, *, allow_backlog: bool) -> None:
    """:raises UsageError: the queue holds messages already."""
    waiting = deployed.queue.waiting
    if waiting and not allow_backlog:
        raise UsageError(
            f"queue {deployed.queue.name} already holds about {count(waiting, 'message')}. Wait "
            "until it is empty, or send to it nevertheless with --allow-backlog: the function "
            "then works on them in between."
        )


def lines(
    account: Account, deployed: Deployed, plan: Plan, cost: Estimate, aws: AwsSettings
) -> list[tuple[str, str]]:
    """What is going to be used, as it is shown before anything is sent."""
    queue, dead = deployed.queue, deployed.dead_letter_queue
    limit = "" if deployed.concurrency is None else f", at most {deployed.concurrency} at once"
    dropped = ", what its filter does not match is dropped" if deployed.has_filter else ""
    letters = (
        "no dead-letter queue"
        if dead is None
        else f"after {deployed.max_receive_count} receives to {dead.name}"
        + (f" (which holds {count(dead.waiting, 'message')})" if dead.waiting else "")
    )
    return [
        ("in", str(account.identity)),
        ("as", account.identity.caller_arn),
        (
            "function",
            f"{deployed.function}, {deployed.runtime}, {deployed.memory_mb} MB, timeout "
            f"{deployed.timeout_s:g} s",
        ),
        (
            "queue",
            f"{queue.name}{' (FIFO)' if queue.fifo else ''}, batches of {deployed.batch_size}"
            f"{limit}{dropped}, visibility {queue.visibility_timeout_s} s, {letters}",
        ),
        *(
            ("table", f"{table.info.name} ({table.info.role}), {_stream_text(table.stream_view)}")
            for table in deployed.tables
        ),
        ("messages", f"{len(plan.messages):,} of {plan.orders():,} orders"),
        ("cost", cost.text()),
        (
            "ceilings",
            f"{aws.max_messages:,} messages, {aws.max_seconds:g} s, {usd_text(aws.max_usd)}",
        ),
    ]


def _stream_text(view: str | None) -> str:
    return "no stream" if view is None else f"stream of {view}"


def _about(usd: float) -> str:
    text = usd_text(usd)
    return text if text.startswith("less") else f"about {text}"


def counted_text(units: Units, throttled: Mapping[str, int]) -> str:
    """What was billed, as far as it could be counted."""
    parts = [
        f"{units.sqs_requests:,} SQS requests at most",
        count(units.lambda_requests, "Lambda request"),
        f"{units.lambda_gb_s + units.lambda_arm_gb_s:.3g} GB-seconds",
        f"{units.write_units:,} write and {units.read_units:,.0f} read units",
        count(units.log_bytes, "log byte"),
    ]
    slow = "".join(
        f"; {action} was throttled {number} times" for action, number in throttled.items()
    )
    return f"cost {_about(units.usd)} ({', '.join(parts)}){slow}"
