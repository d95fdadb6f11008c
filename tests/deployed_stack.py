"""A consumer deployed by somebody else: function, mapping, queues and table."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.aws.account import Account

ROLE = "arn:aws:iam::000000000000:role/orders"
HANDLER_FILE = Path(__file__).parent.parent / "consumer" / "app.py"


@dataclass(frozen=True, slots=True)
class DeployedStack:
    """Names of what was made."""

    name: str
    queue_url: str
    dead_letter_url: str
    mapping_id: str

    @property
    def function(self) -> str:
        return f"{self.name}-consumer"

    @property
    def table(self) -> str:
        return f"{self.name}-orders"

    @property
    def names(self) -> list[str]:
        return [self.function, f"{self.name}-queue", f"{self.name}-dlq", self.table]


def package(source: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("app.py", source)
    return buffer.getvalue()


async def deploy(
    account: Account,
    name: str,
    *,
    source: str | None = None,
    tags: Mapping[str, str] | None = None,
    stream: bool = False,
    batch_size: int = 1,
    visibility_timeout_s: int = 3,
    max_receive_count: int = 2,
) -> DeployedStack:
    tags = dict(tags or {})
    table: dict[str, Any] = {
        "TableName": f"{name}-orders",
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    if stream:
        table["StreamSpecification"] = {
            "StreamEnabled": True,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        }
    await account.call("dynamodb", "CreateTable", **table)
    dead_letter_url, dead_letter_arn = await _queue(account, f"{name}-dlq", {}, tags)
    policy = {"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": max_receive_count}
    queue_url, queue_arn = await _queue(
        account,
        f"{name}-queue",
        {"VisibilityTimeout": str(visibility_timeout_s), "RedrivePolicy": json.dumps(policy)},
        tags,
    )
    await account.call(
        "lambda",
        "CreateFunction",
        FunctionName=f"{name}-consumer",
        Runtime="python3.12",
        Role=ROLE,
        Handler="app.handler",
        Code={"ZipFile": package(source or HANDLER_FILE.read_text())},
        Timeout=2,
        Environment={
            "Variables": {
                "TABLE_NAME": f"{name}-orders",
                "AWS_ENDPOINT_URL": account.identity.endpoint_url,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
            }
        },
        Tags=tags,
    )
    mapping = await account.call(
        "lambda",
        "CreateEventSourceMapping",
        FunctionName=f"{name}-consumer",
        EventSourceArn=queue_arn,
        BatchSize=batch_size,
    )
    return DeployedStack(name, queue_url, dead_letter_url, mapping["UUID"])


async def _queue(
    account: Account, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]
) -> tuple[str, str]:
    made = await account.call(
        "sqs", "CreateQueue", QueueName=name, Attributes=dict(attributes), tags=dict(tags)
    )
    url = str(made["QueueUrl"])
    answer = await account.call(
        "sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"]
    )
    return url, str(answer["Attributes"]["QueueArn"])
