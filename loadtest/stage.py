"""Everything that a run needs, open at once, and closed in the right order.

Opened: watchdog, endpoint (with its emulator), queues and tables, recorder, gateway,
environments. Closed: environments and gateway first, so that nothing writes any more;
then the final items are read; then what was made is removed and proven gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from botocore.credentials import Credentials as BotocoreCredentials

from analysis.errors import TargetError, UsageError
from analysis.schema import ItemsInfo, Phase, TableInfo, TableRole
from analysis.text import count
from consumer.clock import Clock
from consumer.environment import Environment, HandlerSpec
from consumer.faults import FaultName, Where
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.ledger import Ledger, Tally
from consumer.mapping import EventSourceMapping
from consumer.processes import Processes
from consumer.recorder import Recorder
from consumer.redaction import Redaction
from consumer.signing import Signer
from consumer.sqs_queue import Queue
from loadtest.config import Settings, fill_names, real_effects
from loadtest.dependencies import Packages, packages_of
from loadtest.driver import Driver, Sent
from loadtest.emulator import Emulator
from loadtest.fault_rules import real_rules
from loadtest.operations import ItemDeletion, Redrive
from loadtest.plan import Plan
from loadtest.sections import TableSettings
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint, Resources

_REFERENCE = "onceproof-reference"


def check_endpoint(url: str) -> None:
    """:raises UsageError: for what is no endpoint, and for AWS itself."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not match
        usable = False
    if not usable:
        raise UsageError(
            f"--endpoint-url: {url!r} is no endpoint; write it as http://127.0.0.1:4566"
        )
    host = (parts.hostname or "").rstrip(".")
    if f".{host}".endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
        raise UsageError(
            f"--endpoint-url: {host} is AWS itself. This target makes and deletes "
            "queues and tables; use an AWS-compatible endpoint."
        )


def handler_spec(
    settings: Settings, packages: Packages, region: str, names: Mapping[str, str]
) -> HandlerSpec:
    """The handler as its processes are to run it, the run's own names put in."""
    return HandlerSpec(
        code=settings.handler.code,
        handler=settings.handler.handler,
        timeout_s=settings.handler.timeout_s,
        region=region,
        variables=fill_names(settings.handler.environment, names),
        python=packages.python,
        packages=packages.path,
    )


def table_info(table: TableSettings, name: str) -> TableInfo:
    """A declared table under this name."""
    return TableInfo(
        name=name,
        role=table.role,
        key=table.key,
        key_type=table.key_type,
        sort=table.sort,
        sort_type=table.sort_type,
        complete_when=_lists(table.complete_when),
        items=tuple(
            ItemsInfo(kind.role, kind.key, kind.sort, _lists(kind.complete_when))
            for kind in table.items
        ),
    )


def table_infos(settings: Settings) -> tuple[TableInfo, ...]:
    """The declared tables under their declared names, with a reference table in any case."""
    tables = tuple(table_info(table, table.name) for table in settings.tables)
    if not any(table.role is TableRole.REFERENCE for table in tables):
        tables += (TableInfo(_REFERENCE, TableRole.REFERENCE, "id"),)
    return tables


def _lists(complete_when: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {name: list(texts) for name, texts in complete_when.items()}


class Stage:
    """An asynchronous context manager; inside it, :meth:`carry_out` sends plans.

    :raises OnceproofError: when something cannot be opened; what was opened before it is
        closed again.
    """

    def __init__(
        self,
        settings: Settings,
        run_dir: Path,
        *,
        run_id: str,
        endpoint_url: str | None,
        clock: Clock,
        phase: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """
        :param endpoint_url: None starts the embedded emulator.
        :param phase: is told what is being done.
        :param warn: is told what could not be removed in the end.
        """
        self.settings = settings
        self.run_id = run_id
        self.tally = Tally()
        self.sent = Sent()
        self.ledger = Ledger(run_id)
        self.gone: list[str] = []
        self._run_dir = run_dir
        self._endpoint_url = endpoint_url
        self._clock = clock
        self._phase = phase
        self._warn = warn
        self._stack = contextlib.AsyncExitStack()
        self._working = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opening:
            await self._open(opening)
            self._stack = opening.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        packages = await packages_of(settings.handler, self._phase)
        redaction = Redaction(settings.handler.secrets)
        self.recorder = Recorder(self._run_dir / "evidence", redaction)
        stack.callback(self.recorder.close)
        processes = await stack.enter_async_context(Processes())
        url = self._endpoint_url
        if url is None:
            self._phase("starting the embedded AWS")
            emulator = Emulator(self._run_dir / "emulator", processes)
            url = await stack.enter_async_context(emulator)
        self.endpoint = await stack.enter_async_context(
            Endpoint(
                url,
                credentials=LOCAL_CREDENTIALS if self._endpoint_url is None else None,
                connections=settings.load.concurrency + 32,
            )
        )
        # The emulator is private, so names stay as they are; elsewhere they carry the run.
        prefix = "" if self._endpoint_url is None else f"{self.run_id}-"
        await self.endpoint.self_test(prefix)
        stack.push_async_callback(self._remove)
        self.resources: Resources = await self.endpoint.create(
            prefix,
            table_infos(settings),
            visibility_timeout_s=settings.queue.visibility_timeout_s,
            max_receive_count=settings.queue.max_receive_count,
            fifo=settings.queue.fifo,
            deduplicate_by_content=settings.queue.deduplication == "content",
            effects=settings.effects,
            bucket=settings.order.has_objects,
        )
        faults = real_rules(settings.faults, self.resources.names)
        self.injector = Injector(faults, self.recorder, self._clock)
        async for row in self.endpoint.items(Phase.BEFORE):
            self.recorder.write(row)
        stack.push_async_callback(self._stop_working)
        self._phase(f"starting {settings.load.concurrency} environments")
        await self._open_environments(url, processes, packages)

    async def _open_environments(self, url: str, processes: Processes, packages: Packages) -> None:
        settings = self.settings
        signer = None
        if self._endpoint_url is not None:
            given = self.endpoint.credentials
            signer = Signer(BotocoreCredentials(given.access_key, given.secret_key, given.token))
        gateway = Gateway(
            url,
            self._clock,
            self.recorder,
            self.resources.tables,
            signer,
            self.injector,
            real_effects(settings.effects, self.resources.names),
        )
        self._working.push_async_callback(gateway.close)
        spec = handler_spec(settings, packages, self.endpoint.region, self.resources.names)
        directory = self._run_dir / "environments"
        directory.mkdir(exist_ok=True)
        self.gateway = gateway
        self.environments = [
            Environment(
                slot,
                spec,
                directory=directory,
                processes=processes,
                gateway=gateway,
                recorder=self.recorder,
                clock=self._clock,
                injector=self.injector,
            )
            for slot in range(1, settings.load.concurrency + 1)
        ]
        opening = [asyncio.create_task(self._open_one(one)) for one in self.environments]
        try:
            await asyncio.gather(*opening)
        finally:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)

    async def _open_one(self, environment: Environment) -> None:
        self._working.push_async_callback(environment.close)
        await environment.open()

    async def carry_out(
        self,
        plan: Plan,
        *,
        rate_per_s: float | None,
        stop: asyncio.Event,
        drain: asyncio.Event,
    ) -> None:
        """Send the plan and work until everything has settled, then do what the fault plan
        has for the run as a whole, and work until that has settled too.

        :param stop: set to send nothing further.
        :param drain: set to give up waiting; the drain limit of the settings sets it too,
            counted from the last send, or from what was done last.
        """
        if plan.objects:
            self._phase(f"putting {count(len(plan.objects), 'object')} into the bucket")
            await self.endpoint.put_objects(plan.objects)
            plan = plan.for_bucket(self.resources.names["bucket"])
        redrive, resend = (
            self.injector.strike(Where.RUN, name, message_no=None)
            for name in (FaultName.REDRIVE, FaultName.RESEND)
        )
        dead_letters = None
        if redrive is not None:
            queue = Queue(self.endpoint.sqs, self.resources.queue, self._clock)
            dead_letters = Redrive(queue, self.ledger, self.injector, redrive)
        mapping = partial(self._mapping, plan, dead_letters)
        driver = partial(self._driver, plan, rate_per_s)
        await self._work(mapping(), driver(again=False), stop, drain)
        if dead_letters is not None and self._may_go_on(stop) and await dead_letters.all():
            self._phase("working on what went back from the dead-letter queue")
            await self._work(mapping(), None, stop, drain)
        if resend is not None and self._may_go_on(stop):
            self._phase("sending the whole plan again")
            self.injector.fire(resend, detail=f"{len(plan.messages)} messages")
            await self._work(mapping(), driver(again=True), stop, drain)

    def _may_go_on(self, stop: asyncio.Event) -> bool:
        return self.ledger.is_settled and not stop.is_set()

    def _driver(self, plan: Plan, rate_per_s: float | None, *, again: bool) -> Driver:
        return Driver(
            self.endpoint.sqs,
            self.resources.queue.url,
            plan,
            rate_per_s=rate_per_s,
            ledger=self.ledger,
            recorder=self.recorder,
            clock=self._clock,
            sent=Sent() if again else self.sent,
            injector=self.injector,
            fifo=self.settings.queue.fifo,
            deduplicate_by_content=self.settings.queue.deduplication == "content",
            again=again,
        )

    def _mapping(self, plan: Plan, redrive: Redrive | None) -> EventSourceMapping:
        queue = self.settings.queue
        return EventSourceMapping(
            self.endpoint.sqs,
            self.resources.queue,
            self.environments,
            ledger=self.ledger,
            tally=self.tally,
            recorder=self.recorder,
            clock=self._clock,
            batch_size=queue.batch_size,
            report_batch_item_failures=queue.report_batch_item_failures,
            result_fields=self.settings.result_info(),
            injector=self.injector,
            batching_window_s=queue.batching_window_s,
            scaling=queue.scaling,
            delete_item=self._item_deletion(plan),
            on_dead_letter=redrive.seen if redrive is not None else None,
        )

    def _item_deletion(self, plan: Plan) -> ItemDeletion | None:
        if not self.settings.faults.has(FaultName.ITEM_DELETED):
            return None
        tables = self.resources.tables
        order = self.settings.order_info()
        return ItemDeletion(
            self.endpoint.dynamodb,
            next(table for table in tables if table.role is TableRole.ORDERS),
            order.attributes[order.key],
            {message.message_no: message.order_key for message in plan.messages},
            self.gateway,
            self.recorder,
            self._clock,
        )

    async def _work(
        self,
        mapping: EventSourceMapping,
        driver: Driver | None,
        stop: asyncio.Event,
        drain: asyncio.Event,
    ) -> None:
        """Until everything has settled, or ``drain`` is set."""
        self.ledger.all_sent = driver is None
        limit: asyncio.TimerHandle | None = None
        work = asyncio.create_task(mapping.run(drain))
        sends = [] if driver is None else [asyncio.create_task(driver.run(stop))]
        try:
            if sends:
                await asyncio.wait({work, *sends}, return_when=asyncio.FIRST_COMPLETED)
            if all(task.done() for task in sends):
                await asyncio.gather(*sends)
                limit_s = self.settings.load.drain_limit_s
                limit = asyncio.get_running_loop().call_later(limit_s, drain.set)
            await work
        finally:
            if limit is not None:
                limit.cancel()
            for task in (work, *sends):
                task.cancel()
            await asyncio.gather(work, *sends, return_exceptions=True)

    async def finish(self) -> None:
        """Stop every environment, then read the final items: nothing can change any more."""
        await self._stop_working()
        async for row in self.endpoint.items(Phase.AFTER):
            self.recorder.write(row)

    async def _stop_working(self) -> None:
        await self._working.aclose()

    async def _remove(self) -> None:
        try:
            self.gone = await self.endpoint.remove()
        except TargetError as error:
            # The run's own error or verdict matters more; this one is told beside it.
            if self._endpoint_url is not None:  # what is embedded goes with its process
                self._warn(f"not everything could be removed: {error}")
