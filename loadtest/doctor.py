"""Advice before a run: settings that are allowed and still lead astray.

What AWS would refuse is an error of the configuration, and told there. What follows here is
a *warning* where a run or the real queue will not do what it looks like, and a *hint* where
AWS advises something else, for a test perhaps on purpose.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from analysis.errors import TargetError
from analysis.store import Evidence, open_evidence
from consumer.faults import FaultName, FaultRule
from loadtest.config import Settings
from loadtest.fault_rules import rule_text
from loadtest.plan import Plan
from loadtest.problems import did_you_mean

_ADVISED_TIMEOUTS = 6
"""Visibility timeout in function timeouts, beside the batching window (Lambda developer
guide, "Configuring a queue to use with Lambda")."""
_ADVISED_RECEIVES = 5
"""``maxReceiveCount`` of a queue before Lambda (the same page)."""


class Level(StrEnum):
    ERROR = "error"  # AWS refuses it
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Advice:
    level: Level
    place: str  # the setting, as in the configuration
    cause: str
    cure: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause} {self.cure}"


def advice_json(advice: Sequence[Advice]) -> str:
    """Advice for machines: a list of objects."""
    return json.dumps([asdict(one) for one in advice], indent=2, ensure_ascii=False) + "\n"


def examine(settings: Settings, plan: Plan) -> tuple[Advice, ...]:
    """Everything that can be said before a run."""
    return (*_queue(settings), *_rules(settings, plan))


# --- queue and mapping ------------------------------------------------------------------


def _queue(settings: Settings) -> Iterator[Advice]:
    queue, load = settings.queue, settings.load
    visibility_s, timeout_s = queue.visibility_timeout_s, settings.handler.timeout_s
    yield from _visibility(
        "queue.visibility_timeout", visibility_s, timeout_s, queue.batching_window_s
    )
    yield from _receives("queue.max_receive_count", queue.max_receive_count)
    if queue.batch_size > 1 and not queue.report_batch_item_failures:
        yield Advice(
            Level.WARNING,
            "queue.report_batch_item_failures",
            f"is false with batches of {queue.batch_size}: one message that fails brings back "
            "all of its batch, and good ones may end in the dead-letter queue with it.",
            "Set it to true, and return batchItemFailures.",
        )
    failing = [
        name for name, share in (("poison", load.poison), ("conflicts", load.conflicts)) if share
    ]
    needed_s = visibility_s * queue.max_receive_count
    if failing and load.drain_limit_s < needed_s:
        yield Advice(
            Level.WARNING,
            "load.drain_limit",
            f"is {load.drain_limit_s:g} s, but {' and '.join(failing)} take {needed_s} s to reach "
            f"the dead-letter queue ({queue.max_receive_count} receives, {visibility_s} s each): "
            "the run would end before, and be INCONCLUSIVE.",
            f"Set it above {needed_s}, or lower queue.visibility_timeout.",
        )
    if settings.expect.poison == "drop" and not load.poison:
        yield Advice(
            Level.HINT,
            "expect.poison",
            'is "drop", and no poison is sent.',
            "Set load.poison above 0 to see what is done with it.",
        )


def _visibility(place: str, visibility_s: int, timeout_s: float, window_s: int) -> Iterator[Advice]:
    advised_s = _ADVISED_TIMEOUTS * timeout_s + window_s
    if visibility_s < timeout_s:
        yield Advice(
            Level.ERROR,
            place,
            f"is {visibility_s} s, below the function's timeout of {timeout_s:g} s: AWS refuses "
            "the event source mapping.",
            f"Raise it, best to {advised_s:g} or more.",
        )
    elif visibility_s < advised_s:
        yield Advice(
            Level.HINT,
            place,
            f"is {visibility_s} s; AWS advises {_ADVISED_TIMEOUTS} times the function's timeout"
            f"{' and the batching window' if window_s else ''}, {advised_s:g} s, so that a "
            "throttled batch can be tried again in time.",
            "Raise it on the real queue; for a test a short one is quicker.",
        )


def _receives(place: str, receives: int) -> Iterator[Advice]:
    if receives < _ADVISED_RECEIVES:
        yield Advice(
            Level.HINT,
            place,
            f"is {receives}; AWS advises {_ADVISED_RECEIVES} or more with Lambda, because "
            "throttling spends receives too.",
            "Raise it on the real queue; for a test few are quicker.",
        )


# --- fault rules ------------------------------------------------------------------------


def _rules(settings: Settings, plan: Plan) -> Iterator[Advice]:
    unmatched = _unmatched(settings.faults.rules, plan)
    for rule in settings.faults.rules:
        causes = [*_obstacles(rule, settings)]
        if rule in unmatched:
            causes.append(
                (
                    f"it cannot strike: none of the plan's {len(plan.messages)} messages matches.",
                    "Loosen message, copy, kind or every, or send more orders and copies.",
                )
            )
        for cause, cure in causes:
            yield Advice(Level.WARNING, f"fault {rule_text(rule)}", cause, cure)


def _unmatched(rules: Sequence[FaultRule], plan: Plan) -> set[FaultRule]:
    """The rules whose filters no message of the plan passes."""
    waiting = {
        rule
        for rule in rules
        if (rule.message, rule.copy, rule.kind, rule.every) != (None, None, None, None)
    }
    # What names its message is asked of that one only: a repeated run has a rule a message.
    by_message: dict[int | None, list[FaultRule]] = {}
    for rule in waiting:
        by_message.setdefault(rule.message, []).append(rule)
    orders: dict[str, int] = {}
    copies: Counter[str] = Counter()
    for message in plan.messages:
        if not waiting:
            break
        order_no = orders.setdefault(message.order_key, len(orders) + 1)
        copies[message.order_key] += 1
        for number in (None, message.message_no):
            for rule in by_message.get(number, ()):
                if (
                    rule.copy in (None, copies[message.order_key])
                    and rule.kind in (None, message.kind)
                    and (rule.every is None or order_no % rule.every == 0)
                ):
                    waiting.discard(rule)
    return waiting


def _obstacles(rule: FaultRule, settings: Settings) -> Iterator[tuple[str, str]]:
    """Cause and cure of what keeps a rule from striking, or from being of use."""
    queue, load = settings.queue, settings.load
    low_s, high_s = rule.seconds or rule.about.seconds or (0.0, 0.0)
    if rule.receive is not None and rule.receive > queue.max_receive_count:
        yield (
            f"it cannot strike: after {queue.max_receive_count} receives a message goes to the "
            "dead-letter queue.",
            "Lower receive, or raise queue.max_receive_count.",
        )
    if queue.max_receive_count == 1 and rule.receive is None and not rule.lasting:
        if rule.name in _COST_A_RECEIVE:
            yield (
                "it cannot strike: it spares the last receive of a message, and there is only one.",
                "Raise queue.max_receive_count, or ask for it by receive = 1.",
            )
        if rule.name is FaultName.CLOCK:
            yield (
                "it cannot strike: it waits for a redelivery, and a message is received once only.",
                "Raise queue.max_receive_count, or ask for it by receive = 1.",
            )
    if rule.name is FaultName.SHORT_VISIBILITY and low_s >= queue.visibility_timeout_s:
        yield (
            f"{low_s:g} s is no shorter than queue.visibility_timeout, "
            f"{queue.visibility_timeout_s} s.",
            "Lower its seconds, or raise the timeout.",
        )
    if rule.name is FaultName.LONG_DELAY and high_s >= load.drain_limit_s:
        yield (
            f"{high_s:g} s may outlast load.drain_limit, {load.drain_limit_s:g} s: the run would "
            "end before, and be INCONCLUSIVE.",
            "Raise the limit, or lower its seconds.",
        )
    service = rule.service or next(iter(rule.about.services), None)
    if rule.operation is not None and service in _SERVICES:
        known = _operations(service)
        if rule.operation not in known:
            yield (
                f'it cannot strike: {service} has no operation "{rule.operation}"'
                f"{did_you_mean(rule.operation, known)}.",
                "Write it as the API reference does: PutItem.",
            )
    tables = [table.name for table in settings.tables]
    if service == "dynamodb" and rule.resource is not None and rule.resource not in tables:
        yield (
            f'no [[table]] is called "{rule.resource}"{did_you_mean(rule.resource, tables)}; '
            f"declared: {', '.join(tables)}.",
            "Name one of them.",
        )


_COST_A_RECEIVE = (
    FaultName.REDELIVER_DURING,
    FaultName.REDELIVER_AFTER,
    FaultName.SHORT_VISIBILITY,
    FaultName.RECEIVE_WITHOUT_RUN,
    FaultName.DELETE_FAILS,
)
"""The mapping spares a message's last receive, so that faults alone dead-letter nothing."""

_SERVICES = ("dynamodb", "sqs", "sns", "ses")
"""Services whose requests name their operation as the API reference does."""


def _operations(service: str) -> Sequence[str]:
    names: Sequence[str] = botocore.session.Session().get_service_model(service).operation_names
    return names


# --- a queue that is there --------------------------------------------------------------


def examine_queue(endpoint_url: str, queue: str, settings: Settings) -> tuple[Advice, ...]:
    """Advice about an existing queue and its dead-letter queue, from their attributes.

    :param queue: its name or URL.
    :raises TargetError: it cannot be asked.
    """
    session = boto3.Session()
    given = {} if session.get_credentials() else _LOCAL
    try:
        sqs = session.client(
            "sqs",
            endpoint_url=endpoint_url,
            region_name=session.region_name or "us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30),
            **given,
        )
        url = queue if "/" in queue else sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        own = _attributes(sqs, url)
        policy = json.loads(own.get("RedrivePolicy", "{}"))
        target = str(policy.get("deadLetterTargetArn", ""))
        name = target.rpartition(":")[2]
        other = {}
        if name:
            other = _attributes(sqs, sqs.get_queue_url(QueueName=name)["QueueUrl"])
        return tuple(_existing(own, policy, name, other, settings))
    except (BotoCoreError, ClientError, KeyError, ValueError) as error:
        raise TargetError(
            f"{endpoint_url} could not be asked about the queue {queue}: {error}. Check "
            "--endpoint-url, --queue and the AWS credentials."
        ) from error


_LOCAL = {"aws_access_key_id": "onceproof", "aws_secret_access_key": "onceproof"}


def _attributes(sqs: Any, url: str) -> dict[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    return dict(found["Attributes"])


def _existing(
    own: Mapping[str, str],
    policy: Mapping[str, Any],
    dead_letter: str,
    other: Mapping[str, str],
    settings: Settings,
) -> Iterator[Advice]:
    visibility_s = int(own["VisibilityTimeout"])
    yield from _visibility(
        "VisibilityTimeout",
        visibility_s,
        settings.handler.timeout_s,
        settings.queue.batching_window_s,
    )
    if not dead_letter:
        yield Advice(
            Level.WARNING,
            "RedrivePolicy",
            "is not there: a message that no handler can accept comes back until its retention "
            "is over.",
            "Give the queue a dead-letter queue.",
        )
        return
    yield from _receives("RedrivePolicy.maxReceiveCount", int(policy["maxReceiveCount"]))
    kinds = ["FIFO" if of.get("FifoQueue") == "true" else "standard" for of in (own, other)]
    if kinds[0] != kinds[1]:
        # SQS developer guide, dead-letter queues.
        yield Advice(
            Level.ERROR,
            "RedrivePolicy.deadLetterTargetArn",
            f"names {dead_letter}, a {kinds[1]} queue, but this is a {kinds[0]} one: AWS moves "
            "messages only between queues of the same type.",
            f"Name a {kinds[0]} queue.",
        )
    kept = [int(of.get("MessageRetentionPeriod", "0")) for of in (own, other)]
    if kinds[1] == "standard" and kept[1] <= kept[0]:
        # The same page: the period counts from when a message was first sent.
        yield Advice(
            Level.HINT,
            "MessageRetentionPeriod",
            f"of {dead_letter} is {kept[1]} s, no longer than the queue's {kept[0]} s, and counts "
            "from the first send: a message may be gone soon after it was moved.",
            "Keep dead letters longer.",
        )


# --- after a run ------------------------------------------------------------------------

_NOT_EXISTS = r"attribute_not_exists\s*\(\s*([^()]+?)\s*\)"
_ALL_NOT_EXIST = rf"{_NOT_EXISTS}(?:\s+(?:AND|OR)\s+{_NOT_EXISTS})*"


def examine_run(run_dir: Path) -> tuple[Advice, ...]:
    """Conditions of writes that could not fail: ``attribute_not_exists`` of attributes that
    no item of the table ever had.

    Only a run can tell, because conditions stand in the handler's requests. Other conditions
    are not judged here; what they let through is a finding.

    :raises EvidenceError: the run cannot be read.
    """
    advice = []
    with open_evidence(run_dir) as evidence:
        keys = {table.name: (table.key, table.sort) for table in evidence.run.tables}
        conditions = evidence.rows(
            """
            SELECT resource, condition, count(*) AS writes
            FROM call_items JOIN run_tables USING (resource)
            WHERE role IN ('orders', 'guard') AND action IN ('put', 'update')
              AND starts_with(condition, 'attribute_not_exists')
            GROUP BY resource, condition
            HAVING bool_or(decision = 'accepted') AND NOT bool_or(decision = 'rejected')
            ORDER BY writes DESC
            """
        )
        for row in conditions:
            condition, table = row["condition"], row["resource"]
            key, sort = keys[table]
            if not re.fullmatch(_ALL_NOT_EXIST, condition):
                continue
            asked = set(re.findall(_NOT_EXISTS, condition))
            if asked & ({key, sort} | _attributes_of(evidence, table)):
                continue
            names = " and ".join(sorted(asked))
            advice.append(
                Advice(
                    Level.WARNING,
                    f"condition {condition}",
                    f"cannot fail: no item of {table} ever had {names}. "
                    f"{row['writes']} writes relied on it.",
                    f"Ask for the table's key: attribute_not_exists({key}).",
                )
            )
    return tuple(advice)


def _attributes_of(evidence: Evidence, table: str) -> set[str]:
    """Every attribute that an item of the table had at any time."""
    rows = evidence.rows(
        """
        SELECT DISTINCT unnest(json_keys(image)) AS name FROM (
            SELECT before AS image FROM call_items WHERE resource = $1
            UNION ALL SELECT after FROM call_items WHERE resource = $1
            UNION ALL SELECT item FROM items WHERE resource = $1
        )
        """,
        [table],
    )
    return {row["name"] for row in rows}
