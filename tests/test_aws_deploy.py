"""A sample stack made and removed: what is there afterwards, what is not, and what never moved."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import itertools
import json
import secrets
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from analysis.errors import TargetError, UsageError
from consumer.clock import HostClock
from loadtest.aws import deploy, resources
from loadtest.aws.account import Account
from loadtest.aws.clean import Tagged, find_orphans, remove_stack
from loadtest.aws.commands import check_whole
from loadtest.aws.deploy import Deployment, present
from loadtest.aws.stack import Names, package, read_record, record_path
from tests.cli import Ended, Reply, end_of, loadtest, started
from tests.control_plane import Answering, Asked, control_plane

CREATING = [
    "sqs:CreateQueue",
    "dynamodb:CreateTable",
    "iam:PutRolePolicy",
    "lambda:CreateFunction",
    "lambda:CreateEventSourceMapping",
]


@pytest.fixture
def stack() -> str:
    return f"t{secrets.token_hex(3)}"


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is given up soon."""
    for module, name in (
        (deploy, "_READY_LIMIT_S"),
        (deploy, "_ROLE_LIMIT_S"),
        (deploy, "_RECREATE_LIMIT_S"),
        (resources, "GONE_LIMIT_S"),
        (resources, "BUSY_LIMIT_S"),
    ):
        monkeypatch.setattr(module, name, 5.0)


async def no_time(_: float) -> None:
    await asyncio.sleep(0)


@functools.cache
def client(url: str, service: str) -> Any:
    return boto3.client(service, endpoint_url=url, region_name="us-east-1")


def everything(url: str, stack: str) -> dict[str, Any]:
    """All that an endpoint has with this word in its name, of every kind that a stack has parts
    of, with its details."""
    sqs, dynamodb, functions = (client(url, name) for name in ("sqs", "dynamodb", "lambda"))
    iam, logs = client(url, "iam"), client(url, "logs")
    found: dict[str, Any] = {}
    for queue in sqs.list_queues().get("QueueUrls", []):
        if stack in queue:
            answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])
            found[f"queue {queue.rpartition('/')[2]}"] = answer["Attributes"]
    for table in dynamodb.list_tables()["TableNames"]:
        if stack in table:
            found[f"table {table}"] = dynamodb.scan(TableName=table)["Items"]
    for function in functions.list_functions()["Functions"]:
        found[f"function {function['FunctionName']}"] = function["RevisionId"]
    for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
        found[f"mapping {mapping['UUID']} {mapping['FunctionArn']}"] = mapping["State"]
    for role in iam.list_roles()["Roles"]:
        found[f"role {role['RoleName']}"] = role
    for group in logs.describe_log_groups()["logGroups"]:
        found[f"log group {group['logGroupName']}"] = group.get("retentionInDays")
    return {name: value for name, value in found.items() if stack in name}


def command(name: str, url: str, *more: str, cwd: Path) -> Ended:
    return loadtest(name, "--endpoint-url", url, "--yes", *more, cwd=cwd)


def make_neighbours(url: str, stack: str) -> None:
    """Things of somebody else's, some of them with names that look like ours."""
    name = f"onceproof-{stack}-neighbour"
    queue = client(url, "sqs").create_queue(QueueName=name)["QueueUrl"]
    client(url, "sqs").send_message(QueueUrl=queue, MessageBody="keep me")
    client(url, "dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    client(url, "dynamodb").put_item(TableName=name, Item={"id": {"S": "keep me"}})
    role = client(url, "iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]
    client(url, "iam").put_role_policy(RoleName=name, PolicyName="p", PolicyDocument="{}")
    client(url, "lambda").create_function(
        FunctionName=name,
        Runtime="python3.12",
        Role=role["Arn"],
        Handler="app.handler",
        Code={"ZipFile": package()},
    )
    client(url, "lambda").get_waiter("function_active_v2").wait(FunctionName=name)
    client(url, "logs").create_log_group(logGroupName=f"/aws/lambda/{name}")


# --- the whole way ------------------------------------------------------------------------


def test_a_stack_is_made_works_and_is_removed_and_its_neighbours_stay(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    make_neighbours(emulator_url, stack)
    before = everything(emulator_url, stack)

    made = command("deploy", emulator_url, "--name", stack, cwd=tmp_path)
    assert made.code == 0, made.said
    for text in ("account 000000000000", "region us-east-1", "idle about $0.0086 a day", stack):
        assert text in made.said
    record = read_record(record_path(tmp_path / "runs", stack))
    assert record is not None
    assert len(record.parts) == 8
    assert all(part.arn for part in record.parts)
    added = everything(emulator_url, stack).keys() - before.keys()
    assert len(added) == 8
    text = record_path(tmp_path / "runs", stack).read_text().lower()
    assert not any(word in text for word in ("secret", "access_key", "token", "receipt"))

    iam = client(emulator_url, "iam")
    role = f"onceproof-{stack}-us-east-1"
    rights = iam.get_role_policy(RoleName=role, PolicyName="least-rights")["PolicyDocument"]
    assert [(one["Action"], one["Resource"]) for one in rights["Statement"]] == [
        (
            ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"],
            f"arn:aws:sqs:us-east-1:000000000000:onceproof-{stack}-queue",
        ),
        (
            ["dynamodb:PutItem"],
            f"arn:aws:dynamodb:us-east-1:000000000000:table/onceproof-{stack}-orders",
        ),
        (
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            f"arn:aws:logs:us-east-1:000000000000:log-group:/aws/lambda/onceproof-{stack}:*",
        ),
    ]
    assert iam.get_role(RoleName=role)["Role"]["Tags"] == [
        {"Key": "onceproof", "Value": record.stack_id}
    ]

    again = command("deploy", emulator_url, "--name", stack, cwd=tmp_path)
    assert again.code == 0
    assert f"stack {stack} is there already; nothing was made" in again.said
    assert read_record(record_path(tmp_path / "runs", stack)) == record

    gone = loadtest("clean", "--stack", stack, "--yes", cwd=tmp_path)  # the record says where
    assert gone.code == 0, gone.said
    assert "removed and proven gone: 8 parts" in gone.said
    assert gone.said.index("gone: event source mapping") < gone.said.index("gone: function")
    assert everything(emulator_url, stack) == before
    assert list((tmp_path / "runs").iterdir()) == []

    nothing = command("clean", emulator_url, "--stack", stack, cwd=tmp_path)
    assert (nothing.code, "nothing is there" in nothing.said) == (0, True)


def test_the_package_is_the_same_every_time() -> None:
    assert package() == package()
    with zipfile.ZipFile(io.BytesIO(package())) as archive:
        assert archive.namelist() == ["app.py"]
        assert b"def handler(" in archive.read("app.py")


# --- what goes wrong while it is made ---------------------------------------------------------


class Plane:
    """A control plane whose answers a test changes as it goes, and an account in front of it."""

    account: Account

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.answering: Answering = Asked.forward_it

    async def make(self, stack: str) -> str:
        """What was said when it was tried to make it; empty when it was made."""
        names = Names(stack, "us-east-1")
        path = record_path(self.tmp_path, stack)
        deployment = Deployment(self.account, names, path, clock=HostClock(), say=lambda _: None)
        try:
            await deployment.make()
        except TargetError as error:
            return " ".join((str(error), *getattr(error, "__notes__", ())))
        return ""

    async def clean(self, stack: str) -> None:
        path = record_path(self.tmp_path, stack)
        record = read_record(path)
        assert record is not None
        await remove_stack(self.account, record, path, say=lambda _: None)


@contextlib.asynccontextmanager
async def opened(emulator_url: str, tmp_path: Path) -> AsyncIterator[Plane]:
    plane = Plane(tmp_path)
    with control_plane(emulator_url, lambda asked: active(plane.answering, asked)) as url:
        async with Account(endpoint_url=url, sleep=no_time) as plane.account:
            yield plane


def active(answering: Answering, asked: Asked) -> Reply:
    """The emulator makes a function in its own time; here it is ready at once."""
    reply = answering(asked)
    if asked.action != "lambda:GetFunctionConfiguration" or reply.status >= 300:
        return reply
    said = json.loads(reply.body)
    if said["StateReasonCode"] == "Creating":
        said.update(State="Active")
    return Reply(reply.status, json.dumps(said).encode(), reply.content_type)


@pytest.mark.usefixtures("_impatient")
async def test_what_was_made_is_removed_when_something_is_denied(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    async with opened(emulator_url, tmp_path) as plane:
        for action in CREATING:
            plane.answering = denying(action)
            said = await plane.make(stack)
            assert f"Allow {action}" in said
            assert everything(emulator_url, stack) == {}, action
            assert not record_path(tmp_path, stack).exists()


def denying(action: str) -> Answering:
    met = itertools.count(1)
    # The second queue, the second table: something is there by then.
    late = 2 if action in ("sqs:CreateQueue", "dynamodb:CreateTable") else 1

    def answer(asked: Asked) -> Reply:
        denied = asked.action == action and next(met) == late
        return asked.denied() if denied else asked.forward()

    return answer


def passing(action: str, code: str, message: str, times: int, status: int = 400) -> Answering:
    """Refuse the first times, then let it pass."""
    met = itertools.count(1)

    def answer(asked: Asked) -> Reply:
        if asked.action == action and next(met) <= times:
            return asked.refused(status, code, message)
        return asked.forward()

    return answer


def changed(action: str, change: Callable[[dict[str, Any]], None]) -> Answering:
    """Let the emulator answer, and change what it says of what is there."""

    def answer(asked: Asked) -> Reply:
        reply = asked.forward()
        if asked.action != action or reply.status >= 300:
            return reply
        said = json.loads(reply.body)
        change(said)
        return Reply(reply.status, json.dumps(said).encode(), reply.content_type)

    return answer


INVALID = "InvalidParameterValueException"
ASSUME = "The role defined for the function cannot be assumed by Lambda."
GRANT = "Lambda was unable to ... because the KMS key is invalid for CreateGrant."
RECEIVE = "The provided execution role does not have permissions to call ReceiveMessage on SQS"


@pytest.mark.usefixtures("_impatient")
async def test_what_passes_by_itself_is_waited_for(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    queued = (400, "AWS.SimpleQueueService.QueueDeletedRecently", "wait 60 seconds")
    throttled = (429, "TooManyRequestsException", "Rate exceeded")
    nobody = (404, "NoSuchEntity", "The role with name x cannot be found.")
    in_use = (400, "ResourceInUseException", "is updated")
    left = {
        "lambda:CreateFunction": [(400, INVALID, ASSUME), (400, INVALID, GRANT), throttled],
        "lambda:CreateEventSourceMapping": [(400, INVALID, RECEIVE)] * 3,
        "sqs:CreateQueue": [queued] * 3,
        "lambda:GetFunctionConfiguration": [throttled] * 3,
        "iam:CreateRole": [(400, "Throttling", "Rate exceeded")] * 3,
        "iam:PutRolePolicy": [nobody] * 3,
    }
    later = {
        "lambda:DeleteFunction": [throttled] * 3,
        "lambda:DeleteEventSourceMapping": [in_use] * 3,
        "iam:GetRole": [nobody],
    }

    def answer(asked: Asked) -> Reply:
        refusals = left.get(asked.action)
        return asked.refused(*refusals.pop()) if refusals else asked.forward()

    async with opened(emulator_url, tmp_path) as plane:
        plane.answering = answer
        assert await plane.make(stack) == ""
        left |= later
        await plane.clean(stack)
        assert plane.account.throttled["iam:CreateRole"] == 3
    assert not any(left.values())
    assert everything(emulator_url, stack) == {}


@pytest.mark.usefixtures("_impatient")
async def test_what_never_becomes_ready_is_told_and_removed(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    function, table = "lambda:GetFunctionConfiguration", "dynamodb:DescribeTable"
    never: list[tuple[Answering, str]] = [
        (
            changed(function, lambda said: said.update(State="Pending", StateReasonCode="Idle")),
            "is not Active after 5 s. Its last state was Pending.",
        ),
        (
            changed(
                function,
                lambda said: said.update(
                    State="Failed", StateReason="no such runtime", StateReasonCode="InvalidRuntime"
                ),
            ),
            "came to the state Failed: no such runtime. Deploy again.",
        ),
        (
            changed(function, lambda said: said.update(CodeSha256="other")),
            "runs other code than was sent (CodeSha256 is other)",
        ),
        (
            changed("lambda:GetEventSourceMapping", lambda said: said.update(State="Creating")),
            "is not Enabled after 5 s. Its last state was Creating.",
        ),
        (
            changed(table, lambda said: said["Table"].update(TableStatus="CREATING")),
            "is not ACTIVE after 5 s. Its last state was CREATING.",
        ),
        (
            passing("lambda:CreateFunction", INVALID, ASSUME, 99),
            f"still cannot take the new role onceproof-{stack}-us-east-1 after 5 s.",
        ),
        (
            passing("logs:CreateLogGroup", "ExpiredTokenException", "expired", 1),
            "the AWS session token has expired",
        ),
    ]
    async with opened(emulator_url, tmp_path) as plane:
        for answering, said in never:
            plane.answering = answering
            assert said in await plane.make(stack)
            assert everything(emulator_url, stack) == {}, said


@pytest.mark.usefixtures("_impatient")
async def test_what_could_not_be_removed_again_is_named_and_stays_recorded(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    def deny(asked: Asked) -> Reply:
        denied = ("lambda:CreateFunction", "iam:DeleteRole")
        return asked.denied() if asked.action in denied else asked.forward()

    async with opened(emulator_url, tmp_path) as plane:
        plane.answering = deny
        said = await plane.make(stack)
        role = f"role onceproof-{stack}-us-east-1"
        assert f"these may be left: {role}." in said
        assert said.startswith("AWS refuses lambda:CreateFunction"), "the first error comes first"
        assert list(everything(emulator_url, stack)) == [role]
        with pytest.raises(UsageError, match=rf"only a part of stack {stack} is there"):
            check_whole(
                Names(stack, "us-east-1"), await present(plane.account, Names(stack, "us-east-1"))
            )
        plane.answering = Asked.forward_it
        await plane.clean(stack)
    assert everything(emulator_url, stack) == {}


# --- what goes wrong while it is removed ------------------------------------------------------


@pytest.mark.usefixtures("_impatient")
async def test_only_not_there_is_a_proof(emulator_url: str, stack: str, tmp_path: Path) -> None:
    # Whether it is there -> what AWS says of that, once something of this kind was deleted.
    silent = {
        "lambda:GetEventSourceMapping": (400, "ExpiredTokenException"),
        "lambda:GetFunctionConfiguration": (403, "AccessDeniedException"),
        "sqs:GetQueueUrl": (500, "InternalFailure"),
        "dynamodb:DescribeTable": (400, "UnrecognizedClientException"),
        "iam:GetRole": (400, "ThrottlingException"),
        "logs:ListTagsForResource": (400, "InvalidParameterException"),
    }
    deleting = {
        "lambda:DeleteEventSourceMapping": "lambda:GetEventSourceMapping",
        "lambda:DeleteFunction": "lambda:GetFunctionConfiguration",
        "sqs:DeleteQueue": "sqs:GetQueueUrl",
        "dynamodb:DeleteTable": "dynamodb:DescribeTable",
        "iam:DeleteRole": "iam:GetRole",
        "logs:DeleteLogGroup": "logs:ListTagsForResource",
    }
    deleted: set[str] = set()

    def answer(asked: Asked) -> Reply:
        if asked.action in deleted:
            return asked.refused(*silent[asked.action])
        reply = asked.forward()
        deleted.update({deleting[asked.action]} if asked.action in deleting else ())
        return reply

    async with opened(emulator_url, tmp_path) as plane:
        assert await plane.make(stack) == ""
        plane.answering = answer
        with pytest.raises(TargetError, match=r"^these may be left: event source map") as raised:
            await plane.clean(stack)
        assert deleted == silent.keys()
        said = str(raised.value)
        for kind in ("function", "queue", "table", "role", "log group"):
            assert f", {kind} " in said
        for code in (
            *("expired", "lambda:GetFunctionConfiguration", "HTTP 500"),
            *("UnrecognizedClientException", "throttled", "InvalidParameterException"),
        ):
            assert code in said
        assert said.endswith("(loadtest clean): until then they stay and may cost.")
        assert record_path(tmp_path, stack).exists()
        plane.answering = Asked.forward_it
        await plane.clean(stack)
    assert everything(emulator_url, stack) == {}
    assert not record_path(tmp_path, stack).exists()


@pytest.mark.usefixtures("_impatient")
async def test_a_session_that_has_ended_and_a_deletion_that_is_only_promised_are_told(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    lying = ("lambda:DeleteEventSourceMapping", "sqs:DeleteQueue")

    def lie(asked: Asked) -> Reply:
        return Reply(200, b"{}") if asked.action in lying else asked.forward()

    async with opened(emulator_url, tmp_path) as plane:
        assert await plane.make(stack) == ""
        there = everything(emulator_url, stack)
        plane.answering = lambda asked: asked.refused(400, "ExpiredTokenException")
        with pytest.raises(TargetError, match=r"these may be left: .*session token has expired"):
            await plane.clean(stack)
        assert everything(emulator_url, stack) == there
        plane.answering = lie
        with pytest.raises(TargetError, match="was deleted and is still there after 5 s") as raised:
            await plane.clean(stack)
        for part in ("event source mapping", f"queue onceproof-{stack}-queue"):
            assert part in str(raised.value)
        assert len(everything(emulator_url, stack)) == 3, "all the rest is removed nevertheless"
        plane.answering = Asked.forward_it
        await plane.clean(stack)
    assert everything(emulator_url, stack) == {}


def test_what_is_not_ours_is_neither_used_nor_removed(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    sqs = client(emulator_url, "sqs")
    url = sqs.create_queue(QueueName=f"onceproof-{stack}-queue")["QueueUrl"]
    there = everything(emulator_url, stack)
    made = command("deploy", emulator_url, "--name", stack, cwd=tmp_path)
    assert made.code == 2
    assert "is there already and not ours (no tag onceproof). Choose another --name." in made.said
    cleaned = command("clean", emulator_url, "--stack", stack, cwd=tmp_path)
    assert cleaned.code == 0
    assert f"queue onceproof-{stack}-queue is not ours" in cleaned.said
    assert everything(emulator_url, stack) == there
    sqs.delete_queue(QueueUrl=url)


@pytest.mark.usefixtures("_impatient")
async def test_what_lost_its_tag_is_left_and_told(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    async with opened(emulator_url, tmp_path) as plane:
        assert await plane.make(stack) == ""
        sqs, name = client(emulator_url, "sqs"), f"onceproof-{stack}-queue"
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        sqs.untag_queue(QueueUrl=url, TagKeys=["onceproof"])
        sqs.tag_queue(
            QueueUrl=sqs.get_queue_url(QueueName=f"onceproof-{stack}-dlq")["QueueUrl"],
            Tags={"onceproof": "another-deployment"},
        )
        with pytest.raises(TargetError, match="without its tag") as raised:
            await plane.clean(stack)
        for part in (f"queue {name}", f"queue onceproof-{stack}-dlq (onceproof = another"):
            assert part in str(raised.value)
        assert len(everything(emulator_url, stack)) == 2
        record = read_record(record_path(tmp_path, stack))
        assert record is not None
        for queue in (name, f"onceproof-{stack}-dlq"):
            sqs.tag_queue(
                QueueUrl=sqs.get_queue_url(QueueName=queue)["QueueUrl"],
                Tags={"onceproof": record.stack_id},
            )
        await plane.clean(stack)
    assert everything(emulator_url, stack) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--name", "A_b"), "'A_b' cannot be the name of a stack"),
        (("--endpoint-url", "foo"), "'foo' is no endpoint"),
        (("--endpoint-url", "http://[::1"), "is no endpoint"),
        (("--region", "bad region"), "--region: "),
    ],
)
def test_wrong_use_is_told(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    end = loadtest("deploy", *arguments, "--yes", cwd=tmp_path)
    assert end.code == 2
    assert said in end.said
    assert list(tmp_path.iterdir()) == []


def test_after_a_kill_in_the_middle_nothing_is_left(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    reached, ended = threading.Event(), threading.Event()

    def hold(asked: Asked) -> Reply:
        reply = asked.forward()
        if asked.action == "lambda:CreateEventSourceMapping":
            # Made, and the tester does not know it, nor its name.
            reached.set()
            ended.wait(60)
        return reply

    with (
        control_plane(emulator_url, hold) as url,
        started("deploy", "--name", stack, "--endpoint-url", url, "--yes", cwd=tmp_path) as process,
    ):
        assert reached.wait(60)
        process.kill()
        end_of(process)
        ended.set()
    assert len(everything(emulator_url, stack)) == 8
    cleaned = command("clean", emulator_url, "--stack", stack, cwd=tmp_path)
    assert cleaned.code == 0, cleaned.said
    assert everything(emulator_url, stack) == {}
    assert list((tmp_path / "runs").iterdir()) == []


async def test_wherever_it_is_killed_the_record_leads_to_all_of_it(
    emulator_url: str, stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_time_for_it(*_: Any, **__: Any) -> None:
        pass

    def broken(action: str) -> Answering:
        def answer(asked: Asked) -> Reply:
            reply = asked.forward()
            # It was made, and nothing more is heard.
            return asked.refused(500, "InternalFailure") if asked.action == action else reply

        return answer

    async with opened(emulator_url, tmp_path) as plane:
        for number, action in enumerate((*CREATING, "logs:CreateLogGroup", "iam:CreateRole"), 1):
            with monkeypatch.context() as killed:
                killed.setattr(deploy, "remove_stack", no_time_for_it)
                plane.answering = broken(action)
                assert action in await plane.make(f"{stack}-{number}")
            assert everything(emulator_url, stack) != {}
            plane.answering = Asked.forward_it
            await plane.clean(f"{stack}-{number}")
            assert everything(emulator_url, stack) == {}, action


# --- what nobody has a record of --------------------------------------------------------------


def test_orphans_are_found_by_tag_and_stacks_with_a_record_stay(
    emulator_url: str, stack: str, tmp_path: Path
) -> None:
    said: list[str] = []

    async def make_and_find() -> list[list[Tagged]]:
        async with opened(emulator_url, tmp_path / "runs") as plane:
            for name in (f"{stack}a", f"{stack}b"):
                assert await plane.make(name) == ""
            record_path(tmp_path / "runs", f"{stack}a").unlink()
            found = [await find_orphans(plane.account, tmp_path / "runs", said.append)]
            plane.answering = lambda asked: (
                asked.denied() if asked.action == "tag:GetResources" else asked.forward()
            )
            return [*found, await find_orphans(plane.account, tmp_path / "runs", said.append)]

    make_neighbours(emulator_url, stack)
    before = everything(emulator_url, stack)
    tagged, listed = asyncio.run(make_and_find())
    assert tagged == listed
    assert len(tagged) == 8
    known = f"stack {stack}b has a record; loadtest clean --stack {stack}b removes it"
    assert said == [
        "found by the lists of each service and by the tagging API",
        known,
        "found by the lists of each service: the tagging API is not there, or not allowed",
        known,
    ]
    end = command("clean", emulator_url, "--orphans", cwd=tmp_path)
    assert end.code == 0, end.said
    assert "removed and proven gone: 8 orphans" in end.said
    assert everything(emulator_url, f"{stack}a") == {}
    assert len(everything(emulator_url, f"{stack}b")) == 8

    # Without a record it is still known by its name.
    record_path(tmp_path / "runs", f"{stack}b").unlink()
    assert command("clean", emulator_url, "--stack", f"{stack}b", cwd=tmp_path).code == 0
    assert everything(emulator_url, stack) == before
