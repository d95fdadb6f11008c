"""Where a run happens: an AWS-compatible endpoint, and what the run makes and removes there.

The ``local`` target is this with the embedded emulator behind it; the ``endpoint`` target
is this with a URL of the user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    ReadTimeoutError,
)
from botocore.exceptions import ConnectionError as UnreachableError

from analysis.errors import TargetError
from analysis.schema import (
    EffectInfo,
    ItemRow,
    Phase,
    TableInfo,
    TableRole,
    item_text,
    number_text,
)
from consumer.gateway import UPSTREAM_KEEPALIVE_S
from consumer.sqs_queue import QueueAddress
from loadtest import __version__

KEEP_UNCHANGED = "keep unchanged"
"""What the one item of every reference table says, before and after."""

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
ANSWER_TIMEOUT_S = 30.0
"""An emulator may load a service at its first call."""
GONE_TIMEOUT_S = 90.0
"""SQS takes up to 60 s to delete a queue (API reference, DeleteQueue)."""
_CONTENDERS = 16
_OBJECTS_AT_ONCE = 16
_GONE_CODES = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
        "NoSuchBucket",
    }
)
_CREDENTIAL_CODES = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str
    token: str | None = None


LOCAL_CREDENTIALS = Credentials("onceproof", "onceproof")


@dataclass(frozen=True, slots=True)
class Resources:
    """What this run made."""

    queue: QueueAddress
    queue_name: str
    dead_letter_name: str
    tables: tuple[TableInfo, ...]  # real names
    queues: tuple[str, ...]  # of effects, real names
    topics: tuple[str, ...]
    bucket: str | None
    names: Mapping[str, str]  # placeholder ("table:orders", "queue_url") -> real name


class Endpoint:
    """An AWS-compatible endpoint in use; an asynchronous context manager.

    :raises TargetError: from every method, when the endpoint refuses, fails or answers
        something that is not AWS; the message says which and what to try.
    """

    def __init__(self, url: str, *, credentials: Credentials | None, connections: int) -> None:
        """
        :param credentials: None takes the usual AWS sources (environment, profile, ...).
        :param connections: simultaneous calls of the driver and the mapping.
        """
        self.url = url
        self._given = credentials
        self._connections = connections
        self._is_local = urlsplit(url).hostname in _LOOPBACK
        self._stack = contextlib.AsyncExitStack()
        self._resources: Resources | None = None
        self._sns_client: Any = None
        self._s3_client: Any = None

    async def __aenter__(self) -> Self:
        try:
            async with contextlib.AsyncExitStack() as opening:
                await self._open(opening.enter_async_context)
                self._stack = opening.pop_all()
        except (BotoCoreError, ValueError) as error:
            raise TargetError(
                f"the AWS settings of this machine cannot be used for {self.url}: {error}. "
                "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE and AWS_REGION."
            ) from error
        return self

    async def _open(self, enter: Any) -> None:
        session = aioboto3.Session()
        self.region: str = session.region_name or "us-east-1"
        self.credentials = self._given or await self._find_credentials(session)
        common = {
            "endpoint_url": self.url,
            "region_name": self.region,
            "aws_access_key_id": self.credentials.access_key,
            "aws_secret_access_key": self.credentials.secret_key,
            "aws_session_token": self.credentials.token,
        }
        # A send that the SDK repeats by itself would enqueue a second message unseen, so
        # nothing is retried here; those who call count their own repeats.
        config = AioConfig(
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Together a third of the CPU of a small call: checking parameters that this
            # tool made itself, and putting the same user agent together every time.
            parameter_validation=False,
            user_agent=f"onceproof/{__version__}",
            max_pool_connections=self._connections,
            connect_timeout=15,
            # A bucket as a part of the host's name does not lead to a loopback address.
            s3={"addressing_style": "path"},
            read_timeout=ANSWER_TIMEOUT_S,
            connector_args={"keepalive_timeout": UPSTREAM_KEEPALIVE_S},
            # A proxy of this machine, taken from its environment, cannot reach its loopback.
            proxies={} if self._is_local else None,
        )
        self._client = partial(session.client, config=config, **common)
        self.sqs: Any = await enter(self._client("sqs"))
        self.dynamodb: Any = await enter(self._client("dynamodb"))

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _sns(self) -> Any:
        """Its client, made when first needed: most runs have no topics."""
        if self._sns_client is None:
            self._sns_client = await self._stack.enter_async_context(self._client("sns"))
        return self._sns_client

    async def _s3(self) -> Any:
        """Its client, made when first needed, as that of SNS."""
        if self._s3_client is None:
            self._s3_client = await self._stack.enter_async_context(self._client("s3"))
        return self._s3_client

    async def _find_credentials(self, session: Any) -> Credentials:
        found = await session.get_credentials()
        if found is not None:
            frozen = await found.get_frozen_credentials()
            return Credentials(frozen.access_key, frozen.secret_key, frozen.token)
        if self._is_local:
            return LOCAL_CREDENTIALS  # emulators take any
        raise TargetError(
            f"no AWS credentials were found for {self.url}. Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
        )

    @contextlib.contextmanager
    def _doing(self, what: str) -> Any:
        """Turn what botocore raises into one sentence with a cure."""
        try:
            yield
        except UnreachableError as error:
            raise TargetError(
                f"{self.url} could not be reached while {what}: {error}. Is it running, and is "
                "the address right (--endpoint-url)?"
            ) from error
        except ReadTimeoutError as error:
            raise TargetError(
                f"{self.url} took the connection but did not answer within "
                f"{ANSWER_TIMEOUT_S:g} s while {what}. Is it an AWS-compatible endpoint? Look at "
                "its own log, or restart it."
            ) from error
        except HTTPClientError as error:
            raise TargetError(
                f"{self.url} failed while {what}: {error}. Look at its own log, then run again."
            ) from error
        except ClientError as error:
            raise self._refused(what, error) from error
        except (BotoCoreError, KeyError, ValueError) as error:
            raise TargetError(
                f"{self.url} answered something that is not AWS while {what}: {error}. Name an "
                "AWS-compatible endpoint with --endpoint-url, or leave it out to use the "
                "embedded one."
            ) from error

    def _refused(self, what: str, error: ClientError) -> TargetError:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _CREDENTIAL_CODES or status in (401, 403):
            return TargetError(
                f"{self.url} refused the credentials while {what}: {error}. Check "
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION."
            )
        if status >= 500:
            return TargetError(
                f"{self.url} failed with HTTP {status} while {what}: {error}. Look at its own "
                "log, then run again."
            )
        return TargetError(f"{self.url} refused while {what}: {error}")

    # --- making ---

    async def create(
        self,
        prefix: str,
        tables: Sequence[TableInfo],
        *,
        visibility_timeout_s: int,
        max_receive_count: int,
        fifo: bool = False,
        deduplicate_by_content: bool = False,
        effects: Sequence[EffectInfo] = (),
        bucket: bool = False,
    ) -> Resources:
        """Make queue, dead-letter queue and tables, with one item in each reference table,
        and the queues and topics that effects name.

        :param prefix: put before every name; empty leaves the names of tables and effects as
            they are.
        :param fifo: make queue and dead-letter queue FIFO queues.
        :param deduplicate_by_content: let the FIFO queue tell copies by their bodies.
        :param bucket: make one, for messages that tell of objects.
        """
        names: dict[str, str] = {}
        base = prefix or "onceproof-"
        ending = ".fifo" if fifo else ""
        queue_name, dead_letter_name = f"{base}queue{ending}", f"{base}dlq{ending}"
        real = tuple(replace(table, name=prefix + table.name) for table in tables)
        names |= {f"table:{table.name}": prefix + table.name for table in tables}
        queues, topics = (
            tuple(dict.fromkeys(one.resource for one in effects if one.service == service))
            for service in ("sqs", "sns")
        )
        address = QueueAddress(
            "", "", "", self.region, visibility_timeout_s, max_receive_count, fifo=fifo
        )
        # Known before the first of them exists: whatever happens next can be removed.
        self._resources = Resources(
            address,
            queue_name,
            dead_letter_name,
            real,
            tuple(f"{prefix}{name}" for name in queues),
            tuple(f"{prefix}{name}" for name in topics),
            f"{base}bucket".lower() if bucket else None,
            names,
        )
        with self._doing("making its queues"):
            dlq_url, dlq_arn = await self._create_queue(dead_letter_name, {})
            policy = {"deadLetterTargetArn": dlq_arn, "maxReceiveCount": str(max_receive_count)}
            attributes = {
                "VisibilityTimeout": str(visibility_timeout_s),
                "RedrivePolicy": json.dumps(policy),
            }
            if deduplicate_by_content:
                attributes["ContentBasedDeduplication"] = "true"
            url, arn = await self._create_queue(queue_name, attributes)
        names |= {"queue": queue_name, "queue_url": url, "queue_arn": arn}
        names |= {"dlq": dead_letter_name, "dlq_url": dlq_url, "dlq_arn": dlq_arn}
        with self._doing("making the queues of its effects"):
            for name in queues:
                real_name = f"{prefix}{name}"
                by_content = {"ContentBasedDeduplication": "true"} if _is_fifo(real_name) else {}
                url, arn = await self._create_queue(real_name, by_content)
                names |= {f"queue:{name}": real_name}
                names |= {f"queue:{name}_url": url, f"queue:{name}_arn": arn}
        with self._doing("making the topics of its effects"):
            for name in topics:
                real_name = f"{prefix}{name}"
                arn = await self._create_topic(real_name)
                names |= {f"topic:{name}": real_name, f"topic:{name}_arn": arn}
        if self._resources.bucket is not None:
            with self._doing("making its bucket"):
                names |= {"bucket": await self._create_bucket(self._resources.bucket)}
        with self._doing("making its tables"):
            for table in real:
                await self._create_table(table)
        address = replace(
            address,
            url=names["queue_url"],
            arn=names["queue_arn"],
            dead_letter_url=dlq_url,
            dead_letter_arn=dlq_arn,
        )
        self._resources = replace(self._resources, queue=address)
        return self._resources

    async def _create_queue(self, name: str, attributes: dict[str, str]) -> tuple[str, str]:
        if _is_fifo(name):
            attributes = {**attributes, "FifoQueue": "true"}
        made = await self.sqs.create_queue(QueueName=name, Attributes=attributes)
        url = str(made["QueueUrl"])
        found = await self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return url, str(found["Attributes"]["QueueArn"])

    async def _create_topic(self, name: str) -> str:
        attributes = (
            {"FifoTopic": "true", "ContentBasedDeduplication": "true"} if _is_fifo(name) else {}
        )
        sns = await self._sns()
        return str((await sns.create_topic(Name=name, Attributes=attributes))["TopicArn"])

    async def _create_bucket(self, name: str) -> str:
        s3 = await self._s3()
        place = {"CreateBucketConfiguration": {"LocationConstraint": self.region}}
        await s3.create_bucket(Bucket=name, **({} if self.region == "us-east-1" else place))
        return name

    async def put_objects(self, objects: Mapping[str, str]) -> None:
        """Put what the plan's messages tell of into the bucket: key -> content."""
        assert self._resources is not None
        bucket, s3 = self._resources.bucket, await self._s3()
        at_once = asyncio.Semaphore(_OBJECTS_AT_ONCE)

        async def put(key: str, content: str) -> None:
            async with at_once:
                await s3.put_object(Bucket=bucket, Key=key, Body=content.encode())

        with self._doing("putting objects into its bucket"):
            keys = list(objects)
            for first in range(0, len(keys), 1000):
                some = keys[first : first + 1000]
                await asyncio.gather(*(put(key, objects[key]) for key in some))

    async def _create_table(self, table: TableInfo) -> None:
        keys = [(table.key, table.key_type, "HASH")]
        if table.sort is not None:
            keys.append((table.sort, table.sort_type, "RANGE"))
        await self.dynamodb.create_table(
            TableName=table.name,
            KeySchema=[{"AttributeName": name, "KeyType": part} for name, _, part in keys],
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind, _ in keys
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                while not await self._is_active(table.name):  # noqa: ASYNC110 - as below
                    await asyncio.sleep(0.5)
        except TimeoutError as error:
            raise TargetError(
                f"table {table.name} was not ready {GONE_TIMEOUT_S:g} s after it was made; "
                f"look at {self.url} and its log."
            ) from error
        if table.role is TableRole.REFERENCE:
            item = {name: _reference_key(kind) for name, kind, _ in keys}
            item["note"] = {"S": KEEP_UNCHANGED}
            await self.dynamodb.put_item(TableName=table.name, Item=item)

    async def _is_active(self, table: str) -> bool:
        found = await self.dynamodb.describe_table(TableName=table)
        return bool(found["Table"]["TableStatus"] == "ACTIVE")

    # --- probing ---

    async def self_test(self, prefix: str) -> None:
        """Show that this endpoint can decide a race at all.

        Sixteen conditional puts of one key at once have exactly one winner, ``ALL_OLD``
        shows what was there, and numbers are compared as numbers. Without these a
        correct handler would be blamed.
        """
        table = TableInfo(f"{prefix}self-test", TableRole.OTHER, "id")
        with self._doing("asking for its tables"):
            # Nothing is made, so nothing can be left, where nobody answers as AWS does.
            _ = (await self.dynamodb.list_tables(Limit=1))["TableNames"]
        try:
            with self._doing("testing it"):
                await self._create_table(table)
                problem = await self._probe(table.name)
        finally:
            await self._remove_table(table.name)
        if problem is not None:
            raise TargetError(
                f"{self.url} does not behave as DynamoDB: {problem}. A verdict on top of it "
                "would mean nothing; use another endpoint, or the embedded one."
            )

    async def _probe(self, table: str) -> str | None:
        async def contend(number: int) -> int:
            try:
                await self.dynamodb.put_item(
                    TableName=table,
                    Item={"id": {"S": "one"}, "winner": {"N": f"{number}.0"}},
                    ConditionExpression="attribute_not_exists(id)",
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                    raise
                return 0
            return 1

        winners = sum(await asyncio.gather(*map(contend, range(_CONTENDERS))))
        if winners != 1:
            return f"{winners} of {_CONTENDERS} simultaneous conditional puts of one key won"
        item = {"id": {"S": "one"}, "winner": {"N": "4e0"}}
        old = await self.dynamodb.put_item(TableName=table, Item=item, ReturnValues="ALL_OLD")
        if "winner" not in old.get("Attributes", {}):
            return "ReturnValues=ALL_OLD does not return the item that was overwritten"
        read = await self.dynamodb.get_item(
            TableName=table, Key={"id": {"S": "one"}}, ConsistentRead=True
        )
        if number_text(read["Item"]["winner"]["N"]) != "4":
            return "a stored number comes back as another"
        try:
            await self.dynamodb.put_item(
                TableName=table,
                Item=item,
                ConditionExpression="winner <> :four",
                ExpressionAttributeValues={":four": {"N": "4.00"}},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ClientError as error:
            if "Item" not in error.response:
                return "a failed condition does not return the item (ALL_OLD)"
            return None
        return "numbers are not compared as numbers (4e0 <> 4.00)"

    # --- reading ---

    async def items(self, phase: Phase) -> AsyncIterator[ItemRow]:
        """Every item of the run's tables, by strongly consistent scans."""
        assert self._resources is not None
        for table in self._resources.tables:
            keys = [name for name in (table.key, table.sort) if name is not None]
            arguments: dict[str, Any] = {"TableName": table.name, "ConsistentRead": True}
            while True:
                with self._doing(f"reading table {table.name}"):
                    page = await self.dynamodb.scan(**arguments)
                    rows = [
                        ItemRow(
                            table.name,
                            item_text({name: item[name] for name in keys}),
                            item_text(item),
                            phase,
                        )
                        for item in page["Items"]
                    ]
                for row in rows:
                    yield row
                if "LastEvaluatedKey" not in page:
                    break
                arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def final_counters(self) -> tuple[int, int]:
        """Messages that the queue itself still counts: visible or delayed, and in flight."""
        assert self._resources is not None
        with self._doing("reading the queue's counters"):
            found = await self.sqs.get_queue_attributes(
                QueueUrl=self._resources.queue.url, AttributeNames=["All"]
            )
        counters = found["Attributes"]
        waiting = int(counters["ApproximateNumberOfMessages"])
        delayed = int(counters.get("ApproximateNumberOfMessagesDelayed", 0))
        return waiting + delayed, int(counters["ApproximateNumberOfMessagesNotVisible"])

    # --- removing ---

    async def remove(self) -> list[str]:
        """Remove what :meth:`create` made and prove it gone; the names that are gone.

        Only "it does not exist" is proof. A network or authentication error is none.

        :raises TargetError: something may be left. All the rest is removed nevertheless.
        """
        if self._resources is None:
            return []
        made = self._resources
        queues = (made.queue_name, made.dead_letter_name, *made.queues)
        removed = await asyncio.gather(
            *(self._remove_queue(name) for name in queues),
            *(self._remove_topic(name) for name in made.topics),
            *(self._remove_bucket(name) for name in (made.bucket,) if name is not None),
            *(self._remove_table(table.name) for table in made.tables),
            return_exceptions=True,
        )
        for result in removed:
            if isinstance(result, BaseException):
                raise result
        self._resources = None
        return [str(name) for name in removed]

    async def _remove_queue(self, name: str) -> str:
        with self._doing(f"removing queue {name}"):
            url = await self._queue_url(name)
            if url is not None:
                await self.sqs.delete_queue(QueueUrl=url)
            await self._wait_gone(lambda: self._queue_url(name), f"queue {name}")
        return f"queue {name}"

    async def _remove_topic(self, name: str) -> str:
        with self._doing(f"removing topic {name}"):
            sns = await self._sns()
            arn = await self._topic_arn(name)
            if arn is not None:
                await sns.delete_topic(TopicArn=arn)
            await self._wait_gone(lambda: self._topic_arn(name), f"topic {name}")
        return f"topic {name}"

    async def _remove_bucket(self, name: str) -> str:
        with self._doing(f"removing bucket {name}"):
            s3 = await self._s3()
            if await self._bucket(name) is not None:
                while found := (await s3.list_objects_v2(Bucket=name)).get("Contents"):
                    objects = [{"Key": one["Key"]} for one in found]
                    gone = await s3.delete_objects(Bucket=name, Delete={"Objects": objects})
                    if gone.get("Errors"):
                        first = gone["Errors"][0]
                        raise TargetError(
                            f"object {first['Key']} of bucket {name} could not be deleted: "
                            f"{first.get('Message', first.get('Code'))}; remove both by hand."
                        )
                await s3.delete_bucket(Bucket=name)
            await self._wait_gone(lambda: self._bucket(name), f"bucket {name}")
        return f"bucket {name}"

    async def _remove_table(self, name: str) -> str:
        with self._doing(f"removing table {name}"):
            if await self._table(name) is not None:
                await self.dynamodb.delete_table(TableName=name)
            await self._wait_gone(lambda: self._table(name), f"table {name}")
        return f"table {name}"

    async def _queue_url(self, name: str) -> Any:
        return await _unless_gone(self.sqs.get_queue_url(QueueName=name), "QueueUrl")

    async def _topic_arn(self, name: str) -> str | None:
        """The topic of this name. A complete list of all topics without it is the proof that
        it is gone: an ARN is known only from its creation."""
        sns = await self._sns()
        arguments: dict[str, Any] = {}
        while True:
            page = await sns.list_topics(**arguments)
            for topic in page["Topics"]:
                if topic["TopicArn"].endswith(f":{name}"):
                    return str(topic["TopicArn"])
            if not page.get("NextToken"):
                return None
            arguments["NextToken"] = page["NextToken"]

    async def _bucket(self, name: str) -> Any:
        """Asked by a listing: the answer to HeadBucket has no body to prove anything by."""
        s3 = await self._s3()
        return await _unless_gone(s3.list_objects_v2(Bucket=name), "Name")

    async def _table(self, name: str) -> Any:
        return await _unless_gone(self.dynamodb.describe_table(TableName=name), "Table")

    async def _wait_gone(self, ask: Any, what: str) -> None:
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                while await ask() is not None:  # noqa: ASYNC110 - only asking again can tell
                    await asyncio.sleep(1)
        except TimeoutError as error:
            raise TargetError(
                f"{what} is still there {GONE_TIMEOUT_S:g} s after it was deleted; look at "
                f"{self.url} and remove it by hand."
            ) from error


def _is_fifo(name: str) -> bool:
    return name.endswith(".fifo")


async def _unless_gone(call: Any, field: str) -> Any:
    try:
        return (await call)[field]
    except ClientError as error:
        if error.response["Error"]["Code"] in _GONE_CODES:
            return None
        raise


def _reference_key(kind: str) -> dict[str, Any]:
    values: dict[str, dict[str, Any]] = {
        "S": {"S": "reference"},
        "N": {"N": "1"},
        "B": {"B": b"reference"},
    }
    return values[kind]
