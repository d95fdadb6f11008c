"""A deployed consumer as a simulated account shows it: control plane, queue, log and stream.

Unlike an emulator's its invocations overlap, its log is late, and any action can be made to
answer with an error.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.aws_endpoint import ACCOUNT_ID, REGION, Answer, Error, Script

FUNCTION = "orders-consumer"
UUID = "ab943140-4e7f-4753-82ef-502d62d680f0"
FUNCTION_ARN = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{FUNCTION}"
QUEUE_ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:orders"
DLQ_ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:orders-dlq"
QUEUE_URL = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT_ID}/orders"
TABLE_ARN = f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/shop-orders"
STREAM_ARN = f"{TABLE_ARN}/stream/1"
SHARD = "shardId-00000000000000000000-00000001"

GET_FUNCTION = f"lambda:GET /2015-03-31/functions/{FUNCTION}"
LIST_MAPPINGS = "lambda:GET /2015-03-31/event-source-mappings"
GET_MAPPING = f"{LIST_MAPPINGS}/{UUID}"
TAGS = f"lambda:GET /2017-03-31/tags/{FUNCTION_ARN}"


def function(concurrency: int | None = None, **more: Any) -> dict[str, Any]:
    about = {
        "FunctionName": FUNCTION,
        "FunctionArn": FUNCTION_ARN,
        "Handler": "app.handler",
        "Runtime": "python3.12",
        "Timeout": 5,
        "MemorySize": 256,
        "State": "Active",
        "LastUpdateStatus": "Successful",
        "Architectures": ["arm64"],
        "Environment": {"Variables": {"TABLE_NAME": "shop-orders", "SECRET": "hidden"}},
        **more,
    }
    reserved = {} if concurrency is None else {"ReservedConcurrentExecutions": concurrency}
    return {"Configuration": about, "Concurrency": reserved}


def mapping(**more: Any) -> dict[str, Any]:
    return {
        "UUID": UUID,
        "EventSourceArn": QUEUE_ARN,
        "FunctionArn": FUNCTION_ARN,
        "State": "Enabled",
        "BatchSize": 1,
        "ScalingConfig": {"MaximumConcurrency": 20},
        **more,
    }


def table(**more: Any) -> dict[str, Any]:
    return {
        "Table": {
            "TableName": "shop-orders",
            "TableArn": TABLE_ARN,
            "TableStatus": "ACTIVE",
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "StreamSpecification": {
                "StreamEnabled": True,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
            "LatestStreamArn": STREAM_ARN,
            **more,
        }
    }


@dataclass(slots=True)
class SimulatedStack:
    """``answers`` for the simulated endpoint. The function stores each order once."""

    late_polls: int = 0  # reads of the log that lack REPORT lines, then the last invocation
    items: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    dead: list[dict[str, Any]] = field(default_factory=list)
    log_polls: int = 0

    def answers(self) -> dict[str, Script]:
        return {
            GET_FUNCTION: function(),
            LIST_MAPPINGS: self._mappings,
            GET_MAPPING: mapping(),
            TAGS: {"Tags": {"onceproof": "a-stack"}},
            "sqs:ListQueueTags": {"Tags": {"onceproof": "a-stack"}},
            "dynamodb:ListTagsOfResource": {"Tags": [{"Key": "onceproof", "Value": "a-stack"}]},
            "sqs:GetQueueUrl": lambda asked: {
                "QueueUrl": QUEUE_URL.replace("/orders", f"/{asked['QueueName']}")
            },
            "sqs:GetQueueAttributes": self.attributes,
            "sqs:SendMessageBatch": self.send,
            "sqs:ReceiveMessage": self.receive,
            "sqs:DeleteMessageBatch": self.delete,
            "dynamodb:DescribeTable": lambda asked: (
                table()
                if asked["TableName"] == "shop-orders"
                else Error("ResourceNotFoundException")
            ),
            "dynamodb:BatchGetItem": self.read,
            "dynamodb:BatchWriteItem": self.remove,
            "dynamodb:DescribeStream": {
                "StreamDescription": {"StreamStatus": "ENABLED", "Shards": [{"ShardId": SHARD}]}
            },
            "dynamodb:GetShardIterator": lambda _: {"ShardIterator": str(len(self.records))},
            "dynamodb:GetRecords": lambda asked: {
                "Records": self.records[int(asked["ShardIterator"]) :],
                "NextShardIterator": str(len(self.records)),
            },
            "logs:FilterLogEvents": self.read_log,
        }

    def table(self, asked: Mapping[str, Any]) -> Answer:
        is_there = asked["TableName"] == "shop-orders"
        return table() if is_there else Error("ResourceNotFoundException")

    def _mappings(self, asked: Mapping[str, Any]) -> Answer:
        of_dlq = asked.get("EventSourceArn") == DLQ_ARN
        return {"EventSourceMappings": [] if of_dlq else [mapping()]}

    def attributes(self, asked: Mapping[str, Any]) -> Answer:
        dlq = asked["QueueUrl"].endswith("-dlq")
        policy = {"deadLetterTargetArn": DLQ_ARN, "maxReceiveCount": 2}
        counters = dict.fromkeys(("", "NotVisible", "Delayed"), "0")
        return {
            "Attributes": {
                "VisibilityTimeout": "30",
                **{f"ApproximateNumberOfMessages{name}": n for name, n in counters.items()},
                **({} if dlq else {"RedrivePolicy": json.dumps(policy)}),
            }
        }

    def send(self, asked: Mapping[str, Any]) -> Answer:
        """Everything sent together is worked on at the same time."""
        now_ms = time.time_ns() // 1_000_000
        sent = []
        for entry in asked["Entries"]:
            message = {
                "MessageId": str(uuid.uuid4()),
                "Body": entry["MessageBody"],
                "MessageAttributes": entry["MessageAttributes"],
            }
            sent.append({"Id": entry["Id"], "MessageId": message["MessageId"]})
            if not self._invoke(message, now_ms):
                self._invoke(message, now_ms + 1_000)
                self.dead.append({**message, "ReceiptHandle": f"handle-{len(self.dead)}"})
        return {"Successful": sent}

    def _invoke(self, message: Mapping[str, Any], now_ms: int) -> bool:
        """Whether the message was taken."""
        order = json.loads(message["Body"])
        item = {"id": {"S": order["id"]}, "quantity": {"N": str(order["quantity"])}}
        stored = self.items.setdefault(order["id"], item)
        if stored is item:
            self.records.append(
                {
                    "eventName": "INSERT",
                    "dynamodb": {
                        "ApproximateCreationDateTime": now_ms // 1000,
                        "Keys": {"id": item["id"]},
                        "NewImage": item,
                        "SequenceNumber": str(len(self.records) + 1),
                    },
                }
            )
        request_id = str(uuid.uuid4())
        stream = f"2026/01/01/[$LATEST]{request_id.replace('-', '')}"
        error = [] if stored == item else ["[ERROR] ValueError: other details\rTraceback"]
        lines = [
            (0, f"START RequestId: {request_id} Version: $LATEST"),
            (1, f"working on {message['MessageId']}"),
            *((40, line) for line in error),
            (50, f"END RequestId: {request_id}"),
            (50, f"REPORT RequestId: {request_id}\tDuration: 50.00 ms\tBilled Duration: 51 ms\t"
                 "Memory Size: 256 MB\tMax Memory Used: 90 MB\tInit Duration: 200.00 ms"),
        ]  # fmt: skip
        self.log += [
            {"logStreamName": stream, "timestamp": now_ms + after_ms, "message": line}
            for after_ms, line in lines
        ]
        return bool(stored == item)

    def read_log(self, asked: Mapping[str, Any]) -> Answer:
        self.log_polls += 1
        if self.log_polls > self.late_polls:
            return {"events": self.log}
        return {"events": [event for event in self.log if not self._is_late(event)]}

    def _is_late(self, event: Mapping[str, Any]) -> bool:
        is_last = event["logStreamName"] == self.log[-1]["logStreamName"]
        return is_last or (self.log_polls < 4 and "REPORT" in event["message"])

    def receive(self, asked: Mapping[str, Any]) -> Answer:
        if not asked["QueueUrl"].endswith("-dlq"):
            return {}
        shown = [message for message in self.dead if not message.get("hidden")]
        for message in shown:
            message["hidden"] = True
        return {"Messages": shown[:10]}

    def delete(self, asked: Mapping[str, Any]) -> Answer:
        handles = {entry["ReceiptHandle"] for entry in asked["Entries"]}
        self.dead = [one for one in self.dead if one["ReceiptHandle"] not in handles]
        return {"Successful": [{"Id": entry["Id"]} for entry in asked["Entries"]]}

    def read(self, asked: Mapping[str, Any]) -> Answer:
        keys = asked["RequestItems"]["shop-orders"]["Keys"]
        found = [self.items[key["id"]["S"]] for key in keys if key["id"]["S"] in self.items]
        return {"Responses": {"shop-orders": found}}

    def remove(self, asked: Mapping[str, Any]) -> Answer:
        for request in asked["RequestItems"]["shop-orders"]:
            self.items.pop(request["DeleteRequest"]["Key"]["id"]["S"], None)
        return {"UnprocessedItems": {}}
