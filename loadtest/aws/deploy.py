"""``loadtest deploy``: the sample stack, made part by part, or not at all.

What is about to be made is in the record before it is asked for, so that whatever happens, a
later ``loadtest clean`` knows where to look. Every part carries the stack's tag from its first
moment: nothing else is ever removed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from analysis.errors import TargetError
from consumer.clock import Clock
from loadtest.aws.account import Account, RefusedError
from loadtest.aws.clean import remove_stack
from loadtest.aws.resources import ROLE_PATH, TAG, Kind, Seen, arn_of, look, mappings_of, tags_of
from loadtest.aws.stack import (
    DEAD_LETTER_RETENTION_S,
    HANDLER,
    LOG_RETENTION_DAYS,
    MAX_RECEIVE_COUNT,
    MEMORY_MB,
    RUNTIME,
    TIMEOUT_S,
    VISIBILITY_TIMEOUT_S,
    Names,
    Part,
    StackRecord,
    code_sha256,
    least_rights,
    package,
    trust_policy,
    write_record,
)
from loadtest.targets import KEEP_UNCHANGED

_POLICY_NAME = "least-rights"
_RECREATE_LIMIT_S = 75.0
"""A queue's name is free again 60 s after it was deleted (SQS API reference, CreateQueue)."""
_ROLE_LIMIT_S = 180.0
"""A new role is mostly known to Lambda within seconds; minutes have been reported."""
_READY_LIMIT_S = 180.0
_READY_EVERY_S = 0.5
_LATE_S = 2.0


There = tuple[Kind, str, str, str | None]
"""Something that is there: kind, name, state, and the value of its tag."""


async def present(account: Account, names: Names) -> list[There]:
    """What there is of the stack already."""
    parts = [
        *names.parts(),
        *((Kind.MAPPING, one) for one in await mappings_of(account, names.queue)),
    ]
    found = []
    for kind, name in parts:
        seen = await look(account, kind, name)
        if seen is not None:
            tags = await tags_of(account, kind, name, seen)
            found.append((kind, name, seen.state, tags.get(TAG)))
    return found


class Deployment:
    """Makes one stack. :attr:`record` says at any moment what may be there."""

    def __init__(
        self,
        account: Account,
        names: Names,
        path: Path,
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """
        :param path: where the record is kept.
        :param say: is told of each part, made or removed.
        """
        self._account = account
        self._names = names
        self._path = path
        self._say = say
        stack_id = f"{names.stack}-{secrets.token_hex(4)}"
        self.record = StackRecord.planned(
            account.identity, names, stack_id=stack_id, created_at=clock.now_ns()
        )

    async def make(self) -> StackRecord:
        """Make all of it and wait until it works.

        :raises OnceproofError: something could not be made. What was made is removed again;
            what may be left is named, and stays in the record.
        """
        write_record(self._path, self.record)
        try:
            await self._make()
        except BaseException as error:
            self._say("not finished: removing what was made")
            try:
                # What was asked for, and not answered, may be there only now.
                await self._account.sleep(_LATE_S)
                await remove_stack(self._account, self.record, self._path, say=self._say)
            except TargetError as left:
                error.add_note(f"Not all of it could be removed again: {left}")
            raise
        return self.record

    async def _make(self) -> None:
        names = self._names
        await self._log_group()
        await self._queue(
            names.dead_letter_queue, {"MessageRetentionPeriod": str(DEAD_LETTER_RETENTION_S)}
        )
        redrive = {
            "deadLetterTargetArn": self._arn(Kind.QUEUE, names.dead_letter_queue),
            "maxReceiveCount": MAX_RECEIVE_COUNT,
        }
        await self._queue(
            names.queue,
            {
                "VisibilityTimeout": str(VISIBILITY_TIMEOUT_S),
                "RedrivePolicy": json.dumps(redrive),
            },
        )
        await self._table(names.orders, streamed=True)
        await self._table(names.reference)
        reference = {"id": {"S": "reference"}, "note": {"S": KEEP_UNCHANGED}}
        await self._account.call("dynamodb", "PutItem", TableName=names.reference, Item=reference)
        await self._role()
        await self._function()
        await self._mapping()

    def _arn(self, kind: Kind, name: str) -> str:
        return arn_of(self._account.identity, kind, name)

    def _made(self, kind: Kind, name: str, arn: str) -> None:
        self.record = self.record.with_part(Part(kind, name, arn))
        write_record(self._path, self.record)
        self._say(f"made {kind} {name}")

    @property
    def _tags(self) -> dict[str, str]:
        return {TAG: self.record.stack_id}

    @property
    def _tag_pairs(self) -> list[dict[str, str]]:
        return [{"Key": key, "Value": value} for key, value in self._tags.items()]

    async def _log_group(self) -> None:
        name = self._names.log_group
        await self._account.call("logs", "CreateLogGroup", logGroupName=name, tags=self._tags)
        self._made(Kind.LOG_GROUP, name, self._arn(Kind.LOG_GROUP, name))
        await self._account.call(
            "logs", "PutRetentionPolicy", logGroupName=name, retentionInDays=LOG_RETENTION_DAYS
        )

    async def _queue(self, name: str, attributes: dict[str, str]) -> None:
        await self._patiently(
            lambda: self._account.call(
                "sqs", "CreateQueue", QueueName=name, Attributes=attributes, tags=self._tags
            ),
            lambda error: error.code.endswith("QueueDeletedRecently"),
            f"queue {name} was deleted a moment ago and cannot be made again",
            _RECREATE_LIMIT_S,
        )
        self._made(Kind.QUEUE, name, self._arn(Kind.QUEUE, name))

    async def _table(self, name: str, *, streamed: bool = False) -> None:
        """:param streamed: let its stream show every write, with the item before and after."""
        stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        made = await self._account.call(
            "dynamodb",
            "CreateTable",
            **({"StreamSpecification": stream} if streamed else {}),
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            Tags=self._tag_pairs,
        )
        self._made(Kind.TABLE, name, str(made["TableDescription"]["TableArn"]))
        await self._until(Kind.TABLE, name, "ACTIVE")

    async def _role(self) -> None:
        name = self._names.role
        made = await self._account.call(
            "iam",
            "CreateRole",
            RoleName=name,
            Path=ROLE_PATH,
            AssumeRolePolicyDocument=trust_policy(),
            Description=f"What the function {self._names.function} may do.",
            Tags=self._tag_pairs,
        )
        self._made(Kind.ROLE, name, str(made["Role"]["Arn"]))
        await self._patiently(
            lambda: self._account.call(
                "iam",
                "PutRolePolicy",
                RoleName=name,
                PolicyName=_POLICY_NAME,
                PolicyDocument=least_rights(self._account.identity, self._names),
            ),
            lambda error: error.code == "NoSuchEntity",
            f"IAM still does not know the new role {name}",
            _ROLE_LIMIT_S,
        )

    async def _function(self) -> None:
        name, code = self._names.function, package()
        made = await self._patiently(
            lambda: self._account.call(
                "lambda",
                "CreateFunction",
                FunctionName=name,
                Runtime=RUNTIME,
                Role=self._arn(Kind.ROLE, self._names.role),
                Handler=HANDLER,
                Code={"ZipFile": code},
                Timeout=TIMEOUT_S,
                MemorySize=MEMORY_MB,
                Environment={"Variables": {"TABLE_NAME": self._names.orders}},
                Tags=self._tags,
            ),
            _role_is_new,
            f"Lambda still cannot take the new role {self._names.role}",
            _ROLE_LIMIT_S,
        )
        self._made(Kind.FUNCTION, name, str(made["FunctionArn"]))
        seen = await self._until(Kind.FUNCTION, name, "Active")
        runs = (seen.detail or {}).get("CodeSha256")
        if runs != code_sha256(code):
            raise TargetError(
                f"function {name} runs other code than was sent (CodeSha256 is {runs}). Deploy "
                "again."
            )

    async def _mapping(self) -> None:
        made = await self._patiently(
            lambda: self._account.call(
                "lambda",
                "CreateEventSourceMapping",
                EventSourceArn=self._arn(Kind.QUEUE, self._names.queue),
                FunctionName=self._names.function,
                BatchSize=1,
                Enabled=True,
                Tags=self._tags,
            ),
            _role_is_new,
            f"the new role {self._names.role} still may not read the queue",
            _ROLE_LIMIT_S,
        )
        name = str(made["UUID"])
        self._made(Kind.MAPPING, name, self._arn(Kind.MAPPING, name))
        await self._until(Kind.MAPPING, name, "Enabled")

    async def _until(self, kind: Kind, name: str, ready: str) -> Seen:
        """Wait for a state.

        :raises TargetError: it failed, vanished, or took too long.
        """
        state = "not there"

        async def asked() -> Seen | None:
            nonlocal state
            seen = await look(self._account, kind, name)
            if seen is None:
                return None
            state = seen.state
            if state == "Failed":
                why = (seen.detail or {}).get("StateReason") or "Lambda does not say why"
                raise TargetError(f"{kind} {name} came to the state Failed: {why}. Deploy again.")
            return seen if state == ready else None

        try:
            return await self._account.wait(
                f"{kind} {name} is not {ready}",
                asked,
                limit_s=_READY_LIMIT_S,
                every_s=_READY_EVERY_S,
            )
        except TargetError as error:
            if state not in (ready, "Failed"):
                error.add_note(f"Its last state was {state}. Look at it in the AWS console.")
            raise

    async def _patiently(
        self,
        ask: Callable[[], Awaitable[dict[str, Any]]],
        passes: Callable[[RefusedError], bool],
        what: str,
        limit_s: float,
    ) -> dict[str, Any]:
        """Ask again while the refusal is of a kind that passes by itself."""
        refused: RefusedError | None = None

        async def asked() -> dict[str, Any] | None:
            nonlocal refused
            try:
                return await ask()
            except RefusedError as error:
                if not passes(error):
                    raise
                refused = error
                return None

        try:
            return await self._account.wait(what, asked, limit_s=limit_s)
        except TargetError as error:
            if error is not refused and refused is not None:
                error.add_note(str(refused))
            raise


_NEW_ROLE = (
    "cannot be assumed by Lambda",
    "does not have permissions to call",  # receive from the queue
    "KMS key is invalid for CreateGrant",  # for the role, with Lambda's own key
)


def _role_is_new(error: RefusedError) -> bool:
    """What Lambda says while it does not know a role, or the rights of it, yet. The words were
    read in public reports of both calls; the code alone stands for many other mistakes."""
    said = str(error)
    return error.code == "InvalidParameterValueException" and any(
        words in said for words in _NEW_ROLE
    )
