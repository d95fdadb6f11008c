"""The kinds of things that a stack is made of: how each is asked for, tagged and deleted.

"It is not there" is only what AWS itself says: an answer of the kind NotFound. Every other error
is raised by :class:`Account` and proves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from analysis.errors import TargetError
from loadtest.aws.account import Account, Identity, RefusedError

TAG = "onceproof"
"""Everything that is made carries it; its value is the id of the stack."""
GONE_LIMIT_S = 180.0
"""A queue takes up to 60 s to be deleted (SQS API reference, DeleteQueue), a mapping several
seconds (Lambda API reference, DeleteEventSourceMapping)."""
BUSY_LIMIT_S = 120.0
_BUSY = frozenset({"ResourceConflictException", "ResourceInUseException"})
"""What is being created or updated cannot be deleted yet (Lambda and DynamoDB API reference)."""


class Kind(StrEnum):
    """In the order in which they are removed: nothing is taken from under what still runs."""

    MAPPING = "event source mapping"
    FUNCTION = "function"
    QUEUE = "queue"
    TABLE = "table"
    ROLE = "role"
    LOG_GROUP = "log group"


@dataclass(frozen=True, slots=True)
class Seen:
    """Something that is there."""

    arn: str
    state: str = ""  # "Active", "ACTIVE", "Enabled", ...; empty where there are no states
    detail: Mapping[str, Any] | None = None  # what AWS said about it


def arn_of(identity: Identity, kind: Kind, name: str) -> str:
    """The ARN of what has this name; of a mapping, its UUID."""
    partition = identity.caller_arn.split(":")[1]
    region, account = identity.region, identity.account_id
    match kind:
        case Kind.MAPPING:
            return f"arn:{partition}:lambda:{region}:{account}:event-source-mapping:{name}"
        case Kind.FUNCTION:
            return f"arn:{partition}:lambda:{region}:{account}:function:{name}"
        case Kind.QUEUE:
            return f"arn:{partition}:sqs:{region}:{account}:{name}"
        case Kind.TABLE:
            return f"arn:{partition}:dynamodb:{region}:{account}:table/{name}"
        case Kind.ROLE:
            return f"arn:{partition}:iam::{account}:role{ROLE_PATH}{name}"
        case Kind.LOG_GROUP:
            return f"arn:{partition}:logs:{region}:{account}:log-group:{name}"


ROLE_PATH = f"/{TAG}/"
"""Roles cannot be found by tag; those of one path can be listed."""


async def look(account: Account, kind: Kind, name: str) -> Seen | None:
    """Whether it is there; None only when AWS says that it is not."""
    arn = arn_of(account.identity, kind, name)
    match kind:
        case Kind.MAPPING:
            found = await account.find("lambda", "GetEventSourceMapping", UUID=name)
            return None if found is None else Seen(arn, str(found["State"]), found)
        case Kind.FUNCTION:
            found = await account.find("lambda", "GetFunctionConfiguration", FunctionName=name)
            return None if found is None else Seen(arn, str(found.get("State", "")), found)
        case Kind.QUEUE:
            found = await account.find("sqs", "GetQueueUrl", QueueName=name)
            return None if found is None else Seen(arn, detail=found)
        case Kind.TABLE:
            found = await account.find("dynamodb", "DescribeTable", TableName=name)
            return None if found is None else Seen(arn, str(found["Table"]["TableStatus"]))
        case Kind.ROLE:
            found = await account.find("iam", "GetRole", RoleName=name)
            return None if found is None else Seen(str(found["Role"]["Arn"]))
        case Kind.LOG_GROUP:
            # Its own list says "not there" by leaving it out; this call says it in so many words.
            found = await account.find("logs", "ListTagsForResource", resourceArn=arn)
            return None if found is None else Seen(arn)


async def tags_of(account: Account, kind: Kind, name: str, seen: Seen) -> Mapping[str, str]:
    """Its tags; empty when it was deleted in the meantime."""
    match kind:
        case Kind.MAPPING | Kind.FUNCTION:
            return _tags(await account.find("lambda", "ListTags", Resource=seen.arn))
        case Kind.QUEUE:
            assert seen.detail is not None
            url = seen.detail["QueueUrl"]
            return _tags(await account.find("sqs", "ListQueueTags", QueueUrl=url))
        case Kind.TABLE:
            found = await account.find("dynamodb", "ListTagsOfResource", ResourceArn=seen.arn)
            return _pairs(found)
        case Kind.ROLE:
            return _pairs(await account.find("iam", "ListRoleTags", RoleName=name))
        case Kind.LOG_GROUP:
            found = await account.find("logs", "ListTagsForResource", resourceArn=seen.arn)
            return _tags(found, "tags")


def _tags(found: Mapping[str, Any] | None, field: str = "Tags") -> Mapping[str, str]:
    return dict((found or {}).get(field, {}))


def _pairs(found: Mapping[str, Any] | None) -> Mapping[str, str]:
    return {pair["Key"]: pair["Value"] for pair in (found or {}).get("Tags", ())}


async def remove(account: Account, kind: Kind, name: str) -> None:
    """Delete it, and ask until AWS says that it is not there.

    :raises TargetError: it could not be deleted, or that it is gone could not be shown.
    """

    async def deleted() -> bool | None:
        try:
            await _delete(account, kind, name)
        except RefusedError as error:
            if error.code in _BUSY:
                return None
            raise
        return True

    async def gone() -> bool | None:
        return True if await look(account, kind, name) is None else None

    what = f"{kind} {name}"
    await account.wait(f"{what} still cannot be deleted", deleted, limit_s=BUSY_LIMIT_S)
    await account.wait(f"{what} was deleted and is still there", gone, limit_s=GONE_LIMIT_S)


async def _delete(account: Account, kind: Kind, name: str) -> None:
    """Ask for it to be deleted; no error when it is not there."""
    match kind:
        case Kind.MAPPING:
            await account.find("lambda", "DeleteEventSourceMapping", UUID=name)
        case Kind.FUNCTION:
            await account.find("lambda", "DeleteFunction", FunctionName=name)
        case Kind.QUEUE:
            found = await account.find("sqs", "GetQueueUrl", QueueName=name)
            if found is not None:
                await account.find("sqs", "DeleteQueue", QueueUrl=found["QueueUrl"])
        case Kind.TABLE:
            await account.find("dynamodb", "DeleteTable", TableName=name)
        case Kind.ROLE:
            found = await account.find("iam", "ListRolePolicies", RoleName=name)
            for policy in (found or {}).get("PolicyNames", ()):
                await account.find("iam", "DeleteRolePolicy", RoleName=name, PolicyName=policy)
            await account.find("iam", "DeleteRole", RoleName=name)
        case Kind.LOG_GROUP:
            await account.find("logs", "DeleteLogGroup", logGroupName=name)


async def mappings_of(account: Account, queue: str) -> list[str]:
    """The UUIDs of the mappings that read this queue, whoever made them."""
    arn = arn_of(account.identity, Kind.QUEUE, queue)
    return [
        str(mapping["UUID"])
        async for mapping in pages(
            account,
            "lambda",
            "ListEventSourceMappings",
            "EventSourceMappings",
            "Marker",
            "NextMarker",
            EventSourceArn=arn,
        )
    ]


async def pages(
    account: Account,
    service: str,
    operation: str,
    field: str,
    token: str,
    next_token: str,
    **parameters: Any,
) -> AsyncIterator[Any]:
    """Every entry of a list that comes in pages.

    :param field: of an answer, the entries.
    :param token: the parameter that asks for the next page; the answer's ``next_token``.
    """
    while True:
        page = await account.call(service, operation, **parameters)
        for entry in page.get(field, ()):
            yield entry
        if not page.get(next_token):
            return
        if parameters.get(token) == page[next_token]:
            raise TargetError(f"{service}:{operation} does not come to an end: same page again.")
        parameters[token] = page[next_token]
