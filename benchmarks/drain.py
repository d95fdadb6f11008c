"""How fast are messages drained, and what does the gateway cost?

    python -m benchmarks.drain [--messages 2000] [--rounds 5]

The same environments, mapping and emulator drain the same queue, once with every AWS call
through the gateway and once with the handler speaking to the emulator directly, in turn.
Goals on 2 cores with 8 environments: at least 200 messages/s, ratio at least 0.8.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from pathlib import Path

from analysis.schema import ResultInfo, TableInfo, TableRole
from consumer.clock import HostClock
from consumer.environment import Doors, Environment, HandlerSpec
from consumer.faults import FaultPlan, Occupant
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.ledger import Ledger, Tally
from consumer.mapping import EventSourceMapping
from consumer.processes import Processes
from consumer.recorder import Recorder
from loadtest.config import load_settings
from loadtest.driver import Driver, Sent
from loadtest.emulator import Emulator
from loadtest.event_loop import run_in_loop
from loadtest.plan import make_plan
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint

CODE = Path(__file__).parent.parent / "consumer"
ENVIRONMENTS = 8
COPIES = 5


class NoGateway:
    """The bare minimum: the handler speaks to the emulator itself."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open_door(self, occupant: Occupant) -> str:
        return self._url


async def drain(messages: int, round_no: int, *, through_gateway: bool) -> float:
    """Messages a second, from the first receive to the last delete, in a fresh emulator."""
    clock = HostClock()
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder = Recorder(directory / "evidence")
        stack.callback(recorder.close)
        processes = await stack.enter_async_context(Processes())
        emulator = Emulator(directory / "emulator", processes)
        stack.push_async_callback(emulator.close)
        url = await emulator.start()
        endpoint = await stack.enter_async_context(
            Endpoint(url, credentials=LOCAL_CREDENTIALS, connections=40)
        )
        resources = await endpoint.create(
            "",
            [TableInfo("orders", TableRole.ORDERS, "id")],
            visibility_timeout_s=60,
            max_receive_count=3,
        )
        injector = Injector(FaultPlan(), recorder, clock)
        doors: Doors = NoGateway(url)
        if through_gateway:
            gateway = Gateway(url, clock, recorder, resources.tables, None, injector)
            stack.push_async_callback(gateway.close)
            doors = gateway
        spec = HandlerSpec(CODE, "app.handler", 20, "us-east-1", {"TABLE_NAME": "orders"})
        environments = [
            Environment(
                slot,
                spec,
                directory=directory,
                processes=processes,
                gateway=doors,
                recorder=recorder,
                clock=clock,
                injector=injector,
            )
            for slot in range(1, ENVIRONMENTS + 1)
        ]
        for environment in environments:
            stack.push_async_callback(environment.close)
        await asyncio.gather(*(environment.open() for environment in environments))
        shape = load_settings(None, {}, directory).order
        plan = make_plan(shape, orders=messages // COPIES, copies=COPIES, seed=round_no)
        ledger, tally = Ledger("bench"), Tally()
        await Driver(
            endpoint.sqs,
            resources.queue.url,
            plan,
            rate_per_s=None,
            ledger=ledger,
            recorder=recorder,
            clock=clock,
            sent=Sent(),
            injector=injector,
        ).run(asyncio.Event())
        mapping = EventSourceMapping(
            endpoint.sqs,
            resources.queue,
            environments,
            ledger=ledger,
            tally=tally,
            recorder=recorder,
            clock=clock,
            batch_size=1,
            report_batch_item_failures=False,
            result_fields=ResultInfo("processed", "duplicate"),
            injector=injector,
        )
        began = clock.now_ns()
        work = asyncio.create_task(mapping.run(asyncio.Event()))
        while tally.settled < len(plan.messages):  # noqa: ASYNC110 - a tally sends no event
            await asyncio.sleep(0.005)
        rate = len(plan.messages) / ((clock.now_ns() - began) / 1e9)
        await work
        return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    rates: dict[bool, list[float]] = {True: [], False: []}
    for round_no in range(asked.rounds):
        for through_gateway in (True, False):
            work = drain(asked.messages, round_no, through_gateway=through_gateway)
            rates[through_gateway].append(run_in_loop(work))
    ratios = [with_it / without for with_it, without in zip(rates[True], rates[False], strict=True)]
    for name, values in (("with gateway", rates[True]), ("without", rates[False])):
        print(
            f"{name:13} {statistics.median(values):6.0f} messages/s "
            f"(lowest {min(values):.0f}, highest {max(values):.0f})"
        )
    print(
        f"ratio         {statistics.median(ratios):6.2f} "
        f"(lowest {min(ratios):.2f}, highest {max(ratios):.2f}), {ENVIRONMENTS} environments, "
        f"{asked.messages} messages, {asked.rounds} rounds"
    )


if __name__ == "__main__":
    main()
