"""``loadtest clean``: removes what was made, proves that it is gone, and touches nothing else.

A name or a record alone is no reason to delete anything: what is deleted carries the tag of its
stack at that moment. What was deleted is asked for again, and only "there is no such thing" is
taken as an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.errors import TargetError
from loadtest.aws.account import Account
from loadtest.aws.resources import (
    ROLE_PATH,
    TAG,
    Kind,
    look,
    mappings_of,
    pages,
    remove,
    tags_of,
)
from loadtest.aws.stack import Names, StackRecord, records, remove_record

Say = Callable[[str], None]

_TAG_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Tagged:
    """Something that is there and carries the tag."""

    kind: Kind
    name: str
    stack_id: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


async def find_tagged(
    account: Account, candidates: Iterable[tuple[Kind, str]]
) -> tuple[list[Tagged], list[str]]:
    """Those of them that are there and carry the tag, in the order of removing; and those that
    are there and do not, in words.

    :raises TargetError: AWS could not be asked about one of them; names all that may be left.
    """
    order = list(Kind)
    found: list[Tagged] = []
    untagged: list[str] = []
    asked = sorted(set(candidates), key=lambda one: (order.index(one[0]), one[1]))
    for number, (kind, name) in enumerate(asked):
        try:
            seen, tags = await _tags(account, kind, name)
        except TargetError as error:
            left = [*map(str, found), *(f"{kind} {name}" for kind, name in asked[number:])]
            raise _may_be_left(left, [error]) from error
        if TAG in tags:
            found.append(Tagged(kind, name, tags[TAG]))
        elif seen:
            untagged.append(f"{kind} {name}")
    return found, untagged


async def _tags(account: Account, kind: Kind, name: str) -> tuple[bool, Mapping[str, str]]:
    """Whether it is there, and its tags.

    What was just made may not be told at once: a role by IAM, tags of a table by DynamoDB (API
    reference, ListTagsOfResource). So these are asked for again before it is believed.
    """
    seen = None
    for attempt in range(_TAG_ATTEMPTS):
        if attempt:
            await account.sleep(1)
        seen = await look(account, kind, name)
        if seen is not None:
            tags = await tags_of(account, kind, name, seen)
            if TAG in tags:
                return True, tags
        elif kind is not Kind.ROLE:
            break
    return seen is not None, {}


async def stack_parts(account: Account, names: Names) -> tuple[list[Tagged], list[str]]:
    """What there is under the names of a stack: what carries the tag, of whichever deployment,
    and what does not."""
    candidates = list(names.parts())
    try:
        # Also a mapping that was made and not recorded: the queue knows it.
        candidates += [(Kind.MAPPING, one) for one in await mappings_of(account, names.queue)]
    except TargetError as error:
        left = [f"{kind} {name}" for kind, name in candidates]
        raise _may_be_left(["its event source mapping", *left], [error]) from error
    return await find_tagged(account, candidates)


async def remove_stack(account: Account, record: StackRecord, path: Path, *, say: Say) -> None:
    """Remove what this deployment made, then its record.

    :raises TargetError: something may be left, and the record is kept.
    """
    parts, untagged = await stack_parts(account, Names(record.stack, record.region))
    own = [one for one in parts if one.stack_id == record.stack_id]
    await remove_all(account, own, say=say)
    others = [f"{one} ({TAG} = {one.stack_id})" for one in parts if one not in own] + untagged
    if others:
        # Nothing of these names was there before this deployment.
        raise TargetError(
            f"{', '.join(others)}: there under a name of this stack, and without its tag, {TAG} = "
            f"{record.stack_id}; left as it is. If it is this stack's, give it the tag and repeat "
            f"the command. If it is not, delete {path}."
        )
    remove_record(path)


async def remove_all(account: Account, parts: Sequence[Tagged], *, say: Say) -> None:
    """Remove all of them, in their order; what fails keeps none of the others from it.

    :raises TargetError: something may be left; names it and says why.
    """
    failed: dict[Tagged, TargetError] = {}
    for part in parts:
        try:
            await remove(account, part.kind, part.name)
        except TargetError as error:
            failed[part] = error
        else:
            say(f"gone: {part}")
    if failed:
        raise _may_be_left(map(str, failed), failed.values())


def _may_be_left(left: Iterable[str], errors: Iterable[TargetError]) -> TargetError:
    reasons = " ".join(dict.fromkeys(map(str, errors)))
    return TargetError(
        f"these may be left: {', '.join(left)}. {reasons} Put that right, then repeat the command "
        "(loadtest clean): until then they stay and may cost."
    )


# --- what nobody has a record of ----------------------------------------------------------


async def find_orphans(account: Account, out: Path, say: Say) -> list[Tagged]:
    """Everything in this account and region that carries the tag and that no record in ``out``
    stands for."""
    recorded = {
        record.stack_id: record
        for record in records(out)
        if (record.account_id, record.region)
        == (account.identity.account_id, account.identity.region)
    }
    # What was just made the tagging API may not know yet, and of some kinds it knows nothing.
    listed = [one async for one in _by_name(account)]
    by_tag = await _by_tag(account)
    if by_tag is None:
        say("found by the lists of each service: the tagging API is not there, or not allowed")
    else:
        say("found by the lists of each service and by the tagging API")
        listed += by_tag
    queues = [name for kind, name in listed if kind is Kind.QUEUE]
    for queue in queues:
        listed += [(Kind.MAPPING, one) for one in await mappings_of(account, queue)]
    found, _ = await find_tagged(account, listed)
    for stack_id in sorted({one.stack_id for one in found} & recorded.keys()):
        stack = recorded[stack_id].stack
        say(f"stack {stack} has a record; loadtest clean --stack {stack} removes it")
    return [one for one in found if one.stack_id not in recorded]


async def _by_tag(account: Account) -> list[tuple[Kind, str]] | None:
    """By the tagging API, which also lists what was deleted a while ago; None where it does not
    answer."""
    found = []
    try:
        async for entry in pages(
            account,
            "resourcegroupstaggingapi",
            "GetResources",
            "ResourceTagMappingList",
            "PaginationToken",
            "PaginationToken",
            TagFilters=[{"Key": TAG}],
        ):
            found += _kind_and_name(str(entry["ResourceARN"]))
    except TargetError:
        return None
    return found


def _kind_and_name(arn: str) -> list[tuple[Kind, str]]:
    """Of an ARN; nothing for a kind that no stack has."""
    _, _, service, _, _, resource = arn.split(":", 5)
    match service, resource.replace("/", ":", 1).split(":"):
        case "sqs", [name]:
            return [(Kind.QUEUE, name)]
        case "dynamodb", ["table", name]:
            return [(Kind.TABLE, name)]
        case "lambda", ["function", name]:
            return [(Kind.FUNCTION, name)]
        case "lambda", ["event-source-mapping", name]:
            return [(Kind.MAPPING, name)]
    return []


async def _by_name(account: Account) -> AsyncIterator[tuple[Kind, str]]:
    """By the names that stacks give, service by service."""
    prefix = f"{TAG}-"
    async for url in pages(
        account,
        "sqs",
        "ListQueues",
        "QueueUrls",
        "NextToken",
        "NextToken",
        QueueNamePrefix=prefix,
        MaxResults=1000,
    ):
        yield Kind.QUEUE, url.rpartition("/")[2]
    async for name in pages(
        account,
        "dynamodb",
        "ListTables",
        "TableNames",
        "ExclusiveStartTableName",
        "LastEvaluatedTableName",
    ):
        if name.startswith(prefix):
            yield Kind.TABLE, name
    async for function in pages(
        account, "lambda", "ListFunctions", "Functions", "Marker", "NextMarker"
    ):
        if function["FunctionName"].startswith(prefix):
            yield Kind.FUNCTION, function["FunctionName"]
    async for role in pages(
        account, "iam", "ListRoles", "Roles", "Marker", "Marker", PathPrefix=ROLE_PATH
    ):
        # Roles belong to no region: those of others are not found here.
        if role["RoleName"].endswith(f"-{account.identity.region}"):
            yield Kind.ROLE, role["RoleName"]
    async for group in pages(
        account,
        "logs",
        "DescribeLogGroups",
        "logGroups",
        "nextToken",
        "nextToken",
        logGroupNamePrefix=f"/aws/lambda/{TAG}-",
    ):
        yield Kind.LOG_GROUP, group["logGroupName"]
    async for mapping in pages(
        account,
        "lambda",
        "ListEventSourceMappings",
        "EventSourceMappings",
        "Marker",
        "NextMarker",
    ):
        if f":function:{TAG}-" in mapping["FunctionArn"]:
            yield Kind.MAPPING, mapping["UUID"]
