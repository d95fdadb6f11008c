"""``run --target aws --record``: a deployed function's own calls as evidence, and the function as
it was before afterwards, whatever happens."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest

from analysis.findings import FindingKind
from analysis.schema import Observation
from tests.cli import Ended, Reply, Run, end_of, loadtest, only_run, started
from tests.control_plane import Asked, control_plane
from tests.deployed_stack import DeployedStack
from tests.test_aws_clean_run import deployed

# Looks first, and puts without a condition; then notes that it did, in another way each time.
CARELESS = """
import json, os
import boto3
client = boto3.client("dynamodb")
name = os.environ["TABLE_NAME"]
def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        key = {"id": {"S": order["id"]}}
        there = "Item" in client.get_item(TableName=name, Key=key)
        answer = client.put_item(
            TableName=name, Item={**key, "quantity": {"N": str(order["quantity"])}}
        )
        assert "Attributes" not in answer, "what was not asked for is not seen"
        try:
            client.delete_item(
                TableName=name, Key=key, ConditionExpression="attribute_exists(never)"
            )
        except client.exceptions.ConditionalCheckFailedException as error:
            assert "Item" not in error.response
        print("SECRET=" + os.environ["SECRET"])
    return {"processed": not there, "duplicate": there}
"""


@pytest.fixture
def functions(emulator_url: str) -> Any:
    return boto3.client("lambda", endpoint_url=emulator_url, region_name="us-east-1")


def settings_of(functions: Any, name: str) -> tuple[Any, ...]:
    about = functions.get_function_configuration(FunctionName=name)
    layers = [layer["Arn"] for layer in about.get("Layers", ())]
    return about["Handler"], layers, about["Environment"]["Variables"]


def arguments(stack: DeployedStack, url: str) -> list[str]:
    return [
        *("run", "--target", "aws", "--function", stack.function, "--record", "--yes"),
        *("--endpoint-url", url, "--orders", "2", "--copies", "2", "--poison", "0"),
        *("--conflicts", "0"),
    ]


def flood(stack: DeployedStack, url: str, cwd: Path) -> Ended:
    return loadtest(*arguments(stack, url), cwd=cwd)


def test_calls_items_and_results_of_a_deployed_function(
    emulator_url: str, functions: Any, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}", source=CARELESS)
    handler, layers, variables = settings_of(functions, stack.function)
    functions.update_function_configuration(
        FunctionName=stack.function, Environment={"Variables": {**variables, "SECRET": "s3cret"}}
    )
    before = settings_of(functions, stack.function)
    (tmp_path / "loadtest.toml").write_text(
        f'[[table]]\nname = "{stack.table}"\nkey = "id"\n[result]\nprocessed = "processed"\n'
        'duplicate = "duplicate"\n'
    )
    ended = flood(stack, emulator_url, tmp_path)
    assert ended.code == 1, ended.said
    run = only_run(tmp_path)
    assert run.info.not_observable.keys() == {Observation.OTHER_ITEMS}
    assert run.findings() == {FindingKind.OVERWRITE: 2}

    calls = run.rows("SELECT operation, decision, count(*) AS n FROM calls GROUP BY ALL")
    assert {(row["operation"], row["decision"]): row["n"] for row in calls} == {
        ("GetItem", "accepted"): 4,
        ("PutItem", "accepted"): 4,
        ("DeleteItem", "rejected"): 4,
    }
    overwritten = "action = 'put' AND before <> '{}' AND before = after"
    assert len(run.rows(f"SELECT * FROM call_items WHERE {overwritten}")) == 2
    results = run.rows("SELECT result, count(*) AS n FROM results GROUP BY ALL")
    assert {row["result"]: row["n"] for row in results} == {"processed": 2, "duplicate": 2}
    outside = "c.sent_at NOT BETWEEN i.started_at AND i.ended_at"
    sql = f"SELECT * FROM invocations i JOIN calls c USING (invocation_id) WHERE {outside}"
    assert run.rows(sql) == []

    assert settings_of(functions, stack.function) == before
    assert (handler, layers) == before[:2]
    assert functions.list_layers()["Layers"] == []
    for path in run.holds("s3cret"):
        assert path.name == "function.log", "what the handler prints is its own"
    log = (run.path / "function.log").read_text()
    assert '"onceproof": "call"' in log
    assert "ONCEPROOF_HANDLER" not in log


def test_a_function_is_put_back_after_a_kill(
    emulator_url: str, functions: Any, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}")
    before = settings_of(functions, stack.function)
    (tmp_path / "loadtest.toml").write_text(f'[[table]]\nname = "{stack.table}"\nkey = "id"\n')
    reached, ended = threading.Event(), threading.Event()

    def hold(asked: Asked) -> Reply:
        reply = asked.forward()
        if asked.action == "lambda:UpdateFunctionConfiguration":
            reached.set()  # changed, and the run does not know it
            ended.wait(60)
        return reply

    with (
        control_plane(emulator_url, hold) as url,
        started(*arguments(stack, url), cwd=tmp_path) as process,
    ):
        assert reached.wait(60), end_of(process).err
        process.kill()
        end_of(process)
        ended.set()
    assert settings_of(functions, stack.function)[0] == "onceproof_recorder.handler"
    run: Run = only_run(tmp_path)
    again = flood(stack, emulator_url, tmp_path)
    assert again.code == 2
    assert "is still recorded by another run" in again.said

    cleaned = loadtest(
        *("clean", "--run", run.path, "--endpoint-url", emulator_url, "--yes"), cwd=tmp_path
    )
    assert cleaned.code == 0, cleaned.said
    assert f"gone: the recorder of function {stack.function}" in cleaned.said
    assert settings_of(functions, stack.function) == before
    assert functions.list_layers()["Layers"] == []


def test_what_cannot_be_recorded_is_told_before_anything_is_changed(
    emulator_url: str, functions: Any, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}")
    (tmp_path / "loadtest.toml").write_text(f'[[table]]\nname = "{stack.table}"\nkey = "id"\n')
    functions.update_function_configuration(FunctionName=stack.function, Runtime="nodejs22.x")
    refused = flood(stack, emulator_url, tmp_path)
    assert refused.code == 2
    assert f"{stack.function} is nodejs22.x" in refused.said
    version = functions.publish_version(FunctionName=stack.function)["Version"]
    functions.update_event_source_mapping(
        UUID=stack.mapping_id, FunctionName=f"{stack.function}:{version}"
    )
    refused = flood(stack, emulator_url, tmp_path)
    assert refused.code == 2
    assert f"the mapping invokes {stack.function}:{version}" in refused.said
    assert functions.list_layers()["Layers"] == []
    assert not (tmp_path / "runs").exists()
