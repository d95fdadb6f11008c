"""``run --target aws --record``: a deployed function's own calls as evidence, and the function as
it was before afterwards."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from analysis.errors import UsageError
from analysis.findings import FindingKind
from analysis.schema import Observation
from consumer.faults import FaultName, FaultPlan, FaultRule, Place, Where
from loadtest.aws.account import Account
from loadtest.aws.recording import check_recordable
from tests.cli import loadtest, only_run
from tests.test_aws_clean_run import deployed, settings_of

# Looks first, and puts without a condition; then notes that it did, in another way each time.
CARELESS = """
import json, os
import boto3
client = boto3.client("dynamodb")
name = os.environ["TABLE_NAME"]
secrets, sns = boto3.client("secretsmanager"), boto3.client("sns")
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
        sns.publish(TopicArn=os.environ["TOPIC"], Message=record["body"])
        secrets.put_secret_value(SecretId=name, SecretString="kept-to-myself")
        assert secrets.get_secret_value(SecretId=name)["SecretString"] == "kept-to-myself"
    return {"processed": not there, "duplicate": there}
"""


@pytest.fixture
def functions(emulator_url: str) -> Any:
    return boto3.client("lambda", endpoint_url=emulator_url, region_name="us-east-1")


def test_calls_items_and_results_of_a_deployed_function(
    emulator_url: str, functions: Any, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}", source=CARELESS)
    handler, layers, variables = settings_of(functions, stack.function)
    common: dict[str, Any] = {"endpoint_url": emulator_url, "region_name": "us-east-1"}
    topic = boto3.client("sns", **common).create_topic(Name=f"{stack.name}-receipts")["TopicArn"]
    boto3.client("secretsmanager", **common).create_secret(
        Name=stack.table, SecretString="kept-to-myself"
    )
    own = {**variables, "SECRET": "s3cret", "TOPIC": topic}
    functions.update_function_configuration(
        FunctionName=stack.function, Environment={"Variables": own}
    )
    before = settings_of(functions, stack.function)
    (tmp_path / "loadtest.toml").write_text(
        f'[[table]]\nname = "{stack.table}"\nkey = "id"\n[result]\nprocessed = "processed"\n'
        f'duplicate = "duplicate"\n[[effect]]\ncall = "sns:Publish"\nkey = "id"\n'
        f'resource = "{stack.name}-receipts"\n'
    )
    ended = loadtest(
        *("run", "--target", "aws", "--function", stack.function, "--record", "--yes"),
        *("--endpoint-url", emulator_url, "--orders", "2", "--copies", "2", "--poison", "0"),
        *("--conflicts", "0"),
        cwd=tmp_path,
    )
    assert ended.code == 1, ended.said
    assert f"changes function {stack.function}: a layer, the handler setting" in ended.said
    run = only_run(tmp_path)
    assert run.info.not_observable.keys() == {
        Observation.DELETES,
        Observation.ORDER,
        Observation.OTHER_ITEMS,
    }
    assert run.findings() == {FindingKind.OVERWRITE: 2, FindingKind.DUPLICATE_EFFECT: 2}

    calls = run.rows("SELECT operation, decision, count(*) AS n FROM calls GROUP BY ALL")
    assert {(row["operation"], row["decision"]): row["n"] for row in calls} == {
        ("GetItem", "accepted"): 4,
        ("PutItem", "accepted"): 4,
        ("DeleteItem", "rejected"): 4,
        ("Publish", "accepted"): 4,
        ("PutSecretValue", "accepted"): 4,
        ("GetSecretValue", "accepted"): 4,
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
    assert run.holds("kept-to-myself") == []
    for path in run.holds("s3cret"):
        assert path.name == "function.log", "what the handler prints is its own"
    log = (run.path / "function.log").read_text()
    assert '"onceproof": "call"' in log
    assert "ONCEPROOF_HANDLER" not in log


async def test_what_cannot_be_recorded_is_told_before_anything_is_changed(
    emulator_url: str, functions: Any
) -> None:
    stack = await asyncio.to_thread(deployed, emulator_url, f"t{secrets.token_hex(3)}")
    name = stack.function
    async with Account(endpoint_url=emulator_url) as account:
        await check_recordable(account, name, stack.mapping_id)
        version = functions.publish_version(FunctionName=name)["Version"]
        changes: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
            (
                functions.update_function_configuration,
                {"Environment": {"Variables": {"ONCEPROOF_HANDLER": "app.handler"}}},
                "is still recorded by another run",
            ),
            (
                functions.update_function_configuration,
                {"Runtime": "nodejs22.x"},
                f"{name} is nodejs22.x",
            ),
            (
                functions.update_function_configuration,
                {"Runtime": "python3.9"},
                f"needs Python 3.10 or later; function {name} is python3.9",
            ),
            (
                functions.update_event_source_mapping,
                {"UUID": stack.mapping_id, "FunctionName": f"{name}:{version}"},
                f"the mapping invokes {name}:{version}",
            ),
        ]
        for change, settings, said in changes:
            change(**{"FunctionName": name} | settings)
            with pytest.raises(UsageError, match=said):
                await check_recordable(account, name, stack.mapping_id)


# Takes any refusal for somebody else's order, also that of its own lost write.
FOREIGN = """
import json, os
import boto3
client, sns = boto3.client("dynamodb"), boto3.client("sns")
name = os.environ["TABLE_NAME"]
def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        item = {"id": {"S": order["id"]}, "quantity": {"N": str(order["quantity"])}}
        client.describe_table(TableName=name)
        client.get_item(TableName=name, Key={"id": item["id"]})
        try:
            client.put_item(
                TableName=name, Item=item, ConditionExpression="attribute_not_exists(id)"
            )
        except client.exceptions.ConditionalCheckFailedException:
            return {"duplicate": True}
        try:
            sns.publish(TopicArn="arn:aws:sns:us-east-1:000000000000:none", Message="done")
        except (sns.exceptions.NotFoundException, sns.exceptions.AuthorizationErrorException):
            pass
    return {"processed": True}
"""
FAULTS = """
throttle = { rate = 0.5, operation = "GetItem" }
crash-after-call = { operation = "PutItem", receive = 1, message = 1 }
lost-reply = { operation = "PutItem", receive = 1, message = 2 }
lost-request = { operation = "PutItem", receive = 1, message = 3 }
server-error = { option = "applied", service = "dynamodb", call = 3, message = 4 }
access-denied = { service = "sns", message = 5 }
crash-before-call = { call = 3, receive = 1, message = 6 }
crash-before-answer = { receive = 1, message = 7 }
slow = { operation = "DescribeTable", seconds = 0.05, every = 8 }
"""


def test_faults_strike_inside_a_deployed_function(
    emulator_url: str, functions: Any, tmp_path: Path
) -> None:
    stack = deployed(emulator_url, f"t{secrets.token_hex(3)}", source=FOREIGN)
    boto3.client("sqs", endpoint_url=emulator_url, region_name="us-east-1").set_queue_attributes(
        QueueUrl=stack.queue_url, Attributes={"VisibilityTimeout": "3"}
    )
    before = settings_of(functions, stack.function)
    (tmp_path / "loadtest.toml").write_text(
        f'[[table]]\nname = "{stack.table}"\nkey = "id"\n[result]\nprocessed = "processed"\n'
        f'duplicate = "duplicate"\n[faults]{FAULTS}'
    )
    ended = loadtest(
        *("run", "--target", "aws", "--function", stack.function, "--record", "--yes"),
        *("--endpoint-url", emulator_url, "--orders", "8", "--copies", "1", "--poison", "0"),
        *("--conflicts", "0"),
        cwd=tmp_path,
    )
    assert ended.code == 1, ended.said
    assert "faults throttle=0.5 operation=GetItem crash-after-call operation=PutItem" in ended.said
    run = only_run(tmp_path)
    assert run.findings() == {FindingKind.SELF_CONFLICT: 2}
    found = [one for check in run.verdict.checks for one in check.findings]
    named = {fault.name for finding in found for fault in finding.faults}
    assert named - {"throttle"} == {"lost-reply", "server-error"}

    rows = run.rows(
        "SELECT f.name, f.message_no, f.receive, f.call, c.operation, c.decision, c.error_code, "
        "c.fault FROM faults f LEFT JOIN calls c USING (call_id) WHERE name <> 'throttle'"
    )
    put, closed = "PutItem", "ConnectionClosedError"
    assert {tuple(row.values()) for row in rows} == {
        ("crash-after-call", 1, 1, 3, put, "unknown", None, "crash-after-call"),
        ("lost-reply", 2, 1, 3, put, "unknown", closed, "lost-reply"),
        ("lost-request", 3, 1, 3, put, "unknown", closed, "lost-request"),
        ("server-error", 4, 1, 3, put, "unknown", "InternalServerError", "server-error:applied"),
        ("access-denied", 5, 1, 4, "Publish", "failed", "AuthorizationError", "access-denied"),
        ("crash-before-call", 6, 1, 3, put, "unknown", None, "crash-before-call"),
        ("crash-before-answer", 7, 1, None, None, None, None, None),
        ("slow", 8, 1, 1, "DescribeTable", "accepted", None, "slow"),
    }
    stored = run.rows(
        "SELECT c.fault, i.decision FROM calls c JOIN call_items i USING (call_id) "
        "WHERE c.fault IS NOT NULL AND c.operation = 'PutItem' ORDER BY c.fault"
    )
    assert [tuple(row.values()) for row in stored] == [
        ("crash-after-call", "accepted"),
        ("crash-before-call", "failed"),
        ("lost-reply", "accepted"),
        ("lost-request", "failed"),
        ("server-error:applied", "accepted"),
    ]
    assert (
        run.rows("SELECT * FROM calls WHERE fault = 'slow' AND answered_at < sent_at + 5e7") == []
    )
    crashed = run.rows("SELECT * FROM invocations WHERE outcome = 'crashed'")
    assert len(crashed) == 3

    # The seed decides, as it does for runs here.
    met = run.rows(
        "SELECT d.message_no, d.receive_count, f.rule FROM deliveries d LEFT JOIN faults f ON "
        "f.invocation_id = d.invocation_id AND f.name = 'throttle'"
    )
    plan = FaultPlan((FaultRule(FaultName.THROTTLE, rate=0.5),), run.info.fault_seed)
    for row in met:
        place = Place(
            Where.CALL, message_no=row["message_no"], receive=row["receive_count"], call=2
        )
        assert (row["rule"] is not None) == (plan.strike(1, place) is not None), place
    assert {row["rule"] for row in met} == {1, None}
    assert [rule.opportunities for rule in run.info.faults] == [11, *[1] * 8]

    assert settings_of(functions, stack.function) == before
    assert functions.list_layers()["Layers"] == []
