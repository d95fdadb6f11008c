"""How soon does each way find the same race, and how long does covering everything take?

    python -m benchmarks.explore [--seeds 5]

The race: two copies of one order and the planted bug ``read_then_write``, which reads and then
writes without a condition. Every way has the same handler, the same embedded AWS and the same
settings. Seconds are those after start-up, to the first finding that was met with the real
handler and the real store: medians over the seeds, with the lowest and the highest. Beside
explore stand:

* random: any run may go on at each step, evenly drawn; every schedule is carried out and judged;
* PCT (depth 2): only schedules whose ending looks suspicious are carried out and judged. Like
  random, it draws from states that are learned, with a session of its own for each seed;
* frontrun (``pip install frontrun==0.7.0``, not needed otherwise): the unmodified handler. Adapted:
  the copies are two threads of one process with one boto3 client, not two processes; the item is
  deleted before each execution; what must hold is written by hand (one copy is processed, the
  other a duplicate), not judged from evidence. Its own process is part of the start-up;
* a flood of 24 such pairs, to its verdict, and when the first finding was there in it.

interleave-test is a peer too, but its registry has no distribution that could be installed.

The twin is the same handler made correct. Of frontrun, ``holds`` is not that all was covered: it
bounds preemptions, and claims no more.

Then worlds that are covered. Goals: the race in 2 s with 3 live schedules at most, 3 copies of a
conditional put in 5 s, 4 copies of 4 calls with one fault in 60 s.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import boto3

from analysis.findings import Verdict
from analysis.store import finish_evidence, open_evidence
from analysis.verdict import judge
from consumer.clock import HostClock
from consumer.processes import Processes
from loadtest.config import Settings, load_settings, settings_of
from loadtest.emulator import Emulator
from loadtest.event_loop import run_in_loop
from loadtest.explore.execution import WorldExecution
from loadtest.explore.ladder import Rung
from loadtest.explore.memo import Representative
from loadtest.explore.model import Choice
from loadtest.explore.pct import sample
from loadtest.explore.session import Session
from loadtest.mutants import chosen, settings_for
from loadtest.planted import BASE
from loadtest.run import Stops, flood, new_run_dir, plan_of, run_info, write_run_info
from loadtest.terminal import Quiet

CLOCK = HostClock()
RACE, CLAIM_LEFT = (chosen([name])[0] for name in ("read_then_write", "claim_left"))
PAIR = Rung(2, 0)
PAIRS = replace(RACE, settings={"load": {"copies": 2, "conflicts": 0.0, "poison": 0.0}})
FRONTRUN_S = 60.0

FOUR_CALLS = """
import json, os, uuid
import boto3
from botocore.exceptions import ClientError

db = boto3.resource("dynamodb")
orders, totals = db.Table(os.environ["TABLE_NAME"]), db.Table(os.environ["TOTALS_TABLE"])

def handler(event, context):
    order = json.loads(event["Records"][0]["body"])
    key, me, new = {"id": order["id"]}, uuid.uuid4().hex, True
    condition = "attribute_not_exists(id)"
    found = orders.get_item(Key=key, ConsistentRead=True).get("Item", order)
    if found["quantity"] != order["quantity"]:
        raise ValueError("stored with other details")
    try:
        orders.put_item(Item=order | {"attempt": me}, ConditionExpression=condition,
                        ReturnValuesOnConditionCheckFailure="ALL_OLD")
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        new = error.response["Item"]["attempt"]["S"] == me  # an attempt whose reply was lost
    totals.update_item(Key=key, UpdateExpression="SET cents = :cents",
                       ExpressionAttributeValues={":cents": 250 * order["quantity"]})
    totals.get_item(Key=key, ConsistentRead=True)
    return {"processed": new, "duplicate": not new}
"""


@dataclass(frozen=True, slots=True)
class Took:
    seconds: float
    schedules: int  # orders of calls that were looked at, in memory or live
    live: int  # of these, carried out for real
    result: str
    states: int | None = None  # None: it knows none


@contextlib.asynccontextmanager
async def opened(settings: Settings, url: str, copies: int, seed: int) -> AsyncIterator[Session]:
    with tempfile.TemporaryDirectory(prefix="onceproof-") as directory:
        async with Session(
            settings,
            Path(directory),
            run_id=f"onceproof-{Path(directory).name.rpartition('-')[2]}",
            endpoint_url=url,
            copies=copies,
            orders=1,
            conflict=False,
            poison=False,
            batch=1,
            seed=seed,
            command="python -m benchmarks.explore",
            clock=CLOCK,
            phase=lambda text: None,
            warn=lambda text: None,
        ) as session:
            yield session


async def explored(settings: Settings, rung: Rung, url: str, seed: int) -> Took:
    async with opened(settings, url, rung.copies, seed) as session:
        cpu_s = time.process_time()
        found = await session.explore(rung)
        cpu_s = time.process_time() - cpu_s
    if found.covered is None:
        return Took(found.seconds, 0, found.effort.live_schedules, found.reason or "nothing")
    kinds = sorted({str(f.kind) for f in found.failure.findings}) if found.failure else []
    result = ", ".join(kinds) or ("all covered, clean" if found.is_clean else "not all covered")
    covered, effort = found.covered, found.effort
    result += f" ({effort.handler_runs} runs to learn, own CPU {cpu_s:.1f} s)"
    return Took(found.seconds, covered.interleavings, effort.live_schedules, result, covered.states)


async def drawn_evenly(settings: Settings, url: str, seed: int) -> Took:
    rng, played = random.Random(seed), 0
    async with opened(settings, url, PAIR.copies, seed) as session:
        began, world = time.monotonic(), session.world(PAIR)
        while True:
            state, schedule = world.initial(), list[Choice]()
            while choices := await world.choices(state):
                schedule.append(rng.choice(choices))
                state = await world.after(state, schedule[-1])
            (judged,) = await session.play([tuple(schedule)], PAIR.copies)
            played += 1
            if judged.findings:
                result = ", ".join({str(finding.kind) for finding in judged.findings})
                return Took(time.monotonic() - began, played, played, result)


async def drawn_by_pct(settings: Settings, url: str, seed: int) -> Took:
    async with opened(settings, url, PAIR.copies, seed) as session:
        began, world, kinds = time.monotonic(), session.world(PAIR), set[str]()

        async def begin() -> WorldExecution:
            return WorldExecution(world)

        async def fails(suspicious: Representative) -> bool:
            (judged,) = await session.play([suspicious.schedule], PAIR.copies)
            kinds.update(str(finding.kind) for finding in judged.findings)
            return bool(judged.findings)

        sampled = await sample(
            begin, seed=seed, depth=2, faults=0, kinds=0, out_of_time=lambda: False, judge=fails
        )
        seconds, live = time.monotonic() - began, session.effort().live_schedules
        return Took(seconds, sampled.executed.executions, live, ", ".join(kinds))


async def flooded(url: str, out: Path, seed: int) -> Took:
    settings = settings_for(PAIRS, "handler", seed)
    run_id, run_dir = new_run_dir(out, CLOCK)
    plan, reporter = plan_of(settings), Quiet()
    info = run_info(
        settings,
        plan,
        run_id=run_id,
        endpoint_url=url,
        created_at=CLOCK.now_ns(),
        command="python -m benchmarks.explore",
    )
    write_run_info(run_dir, info)
    info = await flood(settings, plan, info, run_dir, url, CLOCK, reporter, Stops(reporter))
    write_run_info(run_dir, info)
    finish_evidence(run_dir)
    verdict = judge(run_dir)
    began_ns = info.started_at or info.created_at
    seconds = (CLOCK.now_ns() - began_ns) / 1e9
    result = _first_finding(run_dir, verdict, began_ns)
    return Took(seconds, verdict.counts.messages // 2, verdict.counts.messages // 2, result)


def _first_finding(run_dir: Path, verdict: Verdict, began_ns: int) -> str:
    """It is there when the last of its invocations has ended."""
    with open_evidence(run_dir) as evidence:
        moments = [
            evidence.scalar(
                "SELECT max(ended_at) FROM invocations WHERE list_contains(?, invocation_id)",
                [list(finding.invocation_ids)],
            )
            for check in verdict.checks
            for finding in check.findings
        ]
        if not moments:
            return "not found"
        delivered = evidence.scalar(
            "SELECT count(DISTINCT message_no) FROM deliveries WHERE received_at <= ?",
            [min(moments)],
        )
    after_s = (min(moments) - began_ns) / 1e9
    return f"first after {after_s:.2f} s, {delivered} of {verdict.counts.messages} messages"


def by_frontrun(strategy: str, function: str, url: str, seed: int) -> Took:
    """In a process of its own below frontrun's launcher, without which it refuses to work."""
    asked = [sys.executable, "-m", "benchmarks.explore", "--frontrun", strategy, function]
    variables = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "onceproof",
        "AWS_SECRET_ACCESS_KEY": "onceproof",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TABLE_NAME": f"frontrun-{strategy}-{function}-{seed}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "frontrun.cli", *asked, "--seeds", str(seed)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Took(0.0, 0, 0, f"failed: {last}")
    return Took(**json.loads(done.stdout.splitlines()[-1]))


def below_frontrun(strategy: str, function: str, seed: int) -> Took:
    frontrun = importlib.import_module("frontrun")
    handle = getattr(importlib.import_module(f"consumer.planted.{RACE.name}"), function)
    name, dynamodb = os.environ["TABLE_NAME"], boto3.client("dynamodb")
    dynamodb.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    event = {"Records": [{"body": json.dumps({"id": "one", "quantity": 1})}]}

    def no_item() -> list[dict[str, Any]]:
        dynamodb.delete_item(TableName=name, Key={"id": {"S": "one"}})
        return []

    began = time.monotonic()
    found = frontrun.explore(
        setup=no_item,
        workers=lambda answers: answers.append(handle(event, None)),
        count=2,
        invariant=lambda answers: [a["processed"] for a in answers].count(True) == 1,
        strategy=strategy,
        reproduce_on_failure=0,
        total_timeout=FRONTRUN_S,
        **({"seed": seed} if strategy == "random" else {}),
    )
    result = {
        False: "both processed",
        True: "holds with at most 2 preemptions",
        None: f"inconclusive: {found.inconclusive_reason}",
    }[found.property_holds]
    return Took(time.monotonic() - began, found.num_explored, found.num_explored, result)


def tell(name: str, took: list[Took]) -> None:
    seconds = [one.seconds for one in took]
    spread = f"({min(seconds):.2f} to {max(seconds):.2f})" if len(took) > 1 else ""
    schedules, live = (
        int(statistics.median_high(getattr(one, what) for one in took))
        for what in ("schedules", "live")
    )
    states = "-" if took[0].states is None else f"{took[0].states:,}"
    print(
        f"{name:38} {statistics.median(seconds):6.2f} {spread:16} {states:>7} {schedules:>23,} "
        f"{live:>5} {took[-1].result}",
        flush=True,
    )


async def side_by_side(url: str, out: Path, seeds: range) -> None:
    race = {seed: settings_for(RACE, "handler", seed) for seed in seeds}
    tell("race: explore", [await explored(race[s], PAIR, url, s) for s in seeds])
    tell("race: random at the gate", [await drawn_evenly(race[s], url, s) for s in seeds])
    tell("race: PCT at the gate", [await drawn_by_pct(race[s], url, s) for s in seeds])
    if importlib.util.find_spec("frontrun") is None:
        print("race: frontrun is not installed: pip install frontrun==0.7.0")
    else:
        for strategy in ("dpor", "random"):
            took = [by_frontrun(strategy, "handler", url, s) for s in seeds]
            tell(f"race: frontrun, {strategy}", took)
    tell("race: flood of 24 pairs", [await flooded(url, out, s) for s in seeds])

    one = seeds[0]
    twin = settings_for(RACE, "correct", one)
    tell("twin: explore, 2 copies", [await explored(twin, PAIR, url, one)])
    if importlib.util.find_spec("frontrun") is not None:
        tell("twin: frontrun, dpor, 2 threads", [by_frontrun("dpor", "correct", url, one)])
    put = load_settings(None, {}, out)
    tell("conditional put, 3 copies", [await explored(put, Rung(3, 0), url, one)])
    claim, world = settings_for(CLAIM_LEFT, "handler", one, faults=False), CLAIM_LEFT.explore
    assert world is not None
    rung = Rung(world.copies, world.faults, world.kinds)
    tell("claim_left, 1 copy, 1 crash", [await explored(claim, rung, url, one)])
    (out / "four_calls.py").write_text(FOUR_CALLS)
    names = {"TABLE_NAME": "{table:orders}", "TOTALS_TABLE": "{table:totals}"}
    tables = [{"name": "orders", "key": "id"}, {"name": "totals", "key": "id", "role": "other"}]
    handler = {**BASE["handler"], "handler": "four_calls.handler", "environment": names}
    four = settings_of({**BASE, "handler": handler | {"code": "."}, "table": tables}, out)
    tell("4 calls, 4 copies, 1 fault", [await explored(four, Rung(4, 1), url, one)])


async def measure(seeds: range) -> None:
    with tempfile.TemporaryDirectory(prefix="onceproof-") as directory:
        async with Processes() as processes:
            emulator = Emulator(Path(directory) / "emulator", processes)
            try:
                await side_by_side(await emulator.start(), Path(directory), seeds)
            finally:
                await emulator.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frontrun", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.frontrun:
        took = below_frontrun(asked.frontrun[0], asked.frontrun[1], asked.seeds)
        print(json.dumps(asdict(took)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {asked.seeds} seeds")
    print(f"{'':38} {'seconds':23} {'states':>7} {'schedules':>23} {'live':>5} result")
    run_in_loop(measure(range(1, asked.seeds + 1)))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
