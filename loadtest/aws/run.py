"""``loadtest run --target aws``: the flood of a deployed function, through its own mapping.

First everything is looked at and nothing is changed; then the user is asked; then the plan is
sent, the queue runs empty, evidence is read, and what the run put there is removed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from analysis.errors import OnceproofError, TargetError, UsageError
from analysis.findings import Verdict
from analysis.schema import (
    NO_ITEM,
    Call,
    DeployedInfo,
    EffectInfo,
    Message,
    Observation,
    Phase,
    QueueRole,
    QueueSample,
    ResultInfo,
    Row,
    RunInfo,
    RunStatus,
    TableInfo,
    item_text,
)
from analysis.text import count
from consumer.clock import Clock
from consumer.faults import NO_FAULTS
from consumer.injector import Injector
from consumer.ledger import Ledger
from consumer.processes import without_receipt_handles
from consumer.recorder import Recorder
from loadtest import __version__
from loadtest.aws import cost, safety
from loadtest.aws.account import Account, Identity
from loadtest.aws.commands import Where
from loadtest.aws.deployed import Deployed, DeployedTable, find_deployed
from loadtest.aws.evidence import (
    NEVER_SEEN,
    UNRECORDED,
    Ends,
    attribute,
    delivery_rows,
    invocation_rows,
)
from loadtest.aws.function_faults import check_inside, plan_text
from loadtest.aws.items import (
    Item,
    OwnKeys,
    id_prefix,
    key_of,
    own_items,
    remove_items,
    row_of,
    text_of,
)
from loadtest.aws.logs import Logged, read_invocations, read_log
from loadtest.aws.queues import (
    LOOPBACK,
    REAL,
    Found,
    OwnMessage,
    Pace,
    delete_messages,
    own_messages,
    sample,
    until_quiet,
)
from loadtest.aws.recorded import Recorded
from loadtest.aws.recorded import gap as recording_gap
from loadtest.aws.recording import check_recordable, layer_name, record_off, record_on
from loadtest.aws.streams import StreamReader, StreamRecord, disable_stream, enable_stream
from loadtest.config import Settings
from loadtest.driver import Driver, Sent
from loadtest.event_loop import run_in_loop
from loadtest.fault_rules import rule_info
from loadtest.plan import Plan
from loadtest.run import (
    Stops,
    fault_lines,
    judge_recorded,
    new_run_dir,
    new_stamp,
    plan_info,
    plan_of,
    what_fired,
    write_failure,
    write_run_info,
)
from loadtest.terminal import Reporter, Snapshot

_PROGRESS_EVERY_S = 0.5
_FOLLOW_EVERY_S = 1.0
_CLOCKS_APART_MS = 60_000
"""By how much this machine's clock may differ from that of the log."""
_MOST_RECEIVES = 10
_MS = 1_000_000
LOG_FILE = "function.log"
"""In the run's directory: all lines of the function's log since the start, without receipt
handles."""

_Finals = dict[tuple[str, str], str]
"""Table and key -> item."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What log and streams told in the end."""

    invocations: list[Logged]
    log_bytes: int
    all_whole: bool  # nothing new came, and no invocation lacks a line
    stream_gap: str | None  # why the streams do not lead to the final items


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says beside the settings."""

    function: str
    where: Where
    queue_url: str | None = None
    enable_stream: bool = False
    keep_items: bool = False
    allow_backlog: bool = False
    record: bool = False


def run_deployed(
    settings: Settings,
    asked: Asked,
    *,
    out: Path,
    command: str,
    clock: Clock,
    reporter: Reporter,
    agreed: Callable[[str], bool],
) -> tuple[Path, Verdict]:
    """Carry out one run; its directory and its verdict.

    :param agreed: asks the user, who has seen account, region, queue and cost by then.
    :raises UsageError: nothing was sent: something is not the user's to use, too much, or the
        user said no.
    :raises OnceproofError: the run could not be carried out.
    """
    if asked.record and any(effect.service == "http" for effect in settings.effects):
        raise UsageError(
            "[[effect]] call: a recorder sees AWS calls only, so whether an HTTP call was made "
            "once cannot be told of a deployed function. Leave that effect out, or --record."
        )
    if settings.order.has_objects:
        raise UsageError(
            "[order] envelope: messages that tell of objects in a bucket can be sent to a local "
            "target only; an account's bucket is not written to."
        )
    stamp = new_stamp(clock)
    short = stamp.rpartition("-")[2]
    settings = with_prefix(settings, short)
    plan = plan_of(settings)
    check_inside(settings.faults, plan, recorded=asked.record)
    deployed, identity = run_in_loop(_look(settings, asked, plan, reporter))
    to = f"queue {deployed.queue.name} of {identity}"
    if settings.faults.rules:
        to += f", and let function {deployed.function} meet faults"
    if not agreed(f"Send {len(plan.messages):,} messages to {to}?"):
        raise UsageError("nothing was sent: it was not confirmed.")
    run_id, run_dir = new_run_dir(out, clock, stamp=stamp)
    info = run_info(
        settings, asked, plan, deployed, run_id=run_id, identity=identity, command=command,
        created_at=clock.now_ns(),
    )  # fmt: skip
    write_run_info(run_dir, info)
    try:
        info = run_in_loop(_record(settings, asked, plan, deployed, info, run_dir, clock, reporter))
    except OnceproofError as error:
        write_failure(run_dir, error, clock)
        raise
    finally:
        reporter.close()
    write_run_info(run_dir, info)
    return run_dir, judge_recorded(run_dir, [run_dir], reporter)


def with_prefix(settings: Settings, short_id: str) -> Settings:
    """The settings with order ids that begin with the run's short id, so that what it stores can
    be told from everything else: ``a1b2c3-kT4f-9ZbX2m``, or six digits where keys are numbers.

    :param short_id: six hexadecimal digits.
    """
    prefix = id_prefix(short_id, settings.order.key_type)
    return replace(settings, order=replace(settings.order, id_prefix=prefix))


async def _look(
    settings: Settings, asked: Asked, plan: Plan, reporter: Reporter
) -> tuple[Deployed, Identity]:
    """Find the stack and make sure that the run may use it; nothing is changed."""
    async with asked.where.account() as account:
        reporter.phase(f"looking at function {asked.function}")
        deployed = await find_deployed(account, settings, asked.function, asked.queue_url)
        await safety.check_ownership(account, deployed, settings.aws)
        safety.check_queue_is_empty(deployed, allow_backlog=asked.allow_backlog)
        await _check_keys_are_free(account, deployed, plan)
        if asked.record:
            await check_recordable(account, deployed.function, deployed.mapping_id)
        # May its log be read? To learn it afterwards would be late.
        await account.find(
            "logs", "FilterLogEvents", logGroupName=deployed.log_group, limit=1, startTime=0
        )
        with_stream = asked.enable_stream or deployed.orders_table.stream_arn is not None
        estimated = safety.estimate(plan, deployed, with_stream=with_stream, recorded=asked.record)
        lines = safety.lines(account, deployed, plan, estimated, settings.aws)
        reporter.plan([*lines, *_changes(asked, deployed), *fault_lines(settings.faults.rules)])
        safety.check_ceilings(plan, estimated, settings.aws)
        return deployed, account.identity


def _real_effects(settings: Settings, deployed: Deployed) -> tuple[EffectInfo, ...]:
    """With tables as they are really called; topics and queues have no other names here."""
    names = {table.declared: table.info.name for table in deployed.tables}
    return tuple(
        replace(effect, resource=names.get(effect.resource or "", effect.resource))
        if effect.service == "dynamodb"
        else effect
        for effect in settings.effects
    )


def _changes(asked: Asked, deployed: Deployed) -> Iterable[tuple[str, str]]:
    """What the run changes of the stack, and puts back."""
    if asked.record:
        yield (
            "changes",
            f"function {deployed.function}: a layer, the handler setting and one variable, put "
            "back afterwards",
        )
    for table in deployed.tables:
        if asked.enable_stream and table.holds_orders and table.stream_view is None:
            yield (
                "changes",
                f"table {table.info.name}: a stream is switched on, and off again afterwards",
            )


async def _check_keys_are_free(account: Account, deployed: Deployed, plan: Plan) -> None:
    """What is there under the plan's keys would be taken for the run's own, and removed.

    :raises UsageError: something is.
    """
    for table in filter(lambda table: table.holds_orders, deployed.tables):
        own = OwnKeys(table.info, own_order_keys(plan))
        there = [item async for item in own_items(account, own)]
        if there:
            raise UsageError(
                f"table {table.info.name} has {count(len(there), 'item')} under the order ids of "
                "the plan already. Another run left them (loadtest clean --run DIR), or a plan "
                "function of yours makes ids that are not new: let it put a new beginning before "
                "each."
            )


def own_order_keys(plan: Plan) -> Iterable[str]:
    return dict.fromkeys(message.order_key for message in plan.messages)


def run_info(
    settings: Settings,
    asked: Asked,
    plan: Plan,
    deployed: Deployed,
    *,
    run_id: str,
    identity: Identity,
    command: str,
    created_at: int,
) -> RunInfo:
    """What is asked, as ``run.json`` keeps it. Timeouts and sizes are those of the stack."""
    queue, dead = deployed.queue, deployed.dead_letter_queue
    return RunInfo(
        run_id=run_id,
        tool_version=__version__,
        created_at=created_at,
        command=command,
        target="aws",
        handler=f"{deployed.function} ({deployed.handler})",
        code=str(identity),
        timeout_s=deployed.timeout_s,
        visibility_timeout_s=queue.visibility_timeout_s,
        max_receive_count=deployed.max_receive_count,
        batch_size=deployed.batch_size,
        report_batch_item_failures=deployed.report_batch_item_failures,
        plan=plan_info(settings, plan, deployed.concurrency or 0),
        order=plan.order or settings.order_info(),
        tables=tuple(table.info for table in deployed.tables),
        result=settings.result_info() if asked.record else ResultInfo(),
        expect=settings.expect_info(),
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("boto3", "botocore", "duckdb")},
        },
        faults=tuple(map(rule_info, settings.faults.rules)),
        fault_seed=settings.faults.seed,
        effects=_real_effects(settings, deployed),
        not_observable={**UNRECORDED, **NEVER_SEEN},
        deployed=DeployedInfo(
            account_id=identity.account_id,
            region=identity.region,
            endpoint_url=identity.endpoint_url,
            function=deployed.function,
            queue_url=queue.url,
            dead_letter_url=None if dead is None else dead.url,
            log_group=deployed.log_group,
            items_kept=asked.keep_items,
            recorder_layer=layer_name(run_id) if asked.record else None,
        ),
    )


async def _record(
    settings: Settings,
    asked: Asked,
    plan: Plan,
    deployed: Deployed,
    info: RunInfo,
    run_dir: Path,
    clock: Clock,
    reporter: Reporter,
) -> RunInfo:
    """Send, wait, read and clean up; how it ended."""
    stops = Stops(reporter)
    with stops.on_signals():
        async with asked.where.account() as account, contextlib.AsyncExitStack() as stack:
            recorder = _Keeper(run_dir / "evidence")
            stack.callback(recorder.close)
            run = _Run(
                account, deployed, settings, plan, info, run_dir, recorder, clock, reporter, stops
            )
            stack.push_async_callback(run.clean_up)
            try:
                return await run.carry_out(enable=asked.enable_stream)
            except asyncio.CancelledError:
                if not stops.interrupted:
                    raise
                return replace(run.info, status=RunStatus.INTERRUPTED, ended_at=clock.now_ns())


class _Keeper(Recorder):
    """Keeps in mind what the queue accepted, by SQS message id."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.accepted: dict[str, Message] = {}

    def write(self, row: Row) -> None:
        super().write(row)
        if isinstance(row, Message) and row.sqs_message_id is not None:
            self.accepted[row.sqs_message_id] = row


@dataclass(slots=True)
class _Run:
    account: Account
    deployed: Deployed
    settings: Settings
    plan: Plan
    info: RunInfo
    run_dir: Path
    recorder: _Keeper
    clock: Clock
    reporter: Reporter
    stops: Stops
    ledger: Ledger = field(init=False)
    own: dict[str, OwnKeys] = field(init=False)
    sent: Sent = field(default_factory=Sent)
    streams: list[StreamReader] = field(default_factory=list)
    dead: list[OwnMessage] = field(default_factory=list)
    has_sent: bool = False
    is_quiet: bool = False
    latest: QueueSample | None = None
    expired: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.info.run_id)
        self.own = {
            table.info.name: OwnKeys(table.info, own_order_keys(self.plan))
            for table in self._orders_tables
        }

    @property
    def _pace(self) -> Pace:
        return LOOPBACK if self.account.is_local else REAL

    @property
    def _orders_tables(self) -> list[DeployedTable]:
        return [table for table in self.deployed.tables if table.holds_orders]

    @property
    def _layer(self) -> str | None:
        """That records the function's calls; in run.json since before it exists."""
        return None if self.info.deployed is None else self.info.deployed.recorder_layer

    def _own_items(self, table: TableInfo) -> AsyncIterator[Item]:
        return own_items(self.account, self.own[table.name])

    # --- the run ---

    async def carry_out(self, *, enable: bool) -> RunInfo:
        await self._open_streams(enable=enable)
        if self._layer is not None:
            self.reporter.phase("letting the function be called through the recorder")
            faults = None
            if self.settings.faults.rules:
                faults = plan_text(self.settings.faults, self.plan, self.info.run_id)
            await record_on(self.account, self.deployed.function, self._layer, faults)
        self.stops.opening = None
        started_at = self.clock.now_ns()
        self.info = replace(self.info, started_at=started_at)
        write_run_info(self.run_dir, self.info)
        self.reporter.phase("flooding")
        following = asyncio.create_task(self._follow())
        watching = asyncio.create_task(self._watch(started_at))
        try:
            await self._send_and_drain()
            quiet_at = self.clock.now_ns() if self.is_quiet else None
        finally:
            for task in (following, watching):
                task.cancel()
            done = await asyncio.gather(following, watching, return_exceptions=True)
            self.reporter.close()
        for failure in done:
            if isinstance(failure, OnceproofError):
                raise failure
        self.reporter.phase("reading what the queues, the log and the table say")
        ends = await self._ends(quiet_at)
        finals = await self._final_items()
        read = await self._settle(started_at, finals)
        hidden = self._write_evidence(read, ends)
        self.reporter.phase(self._counted(read, started_at))
        slots = len({logged.stream for logged in read.invocations})
        self.info = replace(
            self.info,
            status=self._status(),
            ended_at=self.clock.now_ns(),
            plan=replace(self.info.plan, concurrency=slots or self.info.plan.concurrency),
            not_observable={**NEVER_SEEN, **hidden},
            left_over=tuple(self._left_over()),
        )
        return self.info

    async def _open_streams(self, *, enable: bool) -> None:
        for table in self._orders_tables:
            stream_arn, name = table.stream_arn, table.info.name
            if stream_arn is None and table.stream_view is None and enable:
                self.reporter.phase(f"switching a stream of table {name} on")
                assert self.info.deployed is not None
                enabled = (*self.info.deployed.streams_enabled, name)
                # On record before it happens: whatever comes next, it can be put back.
                self.info = replace(
                    self.info, deployed=replace(self.info.deployed, streams_enabled=enabled)
                )
                write_run_info(self.run_dir, self.info)
                stream_arn = await enable_stream(self.account, name)
            if stream_arn is not None:
                reader = StreamReader(
                    self.account,
                    table.info,
                    stream_arn,
                    self._is_ours(table.info),
                    from_its_beginning=table.stream_arn is None,
                )
                await reader.start()
                self.streams.append(reader)

    def _is_ours(self, table: TableInfo) -> Callable[[StreamRecord], bool]:
        """Whether a record is about an order of this run, by its key or by what the item says."""
        order, own = self.settings.order_info(), self.own[table.name]
        attribute = order.attributes.get(order.key, table.key)
        planned = frozenset(own_order_keys(self.plan))

        def is_ours(record: StreamRecord) -> bool:
            images = (record.after or {}, record.before or {})
            named = (text_of(image.get(attribute)) for image in images)
            return own.names(record.keys) or any(text in planned for text in named)

        return is_ours

    async def _follow(self) -> None:
        """Read the streams all the while: what waits for 15 minutes is lost."""
        while self.streams:
            for reader in self.streams:
                await reader.read()
            await asyncio.sleep(min(_FOLLOW_EVERY_S, self._pace.every_s))

    async def _watch(self, started_at: int) -> None:
        while True:
            latest, accepted = self.latest, self.sent.accepted
            waiting = 0 if latest is None else latest.visible + latest.delayed
            in_flight = 0 if latest is None else latest.in_flight
            self.reporter.progress(
                Snapshot(
                    elapsed_s=(self.clock.now_ns() - started_at) / 1e9,
                    planned=len(self.plan.messages),
                    sent=accepted,
                    in_flight=in_flight,
                    processed=0,
                    duplicates=0,
                    failed=0,
                    settled=max(0, accepted - waiting - in_flight) if latest else 0,
                    dead_lettered=0,
                    queue_depth=waiting,
                    left_s=None,
                    has_results=False,
                )
            )
            await asyncio.sleep(_PROGRESS_EVERY_S)

    async def _send_and_drain(self) -> None:
        deployed, load = self.deployed, self.settings.load
        driver = Driver(
            await self.account.client("sqs"),
            deployed.queue.url,
            self.plan,
            rate_per_s=load.rate_per_s,
            ledger=self.ledger,
            recorder=self.recorder,
            clock=self.clock,
            sent=self.sent,
            injector=Injector(NO_FAULTS, self.recorder, self.clock),
            fifo=deployed.queue.fifo,
            deduplicate_by_content=deployed.queue.deduplicate_by_content,
        )
        loop = asyncio.get_running_loop()
        limits = [loop.call_later(self.settings.aws.max_seconds, self._expire)]
        self.has_sent = True
        try:
            await driver.run(self.stops.sending)
            receives = min(deployed.max_receive_count, _MOST_RECEIVES)
            last_s = 60 + receives * deployed.queue.visibility_timeout_s
            limit_s = max(load.drain_limit_s, last_s)
            limits.append(loop.call_later(limit_s, self.stops.draining.set))
            self.is_quiet = await until_quiet(
                self.account,
                deployed.queue,
                self._pace,
                self.clock,
                self.stops.draining,
                self._sampled,
            )
        finally:
            for limit in limits:
                limit.cancel()

    def _expire(self) -> None:
        self.expired = True
        self.reporter.phase(f"stopping: [aws] max_seconds ({self.settings.aws.max_seconds:g} s)")
        self.stops.sending.set()
        self.stops.draining.set()

    def _sampled(self, taken: QueueSample) -> None:
        self.latest = taken
        self.recorder.write(taken)

    # --- what can be read afterwards ---

    async def _ends(self, quiet_at: int | None) -> Ends:
        """Where the messages are now. What was sent and is in neither queue was deleted."""
        deployed, unseen = self.deployed, None
        letters = Found()
        queue = deployed.dead_letter_queue
        if queue is not None:
            letters = await own_messages(
                self.account,
                queue,
                self.ledger,
                self.clock,
                id_prefix=self.settings.order.id_prefix,
            )
            self.dead = letters.own
            if deployed.dead_letters_taken_by is not None:
                unseen = (
                    f"Function {deployed.dead_letters_taken_by} consumes the dead-letter queue "
                    f"{queue.name}, so it is not known what was in it."
                )
            elif not letters.is_complete:
                unseen = (
                    f"The dead-letter queue {queue.name} holds too many messages of others to "
                    "look through."
                )
            elif letters.unsure:
                unseen = (
                    f"{count(letters.unsure, 'message')} in the dead-letter queue {queue.name} "
                    "have the body of a message of this run, no order id and no mark of it: "
                    "whether the function set them aside is not known."
                )
        if quiet_at is None:
            unseen = "The queue did not run empty, so it is not known which messages were deleted."
        return Ends(quiet_at, self.dead, unseen)

    async def _final_items(self) -> _Finals:
        """The run's own orders as they are now; written as evidence too."""
        finals: _Finals = {}
        for table in self._orders_tables:
            async for item in self._own_items(table.info):
                row = row_of(table.info, item, Phase.AFTER)
                finals[row.resource, row.item_key] = row.item
                self.recorder.write(row)
        return finals

    async def _settle(self, started_at: int, finals: _Finals) -> _Read:
        """Read log and streams until they bring nothing new and leave nothing open."""
        pace = self._pace
        since_ms = started_at // _MS - _CLOCKS_APART_MS
        unchanged, is_waiting = 0, False
        seen: tuple[int, ...] = ()
        for _ in range(max(1, math.ceil(pace.log_limit_s / pace.every_s))):
            events = await read_log(self.account, self.deployed.log_group, since_ms)
            for reader in self.streams:
                await reader.read()
            invocations = self._own_invocations(read_invocations(events), started_at)
            previous = seen
            seen = (len(events), *(len(reader.records) for reader in self.streams))
            unchanged = unchanged + 1 if seen == previous else 0
            is_settled = unchanged >= pace.settled_polls
            all_whole = is_settled and all(logged.is_whole for logged in invocations)
            gap = self._stream_gap(finals)
            if all_whole and gap is None and self._is_told(invocations):
                break
            if is_settled and not is_waiting:
                is_waiting = True
                self.reporter.phase(f"waiting for what is late, at most {pace.log_limit_s:g} s")
            await self.account.sleep(pace.every_s)
        lines = (f"{event.at_ms} {event.stream} {event.message}\n" for event in events)
        (self.run_dir / LOG_FILE).write_bytes(without_receipt_handles("".join(lines).encode()))
        size = sum(len(event.message.encode()) for event in events)
        return _Read(invocations, size, all_whole, gap)

    def _is_told(self, invocations: list[Logged]) -> bool:
        """Whether the log accounts for every message, or is of the kind that names none."""
        accepted = self.recorder.accepted
        found = attribute(invocations, accepted, self.deployed.batch_size, all_whole=True)
        if not found.sqs_ids:
            return bool(invocations) or not accepted or not self.deployed.logs_invocations
        return found.unseen is None

    def _own_invocations(self, invocations: Iterable[Logged], started_at: int) -> list[Logged]:
        """Without those that were over before, and those of others in a log group that functions
        share."""
        numbers = {one: message.message_no for one, message in self.recorder.accepted.items()}
        is_shared, since_ms = not self.deployed.has_own_log_group, started_at // _MS
        return [
            logged
            for logged in invocations
            if logged.sqs_ids(numbers)
            or not (is_shared or (logged.ended_ms is not None and logged.ended_ms < since_ms))
        ]

    def _stream_gap(self, finals: _Finals) -> str | None:
        """Why the streams do not lead to the final items (yet)."""
        for reader in self.streams:
            name = reader.table.name
            if reader.lost is not None:
                return reader.lost
            told: _Finals = {}
            for record in reader.records:
                if self.own[name].names(record.keys):
                    told[name, item_text(record.keys)] = item_text(record.after)
            stored = {place: item for place, item in finals.items() if place[0] == name}
            if {place: item for place, item in told.items() if item != NO_ITEM} != stored:
                return f"The stream of table {name} had not told all writes in time."
        return None

    def _write_evidence(self, read: _Read, ends: Ends) -> dict[Observation, str]:
        """Write all rows but those of items; what was not to be seen, and why."""
        messages, hidden = self.recorder.accepted, {}
        rows = invocation_rows(read.invocations)
        recorded = self._recorded(read)
        if recorded is not None:
            pairs = zip(read.invocations, rows, strict=True)
            rows = [recorded.invocation(logged, row) for logged, row in pairs]
        attribution = attribute(
            read.invocations, messages, self.deployed.batch_size, all_whole=read.all_whole
        )
        for row in (*rows, *delivery_rows(messages, rows, attribution, ends)):
            self.recorder.write(row)
        if recorded is not None:
            for logged, row in zip(read.invocations, rows, strict=True):
                for part in recorded.rows(logged, row):
                    self.recorder.write(part)
            self._count_faults(recorded)
        else:
            for record in (record for reader in self.streams for record in reader.records):
                for part in record.rows(self.recorder.next_id(Call)):
                    self.recorder.write(part)
        if attribution.unseen is not None:
            hidden[Observation.DELIVERIES] = attribution.unseen
        if ends.unseen is not None:
            hidden[Observation.ENDS] = ends.unseen
        streamed = {reader.table.name for reader in self.streams}
        names = [table.info.name for table in self._orders_tables]
        without = [name for name in names if name not in streamed]
        if recorded is not None:
            if recorded.unknown_before:
                hidden[Observation.WRITES] = (
                    "The recorder cannot tell what "
                    f"{count(recorded.unknown_before, 'write')} of transactions, batches or "
                    "updates replaced. A stream can: leave --record out."
                )
        elif without:
            hidden[Observation.WRITES] = (
                f"Table {', '.join(without)} has no stream of whole items (NEW_AND_OLD_IMAGES), so "
                "writes are not seen. Switch one on, or let the run do it: --enable-stream."
            )
        elif read.stream_gap is not None:
            hidden[Observation.WRITES] = read.stream_gap
        if self._layer is None:
            hidden |= UNRECORDED
        elif recorded is None:
            gap = recording_gap(read.invocations) or "The function's log has not told all."
            hidden |= dict.fromkeys(UNRECORDED, gap)
        return hidden

    def _recorded(self, read: _Read) -> Recorded | None:
        """What the recorder wrote, when it is whole."""
        if self._layer is None or not read.all_whole or recording_gap(read.invocations):
            return None
        return Recorded(
            [table.info for table in self.deployed.tables],
            self.recorder.accepted,
            report_batch_item_failures=self.deployed.report_batch_item_failures,
            result_fields=self.info.result,
            effects=self.info.effects,
            faults=self.settings.faults.rules,
            next_id=self.recorder.next_id,
        )

    def _count_faults(self, recorded: Recorded) -> None:
        rules, matched = self.settings.faults.rules, recorded.opportunities
        for text in what_fired(rules, recorded.fired, matched):
            self.reporter.phase(text)
        counted = tuple(rule_info(rule, matched[number]) for number, rule in enumerate(rules, 1))
        self.info = replace(self.info, faults=counted)

    def _status(self) -> RunStatus:
        if self.stops.interrupted:
            return RunStatus.INTERRUPTED
        return RunStatus.FINISHED if self.is_quiet else RunStatus.NOT_DRAINED

    def _left_over(self) -> Iterable[str]:
        if self.expired:
            yield f"[aws] max_seconds ({self.settings.aws.max_seconds:g} s) was reached"
        latest = self.latest
        if not self.is_quiet and latest is not None:
            left = latest.visible + latest.in_flight + latest.delayed
            yield f"the queue still held about {count(left, 'message')}"
        unsent = len(self.plan.messages) - self.sent.accepted - self.sent.refused
        if unsent:
            yield f"{count(unsent, 'message')} of the plan were never sent"

    def _counted(self, read: _Read, started_at: int) -> str:
        """What was billed, as far as it can be counted."""
        deployed, sent = self.deployed, self.sent.accepted
        deliveries = max(sent, len(read.invocations))
        writes = max(deliveries, sum(len(reader.records) for reader in self.streams))
        keys = sum(len(own.keys) + len(own.partitions) for own in self.own.values())
        units = (
            cost.own_requests(self.account.called)
            + cost.invocations(
                len(read.invocations),
                billed_ms=sum(logged.billed_ms for logged in read.invocations),
                memory_mb=deployed.memory_mb,
                arm=deployed.arm,
            )
            + cost.mapping_polls(
                deliveries=deliveries,
                deleted=sent,
                body_bytes=max(len(message.body.encode()) for message in self.plan.messages),
                lasting_s=(self.clock.now_ns() - started_at) / 1e9,
            )
            + cost.Units(
                sqs_requests=math.ceil(sent / 10),
                write_units=writes,
                read_units=3.0 * keys,
                log_bytes=read.log_bytes,
            )
        )
        return safety.counted_text(units, self.account.throttled)

    # --- afterwards ---

    async def clean_up(self) -> None:
        """Remove what the run put there, and see that it is gone; what could not be is told."""
        kept = self.info.deployed is not None and self.info.deployed.items_kept
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if self._layer is not None:
            what = f"the recorder of function {self.deployed.function}"
            steps.append(
                (what, partial(record_off, self.account, self.deployed.function, self._layer))
            )
        if self.has_sent:
            if not self.is_quiet:
                steps.append((f"messages in queue {self.deployed.queue.name}", self._empty_queue))
            if self.dead:
                steps.append(("messages in the dead-letter queue", self._delete_dead_letters))
            if not kept:
                steps.append(("items", self._remove_items))
        enabled = () if self.info.deployed is None else self.info.deployed.streams_enabled
        for name in enabled:
            steps.append(
                (f"the stream of table {name}", partial(disable_stream, self.account, name))
            )
        for what, step in steps:
            try:
                await step()
            except OnceproofError as error:
                # The run's own error or verdict matters more; this one is told beside it.
                self.reporter.warn(
                    f"{what} of this run may be left: {error} Then: loadtest clean --run "
                    f"{self.run_dir}"
                )

    async def _empty_queue(self) -> None:
        queue = self.deployed.queue
        found = await own_messages(self.account, queue, self.ledger, self.clock, id_prefix=None)
        await delete_messages(self.account, queue, found.own)
        left = await sample(self.account, queue, QueueRole.QUEUE, self.clock)
        if left.in_flight + left.delayed:
            raise TargetError(
                f"about {count(left.in_flight + left.delayed, 'message')} are in flight or delayed "
                "and cannot be deleted now."
            )

    async def _delete_dead_letters(self) -> None:
        queue = self.deployed.dead_letter_queue
        assert queue is not None
        await delete_messages(self.account, queue, self.dead)

    async def _remove_items(self) -> None:
        for table in self._orders_tables:
            info = table.info
            keys = {
                item_text(key_of(info, item)): key_of(info, item)
                async for item in self._own_items(info)
            }
            # Stored under other keys, but orders of this run by what they say.
            for reader in self.streams:
                if reader.table.name == info.name:
                    keys |= {item_text(record.keys): record.keys for record in reader.records}
            await remove_items(self.account, info.name, keys.values())
