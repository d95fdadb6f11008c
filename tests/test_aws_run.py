"""A flood of a deployed function, through an emulator's own Lambda API, mapping, logs and streams.

That mapping is serial: two copies never meet, and the run has to say so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from analysis.findings import CheckStatus, FindingKind, Verdict, VerdictWord
from analysis.query import ask
from analysis.schema import Observation, RunInfo
from analysis.store import load_run
from analysis.verdict import read_verdict
from loadtest.aws.account import Account
from tests.cli import Ended, loadtest
from tests.deployed_stack import DeployedStack, deploy

T = TypeVar("T")

# Names no message in its log, and overwrites whatever is there.
CARELESS = """
import json, os
import boto3
table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
def handler(event, context):
    for record in event["Records"]:
        table.put_item(Item=json.loads(record["body"]))
"""
SECRET = "a value of the function's own"


def on(url: str, work: Callable[[Account], Awaitable[T]]) -> T:
    async def carry_out() -> T:
        async with Account(endpoint_url=url) as account:
            return await work(account)

    return asyncio.run(carry_out())


def deployed(url: str, name: str, **what: Any) -> DeployedStack:
    return on(url, lambda account: deploy(account, name, **what))


def flood(stack: DeployedStack, url: str, cwd: Path, *more: str) -> Ended:
    return loadtest(
        *("run", "--target", "aws", "--function", stack.function, "--endpoint-url", url),
        *("--orders", "3", "--copies", "2", *more),
        cwd=cwd,
    )


def own(stack: DeployedStack, cwd: Path, *more: str) -> None:
    names = ", ".join(f'"{name}"' for name in stack.names)
    (cwd / "loadtest.toml").write_text("\n".join([f"[aws]\nowned = [{names}]", *more]))


def the_run(cwd: Path) -> tuple[Path, RunInfo, Verdict]:
    (run_dir,) = (cwd / "runs").iterdir()
    return run_dir, load_run(run_dir), read_verdict(run_dir)


def rows(run_dir: Path, sql: str) -> list[tuple[Any, ...]]:
    with ask(run_dir, sql) as answer:
        return [tuple(row) for row in answer.rows()]


async def _items(account: Account, stack: DeployedStack) -> list[dict[str, Any]]:
    answer = await account.call("dynamodb", "Scan", TableName=stack.table)
    return list(answer["Items"])


async def _visible(account: Account, url: str) -> list[str]:
    answer = await account.call("sqs", "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
    return [message["Body"] for message in answer.get("Messages", ())]


async def _stream(account: Account, stack: DeployedStack) -> bool:
    answer = await account.call("dynamodb", "DescribeTable", TableName=stack.table)
    return bool(answer["Table"].get("StreamSpecification", {}).get("StreamEnabled"))


def test_reference_handler_with_a_stream(emulator_url: str, tmp_path: Path) -> None:
    url = emulator_url
    stack = deployed(url, "reference", stream=True, visibility_timeout_s=2)

    async def beside(account: Account) -> None:
        item = {"id": {"S": "somebody else's"}, "quantity": {"N": "1"}}
        await account.call("dynamodb", "PutItem", TableName=stack.table, Item=item)
        await account.call(
            "sqs", "SendMessage", QueueUrl=stack.dead_letter_url, MessageBody="somebody else's"
        )

    on(url, beside)
    own(stack, tmp_path)
    ended = flood(stack, url, tmp_path, "--poison", "0.3", "--yes")
    assert ended.code == 3, ended.said
    run_dir, run, verdict = the_run(tmp_path)

    # The only thing missing is the race, which a serial mapping cannot show.
    assert [rule.name for rule in verdict.rules if not rule.passed] == ["exposure"]
    assert set(run.not_observable) == {
        Observation.CALLS,
        Observation.RESULTS,
        Observation.DELETES,
        Observation.ORDER,
        Observation.OTHER_ITEMS,
    }
    unseen = {c.kind for c in verdict.checks if c.status is CheckStatus.NOT_OBSERVABLE}
    assert FindingKind.OVERWRITE not in unseen
    assert FindingKind.SELF_CONFLICT in unseen
    assert run.target == "aws"
    assert run.deployed is not None
    assert run.deployed.function == stack.function
    assert "account 000000000000, region us-east-1" in ended.said
    assert "- not observable: double-accept, wrong-key" in ended.out

    # 3 orders x 2, one conflict, one poison; the last two are refused twice each.
    counts = verdict.counts
    assert (counts.messages, counts.deliveries, counts.redeliveries) == (8, 10, 2)
    assert (counts.accepted_writes, counts.deleted, counts.dead_lettered) == (3, 6, 2)
    # This emulator's log does not tell an exception that nobody caught.
    assert rows(run_dir, "SELECT outcome, count(*) FROM invocations GROUP BY ALL") == [
        ("returned", 10)
    ]
    assert rows(
        run_dir,
        "SELECT count(*) FROM call_items JOIN items USING (resource, item_key) "
        "WHERE before = '{}' AND after = item",
    ) == [(3,)]

    # Ids of the run are its own, its log is kept, and nothing of it is left.
    short = run_dir.name.rpartition("-")[2]
    keys = rows(run_dir, "SELECT DISTINCT order_key FROM messages")
    assert all(key.startswith(f"{short}-") for (key,) in keys)
    assert "START RequestId" in (run_dir / "function.log").read_text()
    assert [item["id"]["S"] for item in on(url, lambda a: _items(a, stack))] == ["somebody else's"]
    assert on(url, lambda a: _visible(a, stack.dead_letter_url)) == ["somebody else's"]
    assert on(url, lambda a: _visible(a, stack.queue_url)) == []


def test_an_overwrite_is_found_by_a_stream_switched_on_for_the_run(
    emulator_url: str, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, "careless", source=CARELESS, visibility_timeout_s=2)
    own(stack, tmp_path)
    ended = flood(
        stack, emulator_url, tmp_path, "--poison", "0", "--conflicts", "0.4", "--yes",
        "--enable-stream", "--keep-items",
    )  # fmt: skip
    assert ended.code == 1, ended.said
    _, run, verdict = the_run(tmp_path)
    assert verdict.verdict is VerdictWord.FAIL
    found = {check.kind for check in verdict.checks if check.count}
    assert found == {FindingKind.OVERWRITE, FindingKind.CONFLICT_ACKNOWLEDGED}
    # Its log names no message, so nobody knows which invocation had which.
    assert "of 7 invocations name no message id" in run.not_observable[Observation.DELIVERIES]
    assert "copies overlapped" in ended.said
    assert run.deployed is not None
    assert run.deployed.streams_enabled == (stack.table,)
    assert not on(emulator_url, lambda account: _stream(account, stack))
    assert len(on(emulator_url, lambda account: _items(account, stack))) == 3


def test_nothing_is_sent_that_is_not_allowed(emulator_url: str, tmp_path: Path) -> None:
    stack = deployed(emulator_url, "guarded")
    refused = flood(stack, emulator_url, tmp_path, "--yes")
    assert refused.code == 2
    lines = "[aws]\nowned = [" + ", ".join(json.dumps(name) for name in stack.names) + "]"
    assert lines in refused.err
    own(stack, tmp_path)
    asked = flood(stack, emulator_url, tmp_path)
    assert asked.code == 2
    assert "say --yes" in asked.said
    assert "messages 8 of 3 orders" in asked.said
    assert "at most $0.00" in asked.said
    own(stack, tmp_path, "max_messages = 3")
    assert (
        "[aws] max_messages: the plan has 8 messages"
        in flood(stack, emulator_url, tmp_path, "--yes").said
    )
    own(stack, tmp_path, "max_usd = 0.000001")
    assert (
        "[aws] max_usd: the run may cost $0.00"
        in flood(stack, emulator_url, tmp_path, "--yes").said
    )

    async def backlog(account: Account) -> None:
        uuid = stack.mapping_id
        await account.call("lambda", "UpdateEventSourceMapping", UUID=uuid, Enabled=False)
        await account.call(
            "sqs", "SendMessage", QueueUrl=stack.queue_url, MessageBody="somebody else's"
        )

    on(emulator_url, backlog)
    own(stack, tmp_path)
    disabled = flood(stack, emulator_url, tmp_path, "--yes")
    assert disabled.code == 4
    assert f"the event source mapping {stack.mapping_id}" in disabled.said
    assert "is Disabled, so nothing is consumed" in disabled.said
    assert on(emulator_url, lambda a: _visible(a, stack.queue_url)) == ["somebody else's"]
    assert not (tmp_path / "runs").exists()


_DEPLOYED = ["--target", "aws", "--function", "f"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "aws"], "--target aws needs --function"),
        (["--function", "f"], "are of --target aws: name that target as well"),
        ([*_DEPLOYED, "--control"], "--control are of runs with"),
        (
            [*_DEPLOYED, "--fault", "throttle"],
            "are made to happen by the recorder: add --record",
        ),
        (
            [*_DEPLOYED, "--record", "--fault", "redeliver-during=0.1", "--fault", "clock"],
            "--fault: redeliver-during, clock cannot be made to happen inside a deployed function",
        ),
        (
            [*_DEPLOYED, "--record", "--fault", "lost-reply:silent"],
            "the client's read timeout is not known. Use lost-reply",
        ),
        (["--target", "local", "--endpoint-url", "http://127.0.0.1:1"], "leave --endpoint-url out"),
        (["--target", "endpoint"], "--target endpoint needs --endpoint-url"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], said: str, tmp_path: Path) -> None:
    ended = loadtest("run", *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.said
