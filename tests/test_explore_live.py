"""Exploring real handlers: real processes, the real store, judged by the checks of a flood."""

from __future__ import annotations

import asyncio
import itertools
import json
import textwrap
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from analysis.errors import HandlerError
from analysis.findings import FindingKind
from analysis.schema import EffectInfo, TableInfo, TableRole
from consumer import aws_wire
from consumer.clock import HostClock
from consumer.environment import HandlerSpec
from consumer.explore_environment import Ended, Start, Zygote, next_step
from consumer.gate import Door, Gate, Told, WireCall
from consumer.processes import Processes
from consumer.runtime_api import Job
from loadtest.config import Settings, settings_of
from loadtest.explore.command import conditions_that_cannot_fail
from loadtest.explore.ladder import Rung
from loadtest.explore.model import Choice, Fault
from loadtest.explore.oracles import Known, RealStore
from loadtest.explore.requests import Reader, outline, placed
from loadtest.explore.session import SAMPLED_DEPTH, Explored, Session, Time
from loadtest.mutants import settings_for
from loadtest.planted import BASE, PLANTED
from tests.cli import processes_of
from tests.gateway_lab import client

READS, WRITES = "dynamodb:GetItem", "dynamodb:PutItem"
EVENT = json.dumps({"Records": [{"messageId": "m", "body": '{"id": "a", "quantity": 2}'}]})
TIME_S = 1_767_225_600.0
ANSWER = Told(200, {"Content-Type": "application/x-amz-json-1.0"}, b"{}")

HANDLERS = {
    "syntax": "def handler(event, context) return 1",
    "raises": "raise ValueError('no settings')\n",
    "nothing": "",
    "exits": "import os; os._exit(7)\n",
    "threads": """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        def handler(event, context): pass
        """,
    "chance": """
        import os, random, secrets, time, uuid
        from random import Random
        from time import sleep
        mine = Random()
        def handler(event, context):
            before = time.time()
            sleep(90)
            return {
                "chance": [str(uuid.uuid4()), secrets.token_hex(8), os.urandom(4).hex(),
                           random.random(), mine.random()],
                "uuid1": str(uuid.uuid1()),
                "times": [before, time.time()],
                "left_ms": context.get_remaining_time_in_millis(),
                "request": context.aws_request_id,
            }
        """,
    "dies": """
        import os, signal
        def handler(event, context): os.kill(os.getpid(), signal.SIGKILL)
        """,
    "kills_all": """
        import os, signal
        def handler(event, context): os.kill(os.getppid(), signal.SIGKILL)
        """,
    "calls": """
        import boto3
        db = boto3.client("dynamodb")
        def handler(event, context):
            for n in range(2):
                db.put_item(TableName="orders", Item={"id": {"S": str(n)}})
            return "done"
        """,
    "group": """
        import os
        def handler(event, context): return [os.getpgid(0), os.getppid()]
        """,
    "idle": "def handler(event, context): return {}",
    "at_import": """
        import json, os, boto3
        from uuid import uuid4
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        table.get_item(Key={"id": "settings"})
        owner = uuid4()
        def handler(event, context):
            order = json.loads(event["Records"][0]["body"])
            try:
                table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
            except table.meta.client.exceptions.ConditionalCheckFailedException:
                stored = table.get_item(Key={"id": order["id"]}, ConsistentRead=True)["Item"]
                if stored != order:
                    raise ValueError("other details")
        """,
    "parallel": """
        import json, os, boto3
        from concurrent.futures import ThreadPoolExecutor
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        def store(order):
            try:
                table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
            except table.meta.client.exceptions.ConditionalCheckFailedException:
                pass
        def seen(order):
            return "Item" in table.get_item(Key={"id": order["id"]}, ConsistentRead=True)
        def both(event):
            order = json.loads(event["Records"][0]["body"])
            with ThreadPoolExecutor(2) as pool:
                pool.submit(store, order)
                return pool.submit(seen, order).result()
        def handler(event, context):
            if both(event):
                raise ValueError("somebody else is at it")
        def correct(event, context):
            both(event)
        """,
    "threads_that_work": """
        import boto3, hashlib
        from concurrent.futures import ThreadPoolExecutor
        db = boto3.client("dynamodb")
        def work(thread):
            for call in range(2):
                for _ in range(4000 * thread):
                    hashlib.sha256(b"").digest()
                db.put_item(TableName="orders", Item={"id": {"S": f"{thread}-{call}"}})
        def handler(event, context):
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(work, range(3)))
        """,
    "by_process": """
        import json, os, boto3
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        def handler(event, context):
            order = json.loads(event["Records"][0]["body"])
            table.get_item(Key={"id": order["id"]}, ConsistentRead=True)
            table.put_item(Item=order | {"process": os.getpid()})
        """,
    "by_process_right": """
        import json, os, boto3
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        def handler(event, context):
            order = json.loads(event["Records"][0]["body"])
            key = {"id": order["id"]}
            mine = order | {"process": os.getpid()}
            if not table.get_item(Key=key, ConsistentRead=True).get("Item"):
                try:
                    table.put_item(Item=mine, ConditionExpression="attribute_not_exists(id)")
                except table.meta.client.exceptions.ConditionalCheckFailedException:
                    pass
        """,
    "polls": """
        import json, os, boto3
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        def handler(event, context):
            order = json.loads(event["Records"][0]["body"])
            try:
                table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
            except table.meta.client.exceptions.ConditionalCheckFailedException:
                return
            for _ in range(45):
                table.get_item(Key={"id": order["id"]}, ConsistentRead=True)
        """,
    "wild": """
        import json, os, boto3
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        def handler(event, context):
            order = json.loads(event["Records"][0]["body"])
            with open(__file__ + ".runs", "a") as runs:
                runs.write("x")
            for _ in range(os.path.getsize(__file__ + ".runs") % 4):
                table.get_item(Key={"id": order["id"]}, ConsistentRead=True)
            try:
                table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
            except table.meta.client.exceptions.ConditionalCheckFailedException:
                pass
        """,
    "foreign_id": """
        import json, os, boto3
        table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
        def handler(event, context):
            order = json.loads(event["Records"][0]["body"])
            with open("/proc/sys/kernel/random/uuid") as source:
                order["attempt"] = source.read().strip()
            try:
                table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
            except table.meta.client.exceptions.ConditionalCheckFailedException:
                pass
        """,
}


def code(directory: Path, name: str) -> Path:
    (directory / "code").mkdir(exist_ok=True)
    (directory / "code" / f"{name}.py").write_text(textwrap.dedent(HANDLERS[name]).strip() + "\n")
    return directory / "code"


# --- the process that runs are forked from ----------------------------------------------


class Forks:
    """One zygote and one door."""

    def __init__(self, zygote: Zygote, door: Door, port: int) -> None:
        self.zygote = zygote
        self.door = door
        self.port = port

    async def run(self, seed: str = "s", kill_at: int | None = None) -> Ended:
        """One run whose calls are all answered with an empty object.

        :param kill_at: the number of the call at which it is killed.
        """
        gate = self.door.gate = Gate()
        job = Job(
            str(uuid.uuid5(uuid.NAMESPACE_URL, seed)), EVENT.encode(), int(TIME_S + 300) * 1000
        )
        fork = self.zygote.fork(Start(job, self.port, seed, TIME_S))
        calls = 0
        while isinstance(step := await next_step(gate, fork, 20), tuple):
            calls += 1
            if calls == kill_at:
                await fork.kill()
                continue
            (asked,) = step
            gate.let_go(asked, ANSWER)
        gate.close()
        assert step is not None, "it neither called nor ended"
        return step


@asynccontextmanager
async def forks(directory: Path, name: str) -> AsyncIterator[Forks]:
    door = Door()
    port = await door.open()
    spec = HandlerSpec(code(directory, name), f"{name}.handler", 20, "us-east-1")
    async with Processes() as processes:
        url = f"http://127.0.0.1:{port}"
        zygote = Zygote(spec, directory=directory, processes=processes, door_url=url)
        try:
            await zygote.open()
            yield Forks(zygote, door, port)
        finally:
            if door.gate is not None:
                door.gate.close()  # a test that has failed leaves calls there
            await zygote.close()
            await door.close()
    assert processes_of(directory) == []


def returned(ended: Ended) -> Any:
    assert ended.status == 0
    assert ended.reply is not None
    assert ended.reply.error_type is None, ended.reply.error_message
    return json.loads(ended.reply.body)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "Runtime.ImportModuleError: Unable to import module 'missing'"),
        ("syntax", "Runtime.UserCodeSyntaxError"),
        ("raises", "ValueError: no settings"),
        ("nothing", "Handler 'handler' missing on module 'nothing'"),
        ("exits", "the process ended (7)"),
        ("threads", "its import starts 1 thread(s)"),
    ],
)
async def test_a_handler_that_cannot_be_imported_is_an_error_with_its_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    HANDLERS.setdefault("missing", "import package_that_is_not_there\n")
    with pytest.raises(HandlerError) as error:
        async with forks(tmp_path, name):
            pass
    assert reason in str(error.value)
    assert "Check --code" in str(error.value)


async def test_chance_and_clock_of_a_run_are_given(tmp_path: Path) -> None:
    async with forks(tmp_path, "chance") as one:
        first, again, other = [returned(await one.run(seed)) for seed in ("s", "s", "t")]
        pinned = one.zygote.pinned_clock
    for first_draw, second_draw in zip(first["chance"], other["chance"], strict=True):
        assert first_draw != second_draw
    assert first["chance"] == again["chance"]
    assert first["request"] == str(uuid.uuid5(uuid.NAMESPACE_URL, "s"))
    assert pinned, "the extra clock is part of what tests need"
    assert first == again
    assert first["times"] == [TIME_S, TIME_S + 90], "sleeping moves a clock that stands"
    assert first["left_ms"] == 210_000


async def test_a_run_dies_alone(tmp_path: Path) -> None:
    async with forks(tmp_path, "calls") as one:
        assert await one.run(kill_at=2) == Ended(-9, None)
        assert returned(await one.run()) == "done"


async def test_a_run_that_ends_itself_is_seen_and_the_next_one_runs(tmp_path: Path) -> None:
    async with forks(tmp_path, "dies") as one:
        assert [await one.run(), await one.run()] == [Ended(-9, None)] * 2


async def test_a_run_is_in_the_group_that_is_ended_when_the_tester_is_gone(tmp_path: Path) -> None:
    async with forks(tmp_path, "group") as one:
        group, zygote = returned(await one.run())
    assert group == zygote


async def test_when_the_process_of_the_import_is_gone_no_run_starts(tmp_path: Path) -> None:
    async with forks(tmp_path, "kills_all") as one:
        await one.run()
        with pytest.raises(HandlerError, match="from which its runs are forked has ended"):
            await one.run()


async def test_all_calls_that_threads_make_are_held_before_one_is_let_go(tmp_path: Path) -> None:
    async with forks(tmp_path, "threads_that_work") as one:
        for chosen in range(3):
            gate = one.door.gate = Gate()
            job = Job(str(uuid.uuid4()), EVENT.encode(), int(TIME_S + 300) * 1000)
            fork = one.zygote.fork(Start(job, one.port, "s", TIME_S))
            due = {0: 0, 1: 0, 2: 0}  # the next call of each thread
            while isinstance(step := await next_step(gate, fork, 20), tuple):
                asked = {json.loads(call.body)["Item"]["id"]["S"]: call for call in step}
                assert sorted(asked) == [f"{thread}-{call}" for thread, call in due.items()]
                name = sorted(asked)[chosen % len(asked)]
                thread, call = map(int, name.split("-"))
                due[thread] = call + 1
                if due[thread] == 2:
                    del due[thread]
                gate.let_go(asked[name], ANSWER)
            gate.close()
            assert isinstance(step, Ended)
            assert returned(step) is None


async def test_a_call_that_is_made_once_more_is_no_parallel_call() -> None:
    gate = Gate()

    def call(sdk_id: str) -> WireCall:
        subject = aws_wire.subject("POST", "/", {"amz-sdk-invocation-id": sdk_id}, b"")
        return WireCall("POST", "/", {}, b"", subject)

    held = asyncio.create_task(gate.hold(call("one")))
    await gate.arrival()
    with pytest.raises(ConnectionError):
        await gate.hold(call("one"))
    assert gate.given_up
    with pytest.raises(ConnectionError):
        await held

    gate = Gate()
    one, other = call("one"), call("other")
    first, second = [asyncio.create_task(gate.hold(asked)) for asked in (one, other)]
    await gate.arrival()
    await asyncio.sleep(0)
    assert list(gate.calls) == [one, other]
    told = Told(200, {}, b"")
    gate.let_go(other, told)
    assert await second is told
    assert list(gate.calls) == [one]
    assert gate.arrival().done()
    gate.close()
    with pytest.raises(ConnectionError):
        await first


# --- the store --------------------------------------------------------------------------


async def test_the_store_answers_for_the_items_it_is_given(emulator_url: str) -> None:
    table = TableInfo(f"explored-{uuid.uuid4().hex}", TableRole.ORDERS, "id")
    known = Known(Reader([table], ()))
    store = RealStore(emulator_url, known, [table], "us-east-1", None)

    def asked(operation: str, **members: Any) -> Any:
        headers = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        body = json.dumps({"TableName": table.name, **members}).encode()
        subject = aws_wire.subject("POST", "/", headers, body)
        return known.request(WireCall("POST", "/", headers, body, subject))

    try:
        await store._ask(
            "CreateTable",
            {
                "TableName": table.name,
                "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
        assert await store.items() == ()
        insert = asked(
            "PutItem", Item={"id": {"S": "a"}}, ConditionExpression="attribute_not_exists(id)"
        )
        item = next(iter(insert.writes))
        accepted, there = await store.apply((), insert)
        assert (accepted.wrote, there) == (True, ((item, '{"id":{"S":"a"}}'),))
        rejected, unchanged = await store.apply(there, insert)
        assert (rejected.wrote, unchanged) == (False, there)
        assert "ConditionalCheckFailed" in rejected.text
        assert (await store.apply((), insert))[0] == accepted, "the item is gone again"

        update = asked(
            "UpdateItem",
            Key={"id": {"S": "a"}},
            UpdateExpression="ADD n :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )
        _, added = await store.apply(there, update)
        assert added == ((item, '{"id":{"S":"a"},"n":{"N":"1"}}'),)

        put = {"Put": {"TableName": table.name, "Item": {"id": {"S": "a"}}}}
        transaction = asked("TransactWriteItems", TransactItems=[put], ClientRequestToken="t")
        made, after = await store.apply((), transaction)
        assert made.wrote
        assert dict(after)[item] == '{"id":{"S":"a"}}'
        token = tuple(one for one in after if one[0] != item)
        again, still = await store.apply(token, transaction)
        assert (again.text, again.wrote) == (made.text, False), "its token was used"
        assert still == token
        assert (await store.apply((), transaction)) == (made, after), "here it was not"

        everything = asked("Scan")
        assert everything.everything
        found, _ = await store.apply(added, everything)
        assert '"Count": 1' in found.text
        assert (await store.apply((), everything))[0] != found
    finally:
        await store.close()
        async with aiohttp.ClientSession() as session:
            headers = {"X-Amz-Target": "DynamoDB_20120810.DeleteTable"}
            body = json.dumps({"TableName": table.name})
            async with session.post(emulator_url, headers=headers, data=body):
                pass


async def test_effects_are_counted_and_what_a_fifo_queue_drops_is_not(emulator_url: str) -> None:
    sqs = client("sqs", emulator_url)
    urls = {}
    for name in (f"plain-{uuid.uuid4().hex}", f"kept-{uuid.uuid4().hex}.fifo"):
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        urls[name] = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    effects = [EffectInfo("sqs", "SendMessage", name, "id", name) for name in urls]
    known = Known(Reader((), effects))
    store = RealStore(emulator_url, known, (), "us-east-1", None)
    counts = []
    try:
        for name, url in urls.items():
            members = {"QueueUrl": url, "MessageBody": '{"id": "a"}'}
            if name.endswith(".fifo"):
                members |= {"MessageDeduplicationId": "one", "MessageGroupId": "g"}
            headers = {
                "X-Amz-Target": "AmazonSQS.SendMessage",
                "Content-Type": "application/x-amz-json-1.0",
                "Authorization": "Credential=x/20260101/eu-west-1/sqs/aws4_request",
            }
            body = json.dumps(members).encode()
            subject = aws_wire.subject("POST", "/", headers, body)
            call = known.request(WireCall("POST", "/", headers, body, subject))
            first, once = await store.apply((), call)
            second, twice = await store.apply(once, call)
            assert first.text == second.text, "asked once, and remembered"
            counts.append([dict(items)[f"effect:{name}:a"] for items in (once, twice)])
            assert (await store.apply((), call)) == (first, once)
    finally:
        await store.close()
        for url in urls.values():
            sqs.delete_queue(QueueUrl=url)
        sqs.close()
    assert counts == [["1", "2"], ["1", "1"]]


def test_an_outline_has_all_but_the_values() -> None:
    put = 'dynamodb:PutItem {"TableName": "t", "Item": {"n": {"N": "1"}}%s}'
    other, table = put.replace('"1"', '"2"'), put.replace('"t"', '"u"')
    assert outline(put % "") == outline(other % "")
    assert outline(put % "") != outline(table % "")
    assert outline(put % "") != outline(put % ', "ConditionExpression": "attribute_exists(n)"')
    assert outline('{"took":1}') == outline('{"took":2}') != outline('{"error":2}')
    assert outline("sns:Publish a=1") == outline("sns:Publish a=2") != outline("ValueError: no")


def test_ids_and_times_are_compared_by_place() -> None:
    one = "7f5c3c4e-93e4-4c64-8a0a-3a9f2b1c0d11 1767225600 2026-01-01T00:00:00Z order-1"
    two = "0a5c3c4e-93e4-4c64-8a0a-3a9f2b1c0d12 1767225733 2026-01-01T00:02:13Z order-2"
    assert placed(one, {"order-1": "<order>"}) == placed(two, {"order-2": "<order>"})
    assert placed(one) != placed(two)
    assert placed('{"N": "12"}') == '{"N": "12"}'


# --- exploring --------------------------------------------------------------------------


def planted(name: str, function: str = "handler") -> Settings:
    bug = next(bug for bug in PLANTED if bug.name == name)
    return settings_for(bug, function, 1, faults=False)


def own(directory: Path, name: str, function: str = "handler") -> Settings:
    handler = {"code": str(code(directory, name)), "handler": f"{name}.{function}", "timeout": 5}
    return settings_of({"handler": handler, "order": BASE["order"]}, directory)


@asynccontextmanager
async def session(
    settings: Settings, directory: Path, url: str, *, copies: int = 3, **more: Any
) -> AsyncIterator[Session]:
    opened = Session(
        settings,
        directory / "explored",
        run_id=f"x{uuid.uuid4().hex[:8]}",
        endpoint_url=url,
        copies=copies,
        **{"orders": 1, "conflict": False, "poison": False, "batch": 1, "seed": 1, **more},
        command="loadtest explore",
        clock=HostClock(),
        phase=lambda text: None,
        warn=lambda text: None,
    )
    (directory / "explored").mkdir(parents=True)
    async with opened as inside:
        yield inside


def kinds(explored: Explored) -> set[FindingKind]:
    return {finding.kind for one in explored.judged for finding in one.findings}


async def test_read_then_write_with_two_copies_is_found_and_confirmed(
    tmp_path: Path, emulator_url: str
) -> None:
    async with session(planted("read_then_write"), tmp_path, emulator_url) as one:
        alone = await one.explore(Rung(1, 0))
        found = await one.explore(Rung(2, 0))
        assert found.failure is not None
        race = found.failure.schedule
        in_turn = sorted(race, key=lambda choice: choice.copy)
        good = [choice for choice in in_turn if choice.copy == 0 or choice.call != race[2].call]
        together = await one.play([tuple(good), race, tuple(in_turn)], 2)
        played = one.effort().live_schedules
    assert alone.is_clean
    assert alone.covered is not None
    assert alone.covered.interleavings == 1
    assert not found.is_clean
    assert found.effort.live_schedules <= 3 + alone.effort.live_schedules
    assert [finding.kind for finding in found.failure.findings] == [FindingKind.OVERWRITE]
    calls = [choice.call.partition(" ")[0] for choice in race if choice.call]
    assert calls == [READS, READS, WRITES, WRITES]
    assert [bool(each.findings) for each in together] == [False, True, False]
    assert [each.not_followed is None for each in together] == [True, True, False]
    assert played == found.effort.live_schedules + 4, "what is not followed is tried alone, too"
    assert together[2].not_followed is not None
    assert "copy 2, receive 1" in together[2].not_followed
    assert processes_of(tmp_path) == []


async def test_the_reference_handler_is_clean(tmp_path: Path, emulator_url: str) -> None:
    settings = settings_of({}, tmp_path)
    async with session(settings, tmp_path, emulator_url, conflict=True) as one:
        two = await one.explore(Rung(2, 1, (Fault.LOST_REPLY,)))
        three = await one.explore(Rung(3, 0))
    assert two.is_clean, (two.reason, kinds(two), [each.not_followed for each in two.judged])
    assert three.is_clean, (three.reason, kinds(three))
    assert two.covered is not None
    assert two.covered.interleavings > 5
    assert two.notes == ()


async def test_a_condition_that_cannot_fail_is_told(tmp_path: Path, emulator_url: str) -> None:
    told = {}
    for function in ("handler", "correct"):
        settings = planted("wrong_attribute", function)
        async with session(settings, tmp_path / function, emulator_url) as one:
            explored = await one.explore(Rung(2, 0))
        told[function] = conditions_that_cannot_fail(explored.judged)
    (text,) = told["handler"]
    assert text.startswith("condition attribute_not_exists(paid_at): cannot fail: no item of ")
    assert told["correct"] == []


async def test_a_claim_that_a_crash_leaves_behind_is_found_with_one_copy(
    tmp_path: Path, emulator_url: str
) -> None:
    rung = Rung(1, 1, (Fault.CRASH_AFTER,))
    async with session(planted("claim_left"), tmp_path, emulator_url) as one:
        found = await one.explore(rung)
    assert FindingKind.STUCK_MESSAGE in kinds(found)
    assert found.failure is not None
    first = found.failure.schedule[0]
    assert (first.copy, first.receive, first.fault) == (0, 1, Fault.CRASH_AFTER)
    (claim, *_) = [one for one in found.failure.findings if one.kind is FindingKind.STUCK_MESSAGE]
    assert [fault.name for fault in claim.faults] == ["crash-after-call"]


async def test_a_lease_is_taken_over_by_the_clock_of_a_later_epoch(
    tmp_path: Path, emulator_url: str
) -> None:
    rung = Rung(1, 1, (Fault.CRASH_AFTER, Fault.TIMEOUT))
    async with session(planted("claim_left", "correct"), tmp_path, emulator_url) as one:
        explored = await one.explore(rung)
    assert explored.is_clean, (explored.reason, kinds(explored))


@pytest.mark.parametrize(
    ("name", "fault", "kind"),
    [
        ("effect_first", Fault.CRASH_AFTER, FindingKind.DUPLICATE_EFFECT),
        ("effect_lost", Fault.CRASH_AFTER, FindingKind.MISSING_EFFECT),
        ("own_write_is_foreign", Fault.LOST_REPLY, FindingKind.SELF_CONFLICT),
        ("read_then_write", Fault.REDELIVER, FindingKind.OVERWRITE),
        ("cancelled_is_duplicate", Fault.TRANSACTION_CONFLICT, FindingKind.LOST_ORDER),
    ],
)
async def test_one_fault_and_one_copy_show_it(
    tmp_path: Path, emulator_url: str, name: str, fault: Fault, kind: FindingKind
) -> None:
    async with session(planted(name), tmp_path, emulator_url) as one:
        without = await one.explore(Rung(1, 0))
        found = await one.explore(Rung(1, 1, (fault,)))
    assert without.is_clean
    assert kind in kinds(found)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("batch_raises", FindingKind.BATCH_MISREPORT),
        ("decode_before_loop", FindingKind.DEAD_LETTERED_ORDER),
    ],
)
async def test_one_event_of_two_messages_shows_it(
    tmp_path: Path, emulator_url: str, name: str, kind: FindingKind
) -> None:
    explored = {}
    for function, batch in (("handler", 1), ("handler", 2), ("correct", 2)):
        directory = tmp_path / f"{function}-{batch}"
        directory.mkdir()
        world: dict[str, Any] = {"copies": 2, "poison": True, "batch": batch}
        async with session(planted(name, function), directory, emulator_url, **world) as one:
            explored[function, batch] = await one.explore(Rung(2, 0))
    assert explored["handler", 1].is_clean, kinds(explored["handler", 1])
    assert kind in kinds(explored["handler", 2])
    assert explored["correct", 2].is_clean, kinds(explored["correct", 2])


async def test_calls_and_ids_of_the_import_are_not_taken_for_those_of_runs(
    tmp_path: Path, emulator_url: str
) -> None:
    settings = own(tmp_path, "at_import")
    async with session(settings, tmp_path, emulator_url) as one:
        explored = await one.explore(Rung(2, 0))
    assert explored.is_clean, (explored.reason, kinds(explored))
    assert ["draws random values" in note for note in explored.notes] == [True]


async def test_calls_of_one_run_at_the_same_time_are_let_go_in_every_order(
    tmp_path: Path, emulator_url: str
) -> None:
    wrong, right = own(tmp_path, "parallel"), own(tmp_path, "parallel", "correct")
    async with session(wrong, tmp_path, emulator_url, copies=1) as one:
        found = await one.explore(Rung(1, 0))
    assert found.reason is None
    assert kinds(found) == {FindingKind.DUPLICATE_FAILED}
    assert found.failure is not None
    first, second = [choice.call or "" for choice in found.failure.schedule[:2]]
    assert first.startswith(WRITES), "only when it sees its own write it fails"
    assert second.startswith(READS)
    (tmp_path / "right").mkdir()
    async with session(right, tmp_path / "right", emulator_url, copies=1) as one:
        clean = await one.explore(Rung(1, 1, (Fault.CRASH_AFTER, Fault.LOST_REPLY)))
    assert clean.is_clean, (clean.reason, kinds(clean))
    assert clean.covered is not None
    assert clean.covered.interleavings > 2
    assert clean.notes == ()
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("idle", ("made no AWS call through the gateway",)),
    ],
)
async def test_what_cannot_be_explored_is_told_with_its_reason(
    tmp_path: Path, emulator_url: str, name: str, parts: tuple[str, ...]
) -> None:
    async with session(own(tmp_path, name), tmp_path, emulator_url, copies=2) as one:
        explored = await one.explore(Rung(2, 0))
    assert not explored.is_clean
    assert explored.reason is not None
    for part in parts:
        assert part in explored.reason


async def test_a_handler_that_varies_is_executed_again_and_again(
    tmp_path: Path, emulator_url: str
) -> None:
    async with session(own(tmp_path, "by_process_right"), tmp_path, emulator_url) as one:
        explored = await one.explore(Rung(2, 0))
        again = await one.explore(Rung(1, 0))
    assert explored.is_clean, (explored.reason, kinds(explored))
    assert explored.varies is not None
    for part in ("copy 1, receive 1: call 2 differs", "dynamodb:PutItem", '"process"'):
        assert part in explored.varies
    assert explored.covered is None
    assert explored.executed is not None
    assert explored.executed.executions == len(explored.judged) == 3
    assert any("could not be remembered" in note for note in explored.notes)
    assert again.is_clean
    assert again.executed is not None, "once it has varied, nothing is remembered any more"


async def test_a_handler_that_varies_too_much_gets_no_word(
    tmp_path: Path, emulator_url: str
) -> None:
    time = Time(sampling=lambda: True)
    async with session(own(tmp_path, "wild"), tmp_path, emulator_url) as one:
        explored = await one.explore(Rung(2, 0), time=time)
    assert not explored.is_clean
    assert explored.executed is not None
    assert explored.reason is not None
    told = "varies so much that a schedule could not be carried out again"
    if explored.executed.exhausted:
        told = "makes other calls each time: copy 1, receive 1: call "
    assert told in explored.reason


async def test_what_a_search_does_not_finish_is_sampled(tmp_path: Path, emulator_url: str) -> None:
    asked = itertools.count()
    time = Time(search=lambda ends: True, sampling=lambda: next(asked) > 30)
    async with session(planted("read_then_write"), tmp_path, emulator_url) as one:
        found = await one.explore(Rung(2, 0), time=time)
    right = planted("read_then_write", "correct")
    async with session(right, tmp_path / "right", emulator_url) as one:
        asked = itertools.count()
        clean = await one.explore(Rung(2, 0), time=time)
    assert found.sampled is not None
    assert found.sampled.executed.failed is not None
    assert kinds(found) == {FindingKind.OVERWRITE}
    assert clean.sampled is not None
    assert clean.sampled.executed.executions == 30
    assert clean.sampled.odds.depth == SAMPLED_DEPTH
    assert clean.unjudged == 0
    assert clean.failure is None
    assert not clean.is_clean, "a sample is no proof"


async def test_ids_from_elsewhere_are_compared_by_place(tmp_path: Path, emulator_url: str) -> None:
    async with session(own(tmp_path, "foreign_id"), tmp_path, emulator_url, copies=2) as one:
        explored = await one.explore(Rung(2, 0))
    assert explored.reason is None
    assert explored.is_clean, kinds(explored)
    assert any("differ from run to run" in note for note in explored.notes)


async def test_a_run_that_is_cut_is_told(tmp_path: Path, emulator_url: str) -> None:
    async with session(own(tmp_path, "polls"), tmp_path, emulator_url, copies=1) as one:
        explored = await one.explore(Rung(1, 0))
        (ended,) = explored.judged
        early = [c for c in ended.schedule if c.call is None or "PutItem" in c.call]
        (stray,) = await one.play([tuple(early[:2])], 1)
    assert explored.is_clean, (explored.reason, kinds(explored))
    assert any("had made 40 calls was ended there" in note for note in explored.notes)
    assert stray.not_followed is not None
    assert "expected its answer, got dynamodb:GetItem" in stray.not_followed


async def test_equal_tokens_of_two_explorations_are_two_transactions(
    tmp_path: Path, emulator_url: str
) -> None:
    for again in ("once", "twice"):
        settings = planted("counted_apart", "correct")
        async with session(settings, tmp_path / again, emulator_url) as one:
            explored = await one.explore(Rung(1, 0))
        assert explored.is_clean, (again, explored.reason, kinds(explored))


async def test_no_schedule_is_played_without_time(tmp_path: Path, emulator_url: str) -> None:
    settings = replace(settings_of({}, tmp_path))
    async with session(settings, tmp_path, emulator_url) as one:
        over = Time(lambda ends: True, lambda: True, lambda: True)
        explored = await one.explore(Rung(3, 1), time=over)
    assert not explored.is_clean
    assert explored.judged == ()


async def test_a_schedule_that_stops_half_way_is_not_judged_as_followed(
    tmp_path: Path, emulator_url: str
) -> None:
    async with session(planted("read_then_write"), tmp_path, emulator_url) as one:
        explored = await one.explore(Rung(1, 0))
        (whole,) = [each.schedule for each in explored.judged]
        (half,) = await one.play([whole[:1]], 1)
        (foreign,) = await one.play([(Choice(0, call="sns:Publish {}"), *whole[1:])], 1)
    assert half.not_followed is not None
    assert "no further step" in half.not_followed
    assert foreign.not_followed is not None
    assert "expected sns:Publish {}, got dynamodb:GetItem" in foreign.not_followed
