"""What an account can answer instead of what a run needs: each a clear error, nothing left."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import OnceproofError
from analysis.findings import VerdictWord
from analysis.schema import Observation, RunStatus
from analysis.store import load_run
from analysis.verdict import read_verdict
from loadtest.aws.account import Account
from loadtest.aws.deployed import Deployed, find_deployed
from loadtest.config import load_settings
from tests.aws_endpoint import REGION, Error, Script, SimulatedAws, simulated_aws
from tests.cli import Ended, loadtest, started
from tests.simulated_stack import (
    DLQ_ARN,
    FUNCTION,
    GET_FUNCTION,
    GET_MAPPING,
    LIST_MAPPINGS,
    TAGS,
    UUID,
    SimulatedStack,
    function,
    mapping,
    table,
)

_Finding = Awaitable[Deployed]
_WRITES = ("Send", "Batch", "Create", "Update", "Delete", "Put", "ChangeMessage", "Receive")


async def _no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def _looking(tmp_path: Path) -> AsyncIterator[Callable[[dict[str, Script]], _Finding]]:
    """Looks for the stack where some actions answer otherwise; nothing may be changed by it."""
    settings = load_settings(None, {}, tmp_path)
    answers = SimulatedStack().answers()
    async with (
        simulated_aws() as (url, aws),
        Account(endpoint_url=url, region=REGION, sleep=_no_pause) as account,
    ):

        async def find(others: dict[str, Script]) -> Deployed:
            aws.answers = {**answers, **others}
            return await find_deployed(account, settings, FUNCTION, None)

        yield find
        assert not [asked for asked in aws.asked if asked.split(":")[1].startswith(_WRITES)]


async def test_finds_what_is_deployed(tmp_path: Path) -> None:
    async with _looking(tmp_path) as find:
        found = await find({})
    assert (found.function, found.timeout_s, found.memory_mb, found.arm) == (FUNCTION, 5, 256, True)
    assert (found.queue.name, found.max_receive_count, found.concurrency) == ("orders", 2, 20)
    assert found.dead_letter_queue is not None
    assert found.dead_letter_queue.name == "orders-dlq"
    # The variable that the configuration says holds the table's name.
    assert [one.info.name for one in found.tables] == ["shop-orders"]
    assert (found.log_group, found.logs_invocations) == (f"/aws/lambda/{FUNCTION}", True)


async def test_a_log_of_its_own_choice(tmp_path: Path) -> None:
    about = {"LogFormat": "JSON", "SystemLogLevel": "WARN", "LogGroup": "shared"}
    async with _looking(tmp_path) as find:
        found = await find({GET_FUNCTION: function(LoggingConfig=about)})
    assert (found.log_group, found.has_own_log_group) == ("shared", False)
    assert not found.logs_invocations


_NOT_READY: list[tuple[dict[str, Script], int, str]] = [
    (
        {GET_FUNCTION: Error("ResourceNotFoundException", status=404)},
        4,
        "there is no function orders-consumer in account 123456789012, region eu-west-1",
    ),
    (
        {
            GET_FUNCTION: function(
                State="Failed", StateReason="no such image", StateReasonCode="ImageDeleted"
            )
        },
        4,
        "is in the state Failed: no such image (ImageDeleted). Deploy it again",
    ),
    (
        {GET_FUNCTION: function(LastUpdateStatus="Failed", LastUpdateStatusReason="role")},
        4,
        "the last update of function orders-consumer failed: role",
    ),
    (
        {GET_FUNCTION: function(State="Pending")},
        4,
        "function orders-consumer was not ready (Active, last update Successful) after 120 s",
    ),
    ({GET_FUNCTION: function(0)}, 4, "has a reserved concurrency of 0"),
    (
        {GET_FUNCTION: function(Environment={"Error": {"Message": "KMS"}})},
        4,
        "the function's environment cannot be read: KMS. Allow kms:Decrypt",
    ),
    (
        {GET_FUNCTION: Error("AccessDeniedException", "not authorized", 403)},
        4,
        "Allow lambda:GetFunction to arn:aws:iam::123456789012:user/tester",
    ),
    (
        {LIST_MAPPINGS: {"EventSourceMappings": []}},
        4,
        "has no event source mapping from any SQS queue",
    ),
    (
        {LIST_MAPPINGS: {"EventSourceMappings": [mapping(), mapping(EventSourceArn=DLQ_ARN)]}},
        2,
        "--queue-url: function orders-consumer consumes several queues (orders, orders-dlq)",
    ),
    ({GET_MAPPING: mapping(State="Disabled")}, 4, "is Disabled, so nothing is consumed"),
    (
        {GET_MAPPING: mapping(State="Creating")},
        4,
        f"the event source mapping {UUID} of function orders-consumer was still not Enabled",
    ),
    (
        {
            LIST_MAPPINGS: lambda asked: {
                "EventSourceMappings": [mapping()]
                if "FunctionName" in asked
                else [mapping(), mapping(UUID="2", FunctionArn="arn:aws:x:function:other")]
            }
        },
        4,
        "queue orders is consumed by function other as well",
    ),
    (
        {"sqs:GetQueueUrl": Error("QueueDoesNotExist")},
        4,
        "queue orders of the event source mapping is not there any more",
    ),
    (
        {"sqs:GetQueueAttributes": Error("AccessDenied", "no", 403)},
        4,
        "Allow sqs:GetQueueAttributes",
    ),
    (
        {"dynamodb:DescribeTable": Error("ResourceNotFoundException")},
        2,
        '[[table]] name: there is no table "shop-orders"',
    ),
    (
        {
            "dynamodb:DescribeTable": table(
                KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            )
        },
        2,
        "has the key pk (S), the configuration says id (S)",
    ),
]


async def test_what_is_not_ready(tmp_path: Path) -> None:
    async with _looking(tmp_path) as find:
        for answers, code, said in _NOT_READY:
            with pytest.raises(OnceproofError) as caught:
                await find(answers)
            assert said in str(caught.value)
            assert caught.value.exit_code == code, said
            assert "hidden" not in str(caught.value)  # values of the function's variables


@contextmanager
def _account(answers: dict[str, Script]) -> Iterator[tuple[str, SimulatedAws]]:
    """The simulated endpoint in a thread of its own, for the command line in this one."""
    ready, done = threading.Event(), threading.Event()
    held: list[tuple[str, SimulatedAws]] = []

    async def serve() -> None:
        async with simulated_aws(answers) as served:
            held.append(served)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield held[0]
    finally:
        done.set()
        thread.join()


def _arguments(url: str) -> list[str]:
    return [
        *("run", "--target", "aws", "--function", FUNCTION, "--region", REGION),
        *("--endpoint-url", url, "--yes", "--orders", "4", "--copies", "2", "--poison", "0"),
    ]


def _flood(url: str, cwd: Path) -> Ended:
    return loadtest(*_arguments(url), cwd=cwd)


def test_copies_that_overlap_and_a_late_log_can_pass(tmp_path: Path) -> None:
    stack = SimulatedStack(late_polls=10)
    answers = stack.answers()
    read_log = stack.read_log
    throttled = [Error("ThrottlingException", "Rate exceeded"), Error("ThrottlingException")]

    def slow_log(asked: Any) -> Any:
        return throttled.pop() if throttled else read_log(asked)

    with _account({**answers, "logs:FilterLogEvents": slow_log}) as (url, _):
        ended = _flood(url, tmp_path)
    assert ended.code == 0, ended.said
    (run_dir,) = (tmp_path / "runs").iterdir()
    verdict, run = read_verdict(run_dir), load_run(run_dir)
    assert verdict.verdict is VerdictWord.PASS
    # 4 orders x 2 and a conflict, which is refused twice and dead-lettered.
    assert verdict.exposure.contended_orders == 4
    assert (verdict.counts.deliveries, verdict.counts.dead_lettered) == (10, 1)
    assert verdict.counts.accepted_writes == 4
    assert Observation.DELIVERIES not in run.not_observable
    assert "GB-seconds" in ended.said
    assert (stack.items, stack.dead) == ({}, [])


def test_a_log_that_may_not_be_read_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    denied = Error("AccessDeniedException", "not authorized to perform: logs:FilterLogEvents", 400)
    with _account({**SimulatedStack().answers(), "logs:FilterLogEvents": denied}) as (url, aws):
        ended = _flood(url, tmp_path)
    assert ended.code == 4
    assert "Allow logs:FilterLogEvents" in ended.said
    assert "sqs:SendMessageBatch" not in aws.asked
    assert not (tmp_path / "runs").exists()


def test_items_that_are_there_already_are_not_taken_for_the_runs_own(tmp_path: Path) -> None:
    stack = SimulatedStack()
    taken = {"id": {"S": "1"}, "quantity": {"N": "1"}}
    there = {"Responses": {"shop-orders": [taken]}}
    with _account({**stack.answers(), "dynamodb:BatchGetItem": there}) as (url, aws):
        ended = _flood(url, tmp_path)
    assert ended.code == 2
    assert "table shop-orders has 1 item under the order ids of the plan already" in ended.said
    assert not {"sqs:SendMessageBatch", "dynamodb:BatchWriteItem"} & set(aws.asked)


def test_tags_that_may_not_be_read_are_no_proof_of_ownership(tmp_path: Path) -> None:
    denied = Error("AccessDeniedException", "no", 403)
    with _account({**SimulatedStack().answers(), TAGS: denied}) as (url, aws):
        ended = _flood(url, tmp_path)
    assert ended.code == 4
    assert "Allow lambda:ListTags" in ended.said
    assert "sqs:SendMessageBatch" not in aws.asked


def test_a_token_that_expires_during_the_run_is_no_proof_that_all_is_gone(tmp_path: Path) -> None:
    stack = SimulatedStack()
    answers = stack.answers()
    expired = Error("ExpiredToken", "The security token included in the request is expired", 403)

    def until_sent(action: str) -> Any:
        script: Any = answers[action]
        return lambda asked: expired if stack.log else script(asked)

    names = ("sqs:GetQueueAttributes", "dynamodb:BatchGetItem", "dynamodb:GetRecords")
    late = {name: until_sent(name) for name in names}
    with _account({**answers, **late}) as (url, _):
        ended = _flood(url, tmp_path)
    assert ended.code == 4
    assert "the AWS session token has expired" in ended.said
    assert "items of this run may be left" in ended.said
    assert "loadtest clean --run" in ended.said
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert load_run(run_dir).error is not None
    assert stack.items


def test_a_message_that_the_queue_never_gives_back(tmp_path: Path) -> None:
    stack = SimulatedStack()
    answers = stack.answers()

    def one_in_flight(asked: Any) -> Any:
        answer: Any = stack.attributes(asked)
        if stack.log and not asked["QueueUrl"].endswith("-dlq"):
            answer["Attributes"]["ApproximateNumberOfMessagesNotVisible"] = "1"
        return answer

    (tmp_path / "loadtest.toml").write_text("[aws]\nmax_seconds = 2.0\n")
    with _account({**answers, "sqs:GetQueueAttributes": one_in_flight}) as (url, _):
        ended = _flood(url, tmp_path)
    assert ended.code == 3, ended.said
    (run_dir,) = (tmp_path / "runs").iterdir()
    verdict, run = read_verdict(run_dir), load_run(run_dir)
    assert {"drained", "observed"} <= {rule.name for rule in verdict.rules if not rule.passed}
    assert "The queue did not run empty" in run.not_observable[Observation.ENDS]
    assert "[aws] max_seconds (2 s) was reached" in run.left_over
    assert "are in flight or delayed and cannot be deleted now" in ended.said


def test_an_interrupted_run_cleans_up_and_says_so(tmp_path: Path) -> None:
    stack = SimulatedStack()
    answers = stack.answers()
    polled = threading.Event()

    def one_in_flight(asked: Any) -> Any:
        answer: Any = stack.attributes(asked)
        if stack.log and not asked["QueueUrl"].endswith("-dlq"):
            answer["Attributes"]["ApproximateNumberOfMessagesNotVisible"] = "1"
            polled.set()
        return answer

    with (
        _account({**answers, "sqs:GetQueueAttributes": one_in_flight}) as (url, _),
        started(*_arguments(url), cwd=tmp_path) as process,
    ):
        assert polled.wait(60)
        for _ in range(2):  # the second one does not wait for what is under way
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3, out + err
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert load_run(run_dir).status is RunStatus.INTERRUPTED
    assert stack.items == {}
    assert "messages in queue orders of this run may be left" in " ".join(err.split())
