"""``loadtest clean --run``: what a killed run left at a function is found by its evidence."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from pathlib import Path
from typing import Any

from loadtest.aws.account import Account
from tests.cli import Reply, end_of, loadtest, only_run, started
from tests.control_plane import Asked, control_plane
from tests.deployed_stack import DeployedStack, deploy


def calls(url: str, *asked: tuple[str, str, dict[str, Any]]) -> list[dict[str, Any]]:
    async def carry_out() -> list[dict[str, Any]]:
        async with Account(endpoint_url=url) as account:
            return [await account.call(one, what, **with_) for one, what, with_ in asked]

    return asyncio.run(carry_out())


def deployed(url: str, name: str, *, source: str | None = None) -> DeployedStack:
    async def carry_out() -> DeployedStack:
        async with Account(endpoint_url=url) as account:
            return await deploy(account, name, source=source, tags={"onceproof": "test"})

    return asyncio.run(carry_out())


def test_what_a_killed_run_left_is_removed_and_nothing_else(
    emulator_url: str, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}")
    foreign = {"id": {"S": "somebody else's"}, "note": {"S": "keep me"}}
    calls(emulator_url, ("dynamodb", "PutItem", {"TableName": stack.table, "Item": foreign}))
    consumed, ended = threading.Event(), threading.Event()

    def hold(asked: Asked) -> Reply:
        """Once its messages are sent, the run hears nothing more."""
        if asked.action == "sqs:GetQueueAttributes" and sent.is_set():
            consumed.set()
            ended.wait(60)
        reply = asked.forward()
        if asked.action == "sqs:SendMessageBatch":
            sent.set()
        return reply

    sent = threading.Event()
    arguments = ("run", "--target", "aws", "--function", stack.function, "--enable-stream")
    with (
        control_plane(emulator_url, hold) as url,
        started(
            *(*arguments, "--orders", "2", "--copies", "2", "--poison", "0", "--yes"),
            *("--endpoint-url", url),
            cwd=tmp_path,
        ) as process,
    ):
        assert consumed.wait(60), end_of(process).err
        process.kill()
        end_of(process)
        ended.set()
    run = only_run(tmp_path)
    names = {message["order_key"] for message in run.lines("messages")}

    def left() -> tuple[list[Any], bool]:
        scan, about = calls(
            emulator_url,
            ("dynamodb", "Scan", {"TableName": stack.table}),
            ("dynamodb", "DescribeTable", {"TableName": stack.table}),
        )
        return scan["Items"], about["Table"].get("StreamSpecification", {}).get("StreamEnabled")

    deadline = threading.Event()
    for _ in range(300):  # the function goes on with what was sent
        items, streamed = left()
        if {item["id"]["S"] for item in items} == {*names, "somebody else's"}:
            break
        deadline.wait(0.1)
    assert len(items) == 3
    assert streamed

    asked = loadtest("clean", "--run", run.path, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert asked.code == 2, "nobody can be asked"
    for text in (
        f"2 items of the run in table {stack.table}",
        f"the stream of table {stack.table}",
    ):
        assert text in asked.said

    def denied(asked: Asked) -> Reply:
        return asked.denied() if asked.action == "dynamodb:BatchWriteItem" else asked.forward()

    def clean(url: str) -> Any:
        return loadtest("clean", "--run", run.path, "--endpoint-url", url, "--yes", cwd=tmp_path)

    with control_plane(emulator_url, denied) as url:
        refused = clean(url)
    assert refused.code == 4
    assert f"these may be left: 2 items of the run in table {stack.table}." in refused.said
    assert "Allow dynamodb:BatchWriteItem" in refused.said
    assert not left()[1], "all the rest is done nevertheless"

    cleaned = clean(emulator_url)
    assert cleaned.code == 0, cleaned.said
    assert f"gone: 2 items of the run in table {stack.table}" in cleaned.said
    assert left()[0] == [foreign]
    assert "nothing is left of the run in account" in clean(emulator_url).said

    other = json.loads((run.path / "run.json").read_text())
    other["deployed"]["account_id"] = "123456789012"
    (run.path / "run.json").write_text(json.dumps(other))
    elsewhere = clean(emulator_url)
    assert elsewhere.code == 2
    assert "is of account 123456789012" in elsewhere.said
