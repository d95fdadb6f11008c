"""``loadtest clean --run``: what a killed run left at a function is found by its evidence."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from pathlib import Path
from typing import Any

import boto3

from loadtest.aws.account import Account
from tests.cli import Ended, Reply, end_of, loadtest, only_run, started, until
from tests.control_plane import Asked, control_plane
from tests.deployed_stack import DeployedStack, deploy


def deployed(url: str, name: str, *, source: str | None = None) -> DeployedStack:
    async def carry_out() -> DeployedStack:
        async with Account(endpoint_url=url) as account:
            return await deploy(account, name, source=source, tags={"onceproof": "test"})

    return asyncio.run(carry_out())


def settings_of(functions: Any, name: str) -> tuple[Any, ...]:
    """What a recorder changes."""
    about = functions.get_function_configuration(FunctionName=name)
    layers = [layer["Arn"] for layer in about.get("Layers", ())]
    return about["Handler"], layers, about["Environment"]["Variables"]


def test_what_a_killed_run_left_is_removed_and_put_back_and_nothing_else(
    emulator_url: str, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}")
    common: dict[str, Any] = {"endpoint_url": emulator_url, "region_name": "us-east-1"}
    dynamodb, functions = (boto3.client(name, **common) for name in ("dynamodb", "lambda"))
    foreign = {"id": {"S": "somebody else's"}, "note": {"S": "keep me"}}
    dynamodb.put_item(TableName=stack.table, Item=foreign)
    settings = settings_of(functions, stack.function)
    sent, deaf, ended = threading.Event(), threading.Event(), threading.Event()

    def hold(asked: Asked) -> Reply:
        """Once its messages are sent, the run hears nothing more."""
        if asked.action == "sqs:GetQueueAttributes" and sent.is_set():
            deaf.set()
            ended.wait(60)
        reply = asked.forward()
        if asked.action == "sqs:SendMessageBatch":
            sent.set()
        return reply

    with (
        control_plane(emulator_url, hold) as url,
        started(
            *("run", "--target", "aws", "--function", stack.function, "--endpoint-url", url),
            *("--enable-stream", "--record", "--yes"),
            *("--orders", "2", "--copies", "2", "--poison", "0"),
            cwd=tmp_path,
        ) as process,
    ):
        assert deaf.wait(60), end_of(process).err
        process.kill()
        end_of(process)
        ended.set()
    run = only_run(tmp_path)
    keys = {message["order_key"] for message in run.lines("messages")}

    def items() -> list[Any]:
        return list(dynamodb.scan(TableName=stack.table)["Items"])

    def streamed() -> object:
        about = dynamodb.describe_table(TableName=stack.table)["Table"]
        return about.get("StreamSpecification", {}).get("StreamEnabled")

    # The function goes on with what was sent.
    until(lambda: {item["id"]["S"] for item in items()} > keys, "both orders are stored")
    assert streamed()
    assert settings_of(functions, stack.function)[0] == "onceproof_recorder.handler"

    left = (
        f"2 items of the run in table {stack.table}",
        f"the stream of table {stack.table}, which the run switched on",
        f"the recorder of function {stack.function}",
    )
    asked = loadtest("clean", "--run", run.path, "--endpoint-url", emulator_url, cwd=tmp_path)
    assert asked.code == 2, "nobody can be asked"
    for text in left:
        assert text in asked.said

    def denied(asked: Asked) -> Reply:
        return asked.denied() if asked.action == "dynamodb:BatchWriteItem" else asked.forward()

    def clean(url: str) -> Ended:
        return loadtest("clean", "--run", run.path, "--endpoint-url", url, "--yes", cwd=tmp_path)

    with control_plane(emulator_url, denied) as url:
        refused = clean(url)
    assert refused.code == 4
    assert f"these may be left: {left[0]}." in refused.said
    assert "Allow dynamodb:BatchWriteItem" in refused.said
    # All the rest is done nevertheless.
    assert not streamed()
    assert settings_of(functions, stack.function) == settings
    assert functions.list_layers()["Layers"] == []

    cleaned = clean(emulator_url)
    assert cleaned.code == 0, cleaned.said
    assert f"gone: {left[0]}" in cleaned.said
    assert items() == [foreign]
    assert "nothing is left of the run in account" in clean(emulator_url).said

    other = json.loads((run.path / "run.json").read_text())
    other["deployed"]["account_id"] = "123456789012"
    (run.path / "run.json").write_text(json.dumps(other))
    elsewhere = clean(emulator_url)
    assert elsewhere.code == 2
    assert "is of account 123456789012" in elsewhere.said
