"""``loadtest clean --run DIR``: what a run on a deployed function left, by what the run recorded.

After a crash, or where the run itself could not: its items by their keys, its messages by their
stamp, a stream that it switched on, a function that it had recorded. Nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from analysis.errors import TargetError, UsageError
from analysis.schema import (
    DeployedInfo,
    QueueRole,
    RunInfo,
    TableRole,
)
from analysis.store import load_run, open_evidence
from analysis.text import count
from consumer.clock import Clock
from consumer.ledger import Ledger
from loadtest.aws.account import Account
from loadtest.aws.commands import Talk, Where, check_place
from loadtest.aws.deployed import DeployedQueue
from loadtest.aws.items import Key, OwnKeys, id_prefix, key_of, own_items, remove_items
from loadtest.aws.queues import delete_messages, own_messages, sample
from loadtest.aws.recording import is_recorded, record_off
from loadtest.aws.streams import disable_stream

_Step = tuple[str, Callable[[], Awaitable[None]]]
"""What is removed or put back, and how."""


@dataclass(slots=True)
class _Recorded:
    """What the evidence says that the run did."""

    order_keys: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=lambda: Ledger(""))


def _read(run_dir: Path, run_id: str) -> _Recorded:
    found = _Recorded(ledger=Ledger(run_id))
    with open_evidence(run_dir) as evidence:
        for row in evidence.rows("SELECT message_no, order_key, body FROM messages"):
            found.order_keys.append(row["order_key"])
            found.ledger.bodies[row["body"]].append(row["message_no"])
    found.order_keys = list(dict.fromkeys(found.order_keys))
    return found


async def clean_run(where: Where, *, run_dir: Path, clock: Clock, talk: Talk) -> None:
    """Remove what the run left, and see that it is gone.

    :raises UsageError: it was no run on a deployed function, or in another account.
    :raises TargetError: something may be left; names it and says why.
    """
    info = load_run(run_dir)
    deployed = info.deployed
    if deployed is None:
        raise UsageError(
            f"--run: {run_dir} is of a run with target {info.target}, which removed what it made. "
            "Name the directory of a run with --target aws."
        )
    recorded = _read(run_dir, info.run_id)
    where = Where(
        where.profile,
        where.region or deployed.region,
        where.endpoint_url or deployed.endpoint_url,
    )
    async with where.account() as account:
        check_place(deployed.account_id, deployed.region, account.identity, run_dir)
        steps = [
            *await _recorder(account, deployed),
            *await _messages(account, deployed, recorded, clock, _id_prefix(info)),
            *await _items(account, info, recorded),
            *await _streams(account, deployed),
        ]
        if not steps:
            talk.say(f"nothing is left of the run in {account.identity}")
            return
        talk.facts([("in", str(account.identity)), *(("removes", what) for what, _ in steps)])
        if not talk.agreed("Remove them?"):
            talk.say("nothing was removed")
            return
        await _carry_out(steps, talk)
    talk.say("removed and proven gone: all that was left of the run")


async def _carry_out(steps: list[_Step], talk: Talk) -> None:
    failed: dict[str, TargetError] = {}
    for what, step in steps:
        try:
            await step()
        except TargetError as error:
            failed[what] = error
        else:
            talk.hint(f"gone: {what}")
    if failed:
        reasons = " ".join(dict.fromkeys(map(str, failed.values())))
        raise TargetError(
            f"these may be left: {', '.join(failed)}. {reasons} Put that right, then repeat the "
            "command."
        )


# --- what is left -------------------------------------------------------------------------


async def _recorder(account: Account, deployed: DeployedInfo) -> list[_Step]:
    layer = deployed.recorder_layer
    if layer is None or not await is_recorded(account, deployed.function, layer):
        return []
    what = f"the recorder of function {deployed.function}"
    return [(what, partial(record_off, account, deployed.function, layer))]


def _id_prefix(info: RunInfo) -> str:
    key_type = next(table.key_type for table in info.tables if table.role is TableRole.ORDERS)
    return id_prefix(info.run_id.rpartition("-")[2], key_type)


async def _messages(
    account: Account,
    deployed: DeployedInfo,
    recorded: _Recorded,
    clock: Clock,
    own_ids: str,
) -> list[_Step]:
    """To tell whether a message is the run's it has to be received: not before it was agreed."""
    steps: list[_Step] = []
    for url, prefix in ((deployed.queue_url, None), (deployed.dead_letter_url, own_ids)):
        if url is None:
            continue
        queue = DeployedQueue(url.rpartition("/")[2], url, "", 0, False, False, 0)
        there = await account.find(
            "sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"]
        )
        if there is None:
            continue
        taken = await sample(account, queue, QueueRole.QUEUE, clock)
        if taken.visible + taken.in_flight + taken.delayed:
            what = f"messages of the run in queue {queue.name}"
            steps.append(
                (what, partial(_empty, account, queue, recorded.ledger, clock, prefix=prefix))
            )
    return steps


async def _empty(
    account: Account, queue: DeployedQueue, ledger: Ledger, clock: Clock, *, prefix: str | None
) -> None:
    found = await own_messages(account, queue, ledger, clock, id_prefix=prefix)
    await delete_messages(account, queue, found.own)
    left = await sample(account, queue, QueueRole.QUEUE, clock)
    if left.in_flight + left.delayed or not found.is_complete:
        raise TargetError(
            f"queue {queue.name} holds {count(left.in_flight + left.delayed, 'message')} in flight "
            "or delayed, or too many of others to look through."
        )


async def _items(account: Account, info: RunInfo, recorded: _Recorded) -> list[_Step]:
    """By the order ids of the run, under which nothing was when it began."""
    steps: list[_Step] = []
    for table in info.tables:
        if table.role is not TableRole.ORDERS:
            continue
        if await account.find("dynamodb", "DescribeTable", TableName=table.name) is None:
            continue
        keys: list[Key] = [
            key_of(table, item)
            async for item in own_items(account, OwnKeys(table, recorded.order_keys))
        ]
        if keys:
            what = f"{count(len(keys), 'item')} of the run in table {table.name}"
            steps.append((what, partial(remove_items, account, table.name, keys)))
    return steps


async def _streams(account: Account, deployed: DeployedInfo) -> list[_Step]:
    steps: list[_Step] = []
    for table in deployed.streams_enabled:
        about = await account.find("dynamodb", "DescribeTable", TableName=table)
        stream = {} if about is None else about["Table"].get("StreamSpecification", {})
        if stream.get("StreamEnabled"):
            steps.append(
                (
                    f"the stream of table {table}, which the run switched on",
                    partial(disable_stream, account, table),
                )
            )
    return steps
