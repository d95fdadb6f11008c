"""What is deployed: the function, its mapping, queue, dead-letter queue, tables and log group.

Read only. What is not ready, or not what the run needs, is an error that names it and the cure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.errors import TargetError, UsageError
from analysis.schema import TableInfo, TableRole
from loadtest.aws.account import Account
from loadtest.aws.resources import Kind, Seen, arn_of
from loadtest.config import Settings
from loadtest.sections import TableSettings
from loadtest.stage import table_info

READY_LIMIT_S = 120.0
"""Functions become Active, and mappings Enabled, within seconds as a rule; a function in a VPC
within about a minute (Lambda developer guide, "Lambda function states")."""
_CHANGING = {"Creating", "Enabling", "Updating"}
_MOST_RECEIVES = 1_000_000  # without a redrive policy a message comes again for ever


@dataclass(frozen=True, slots=True)
class DeployedQueue:
    name: str
    url: str
    arn: str
    visibility_timeout_s: int
    fifo: bool
    deduplicate_by_content: bool
    waiting: int  # visible, in flight or delayed, by the queue's own approximate counters


@dataclass(frozen=True, slots=True)
class DeployedTable:
    declared: str  # its name in the configuration
    info: TableInfo  # with its real name
    arn: str
    stream_arn: str | None  # None: it has no stream that shows whole items
    stream_view: str | None  # what the stream that is there shows; None: there is none

    @property
    def holds_orders(self) -> bool:
        roles = [kind.role for kind in self.info.items] or [self.info.role]
        return TableRole.ORDERS in roles


@dataclass(frozen=True, slots=True)
class Deployed:
    """A function and all that its run involves."""

    function: str
    function_arn: str
    handler: str
    timeout_s: float
    memory_mb: int
    arm: bool
    runtime: str
    log_group: str
    has_own_log_group: bool  # no other function logs there
    logs_invocations: bool  # False: its system log level leaves START and REPORT out
    mapping_id: str
    batch_size: int
    batching_window_s: int
    report_batch_item_failures: bool
    has_filter: bool  # the mapping drops messages that do not match it
    concurrency: int | None  # at most so many invocations at once; None: the account's quota
    queue: DeployedQueue
    dead_letter_queue: DeployedQueue | None
    max_receive_count: int
    dead_letters_taken_by: str | None  # another function that consumes the dead-letter queue
    tables: tuple[DeployedTable, ...]

    @property
    def orders_table(self) -> DeployedTable:
        return next(table for table in self.tables if table.holds_orders)

    def owned_parts(self) -> list[tuple[Kind, str, Seen]]:
        """What the run changes or reads: all of it must be the user's to use."""
        parts = [(Kind.FUNCTION, self.function, Seen(self.function_arn))]
        for queue in (self.queue, self.dead_letter_queue):
            if queue is not None:
                parts.append((Kind.QUEUE, queue.name, Seen(queue.arn, "", {"QueueUrl": queue.url})))
        return [
            *parts,
            *((Kind.TABLE, table.info.name, Seen(table.arn)) for table in self.tables),
        ]


async def find_deployed(
    account: Account, settings: Settings, function: str, queue_url: str | None
) -> Deployed:
    """
    :param function: its name or its ARN, with an alias where the mapping has one.
    :param queue_url: needed where the function consumes several queues.
    :raises UsageError: what is there is not what the configuration says.
    :raises TargetError: something is missing, or not ready.
    """
    answer = await _ready_function(account, function)
    about = answer["Configuration"]
    name = str(about["FunctionName"])
    reserved = answer.get("Concurrency", {}).get("ReservedConcurrentExecutions")
    if reserved == 0:
        raise TargetError(
            f"function {name} has a reserved concurrency of 0, so nothing is processed. Raise it "
            "or remove it (DeleteFunctionConcurrency), then run again."
        )
    mapping = await _ready_mapping(account, function, queue_url)
    queue, attributes = await _queue(account, str(mapping["EventSourceArn"]), queue_url)
    dead_letter_queue, most_receives = await _dead_letter_queue(account, attributes)
    logging = about.get("LoggingConfig", {})
    own_group = f"/aws/lambda/{name}"
    group = str(logging.get("LogGroup") or own_group)
    limits = [mapping.get("ScalingConfig", {}).get("MaximumConcurrency"), reserved]
    await _no_other_consumer(account, queue, name)
    return Deployed(
        function=name,
        function_arn=str(about["FunctionArn"]),
        handler=str(about.get("Handler") or about.get("PackageType", "")),
        timeout_s=float(about.get("Timeout", 3)),
        memory_mb=int(about.get("MemorySize", 128)),
        arm="arm64" in about.get("Architectures", ()),
        runtime=str(about.get("Runtime", "image")),
        log_group=group,
        has_own_log_group=group == own_group,
        logs_invocations=logging.get("SystemLogLevel") != "WARN",
        mapping_id=str(mapping["UUID"]),
        batch_size=int(mapping.get("BatchSize", 10)),
        batching_window_s=int(mapping.get("MaximumBatchingWindowInSeconds") or 0),
        report_batch_item_failures="ReportBatchItemFailures"
        in (mapping.get("FunctionResponseTypes") or ()),
        has_filter=bool(mapping.get("FilterCriteria", {}).get("Filters")),
        concurrency=min((limit for limit in limits if limit is not None), default=None),
        queue=queue,
        dead_letter_queue=dead_letter_queue,
        max_receive_count=most_receives,
        dead_letters_taken_by=await _consumer_of(account, dead_letter_queue),
        tables=await _tables(account, settings, about),
    )


# --- the function -----------------------------------------------------------------------


async def _ready_function(account: Account, function: str) -> dict[str, Any]:
    async def ask() -> dict[str, Any] | None:
        answer = await account.find("lambda", "GetFunction", FunctionName=function)
        if answer is None:
            raise TargetError(
                f"--function: there is no function {function} in {account.identity}. Look at "
                "--region and --profile, or deploy it first."
            )
        about = answer["Configuration"]
        if about.get("State") == "Failed":
            raise TargetError(
                f"function {function} is in the state Failed: {about.get('StateReason') or 'AWS'} "
                f"({about.get('StateReasonCode', 'no reason given')}). Deploy it again."
            )
        if about.get("LastUpdateStatus") == "Failed":
            raise TargetError(
                f"the last update of function {function} failed: "
                f"{about.get('LastUpdateStatusReason') or 'AWS gives no reason'}. Deploy it again."
            )
        # Inactive: idle for weeks; the first message wakes it up.
        ready = about.get("State", "Active") in ("Active", "Inactive")
        updated = about.get("LastUpdateStatus", "Successful") == "Successful"
        return answer if ready and updated else None

    return await account.wait(
        f"function {function} was not ready (Active, last update Successful)",
        ask,
        limit_s=READY_LIMIT_S,
        every_s=2,
    )


# --- the mapping ------------------------------------------------------------------------


async def _mappings(account: Account, **of: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    marker: dict[str, str] = {}
    while True:
        page = await account.call("lambda", "ListEventSourceMappings", **of, **marker)
        found += page.get("EventSourceMappings", ())
        if not page.get("NextMarker"):
            return found
        marker = {"Marker": page["NextMarker"]}


async def _ready_mapping(account: Account, function: str, queue_url: str | None) -> dict[str, Any]:
    of_queues = [
        mapping
        for mapping in await _mappings(account, FunctionName=function)
        if ":sqs:" in str(mapping.get("EventSourceArn"))
    ]
    if queue_url is not None:
        name = queue_url.rpartition("/")[2]
        mappings = [one for one in of_queues if _queue_name(one["EventSourceArn"]) == name]
    else:
        name, mappings = "", of_queues
    others = ", ".join(_queue_name(one["EventSourceArn"]) for one in of_queues)
    if not mappings:
        what = f"queue {name}" if name else "any SQS queue"
        raise TargetError(
            f"function {function} has no event source mapping from {what}"
            + (f" (it has: {others})" if others else "")
            + ", so it would never see a message. Create one (CreateEventSourceMapping), or name "
            "the queue with --queue-url."
        )
    if len(mappings) > 1 and not name:
        raise UsageError(
            f"--queue-url: function {function} consumes several queues ({others}); name one."
        )
    uuid = str(mappings[0]["UUID"])
    state = ""

    async def ask() -> dict[str, Any] | None:
        nonlocal state
        mapping = await account.call("lambda", "GetEventSourceMapping", UUID=uuid)
        state = str(mapping.get("State", "Enabled"))
        if state == "Enabled":
            return mapping
        if state not in _CHANGING:
            raise TargetError(
                f"the event source mapping {uuid} of function {function} is {state}, so nothing "
                "is consumed. Enable it (UpdateEventSourceMapping, Enabled=true), then run again."
            )
        return None

    return await account.wait(
        f"the event source mapping {uuid} of function {function} was still not Enabled; look at "
        f"its StateTransitionReason, or delete it and create it again. Given up",
        ask,
        limit_s=READY_LIMIT_S,
        every_s=2,
    )


async def _consumer_of(account: Account, queue: DeployedQueue | None) -> str | None:
    """A function that takes messages from the queue by itself."""
    if queue is None:
        return None
    for mapping in await _mappings(account, EventSourceArn=queue.arn):
        if mapping.get("State") != "Disabled":
            return str(mapping.get("FunctionArn", "")).rpartition(":function:")[2]
    return None


async def _no_other_consumer(account: Account, queue: DeployedQueue, function: str) -> None:
    for mapping in await _mappings(account, EventSourceArn=queue.arn):
        other = str(mapping.get("FunctionArn", "")).rpartition(":function:")[2]
        if other.partition(":")[0] != function and mapping.get("State") != "Disabled":
            raise TargetError(
                f"queue {queue.name} is consumed by function {other} as well, which would take "
                f"some of the messages. Disable that mapping ({mapping.get('UUID')}), then run "
                "again."
            )


# --- queues -----------------------------------------------------------------------------


def _queue_name(arn: str) -> str:
    return str(arn).rpartition(":")[2]


async def _queue(
    account: Account, arn: str, url: str | None = None
) -> tuple[DeployedQueue, Mapping[str, str]]:
    name = _queue_name(arn)
    if url is None:
        owner = arn.split(":")[4]
        found = await account.find(
            "sqs", "GetQueueUrl", QueueName=name, QueueOwnerAWSAccountId=owner
        )
        if found is None:
            raise TargetError(f"queue {name} of the event source mapping is not there any more.")
        url = str(found["QueueUrl"])
    answer = await account.find("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    if answer is None:
        raise TargetError(f"there is no queue {url} in {account.identity}.")
    attributes: Mapping[str, str] = answer.get("Attributes", {})
    queue = DeployedQueue(
        name=name,
        url=url,
        arn=arn,
        visibility_timeout_s=int(attributes.get("VisibilityTimeout", 30)),
        fifo=attributes.get("FifoQueue") == "true",
        deduplicate_by_content=attributes.get("ContentBasedDeduplication") == "true",
        waiting=sum(counters(attributes)),
    )
    return queue, attributes


def counters(attributes: Mapping[str, str]) -> tuple[int, int, int]:
    """Visible, in flight and delayed messages; texts on the wire, all of them approximate."""
    visible, in_flight, delayed = (
        int(attributes.get(f"ApproximateNumberOfMessages{kind}", 0))
        for kind in ("", "NotVisible", "Delayed")
    )
    return visible, in_flight, delayed


async def _dead_letter_queue(
    account: Account, attributes: Mapping[str, str]
) -> tuple[DeployedQueue | None, int]:
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    if "deadLetterTargetArn" not in policy:
        return None, _MOST_RECEIVES
    queue, _ = await _queue(account, str(policy["deadLetterTargetArn"]))
    return queue, int(policy.get("maxReceiveCount", 10))


# --- tables -----------------------------------------------------------------------------


async def _tables(
    account: Account, settings: Settings, about: Mapping[str, Any]
) -> tuple[DeployedTable, ...]:
    environment = about.get("Environment", {})
    if "Error" in environment:
        raise TargetError(
            "the function's environment cannot be read: "
            f"{environment['Error'].get('Message', 'AWS gives no reason')}. Allow kms:Decrypt "
            "with its key, then run again."
        )
    variables: Mapping[str, str] = environment.get("Variables", {})
    found = []
    for table in settings.tables:
        name = real_name(table.name, settings.handler.environment, variables)
        described = await account.find("dynamodb", "DescribeTable", TableName=name)
        if described is not None:
            found.append(_table(table, name, account, described["Table"]))
        elif table.role is TableRole.ORDERS:
            names = ", ".join(sorted(variables)) or "none"
            raise UsageError(
                f'[[table]] name: there is no table "{name}" in {account.identity}. Give its name '
                "there, or say which variable of the function holds it: [handler] environment = "
                f'{{ VARIABLE = "{{table:{table.name}}}" }} (its variables: {names}).'
            )
    return tuple(found)


def real_name(declared: str, templates: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """What a declared table is really called: the value of the function's variable for which
    the configuration says ``{table:NAME}``, else its declared name."""
    for variable, template in templates.items():
        value = variables.get(variable)
        if value and template in (f"{{table:{declared}}}", f"{{table:{declared}_arn}}"):
            return re.sub(r"^arn:.*:table/", "", value)
    return declared


def _table(
    table: TableSettings, name: str, account: Account, described: Mapping[str, Any]
) -> DeployedTable:
    types = {
        entry["AttributeName"]: entry["AttributeType"]
        for entry in described.get("AttributeDefinitions", ())
    }
    keys = {
        entry["KeyType"]: (entry["AttributeName"], types.get(entry["AttributeName"]))
        for entry in described.get("KeySchema", ())
    }
    declared = {"HASH": (table.key, table.key_type)}
    if table.sort is not None:
        declared["RANGE"] = (table.sort, table.sort_type)
    if keys != declared:
        raise UsageError(
            f"[[table]] {table.name}: the table {name} has the key {_key_text(keys)}, the "
            f"configuration says {_key_text(declared)}. Correct key, sort and their types."
        )
    stream = described.get("StreamSpecification", {})
    view = str(stream.get("StreamViewType")) if stream.get("StreamEnabled") else None
    whole = view == "NEW_AND_OLD_IMAGES"
    return DeployedTable(
        declared=table.name,
        info=table_info(table, name),
        arn=str(described.get("TableArn") or arn_of(account.identity, Kind.TABLE, name)),
        stream_arn=str(described["LatestStreamArn"]) if whole else None,
        stream_view=view,
    )


def _key_text(keys: Mapping[str, tuple[str, str | None]]) -> str:
    return " and ".join(f"{name} ({kind})" for name, kind in keys.values())
