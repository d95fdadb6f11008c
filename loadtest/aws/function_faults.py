"""Faults that the recorder inside a deployed function carries out: which it can, and the plan that
is sent along with it, by which ``consumer/function_recorder.py`` decides. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from analysis.errors import UsageError
from consumer import fault_replies
from consumer.aws_wire import Protocol, Subject
from consumer.call_faults import APPLIED, SILENT, UNAVAILABLE
from consumer.fault_replies import ErrorReply
from consumer.faults import FaultName, FaultPlan, FaultRule, Place, Where
from consumer.ledger import STAMP
from loadtest.fault_rules import rule_text
from loadtest.plan import Plan

INSIDE = (
    FaultName.LOST_REPLY,
    FaultName.LOST_REQUEST,
    FaultName.THROTTLE,
    FaultName.SERVER_ERROR,
    FaultName.ACCESS_DENIED,
    FaultName.SLOW,
    FaultName.CRASH_BEFORE_CALL,
    FaultName.CRASH_AFTER_CALL,
    FaultName.CRASH_BEFORE_ANSWER,
)
"""What can be made to happen inside a function. A client's read timeout and the state of other
calls are not to be had there; deliveries, acknowledgements and the clock are AWS's own."""

_APPLYING = (FaultName.LOST_REPLY, FaultName.CRASH_AFTER_CALL, FaultName.SLOW)
_MOST_BYTES = 1_000_000
_REQUEST_ID = "00000000-0000-0000-0000-0000000060d5"
_SERVICE, _OPERATION = "onceproof-service", "onceproof-operation"
_WRITTEN = (
    ("dynamodb", Protocol.JSON),
    ("sqs", Protocol.JSON),
    ("states", Protocol.JSON),
    ("sqs", Protocol.QUERY),
    ("sns", Protocol.QUERY),
    ("ses", Protocol.QUERY),
    ("s3", Protocol.REST),
    ("ses", Protocol.REST),
    ("lambda", Protocol.REST),
)
"""Services with errors of their own; others have what is usual in their protocol."""


def check_inside(faults: FaultPlan, plan: Plan, *, recorded: bool) -> None:
    """:raises UsageError: the faults cannot be carried out at a deployed function."""
    if faults.rules and not recorded:
        raise UsageError(
            "--fault: inside a deployed function faults are made to happen by the recorder: add "
            "--record. Or leave them out, or run the handler here (--code, --handler)."
        )
    others = [rule for rule in faults.rules if rule.name not in INSIDE]
    if others:
        names = ", ".join(dict.fromkeys(rule.name for rule in others))
        raise UsageError(
            f"--fault: {names} cannot be made to happen inside a deployed function, only "
            f"{', '.join(INSIDE)}.{_instead(others)} For the others run the handler here (--code, "
            "--handler)."
        )
    for rule in faults.rules:
        if rule.option == SILENT:
            raise UsageError(
                "--fault lost-reply:silent: inside a deployed function the client's read timeout "
                "is not known. Use lost-reply, or run the handler here (--code, --handler)."
            )
        if rule.resource is not None:
            raise UsageError(
                f"--fault {rule_text(rule)}: inside a deployed function a rule cannot be narrowed "
                "by resource. Use service, operation or call."
            )
    size = len(plan_text(faults, plan, ""))
    if size > _MOST_BYTES:
        raise UsageError(
            f"--fault: the rules come to {size:,} bytes, at most {_MOST_BYTES:,} can be sent along "
            "with the recorder. Use fewer rules, or send fewer messages (--orders)."
        )


def _instead(rules: Iterable[FaultRule]) -> str:
    if any(rule.about.where in (Where.DELIVERY, Where.ACK) for rule in rules):
        return (
            " Its mapping is AWS's own: more --copies of each order stand for redeliveries, "
            "crash-before-answer for a delete that fails."
        )
    return ""


def plan_text(faults: FaultPlan, plan: Plan, run_id: str) -> str:
    """The fault plan as JSON for the recorder."""
    return json.dumps(
        {
            "run_id": run_id,
            "stamp": STAMP,
            "seed": faults.seed,
            "placeholders": [_REQUEST_ID, _SERVICE, _OPERATION],
            "rules": [_rule(number, rule, plan) for number, rule in enumerate(faults.rules, 1)],
        }
    )


def _rule(number: int, rule: FaultRule, plan: Plan) -> dict[str, Any]:
    low, high = rule.seconds or rule.about.seconds or (0.0, 0.0)
    applied = rule.name is FaultName.SERVER_ERROR and rule.option == APPLIED
    return {
        "number": number,
        "name": rule.name,
        "where": rule.about.where,
        "option": rule.option,
        "lasting": rule.lasting,
        "rate": rule.rate,
        "low": low,
        "high": high,
        "service": rule.service,
        "operation": rule.operation,
        "call": rule.call,
        "receive": rule.receive,
        "messages": _messages(rule, plan),
        "applies": applied or rule.name in _APPLYING,
        "errors": _errors(rule),
    }


def _messages(rule: FaultRule, plan: Plan) -> list[int] | None:
    """The messages that the rule is about; None for all."""
    if (rule.message, rule.copy, rule.kind, rule.every) == (None, None, None, None):
        return None
    rule = replace(rule, service=None, operation=None, call=None, receive=None)
    orders: dict[str, int] = {}
    copies: Counter[str] = Counter()
    found = []
    for message in plan.messages:
        key = message.order_key
        copies[key] += 1
        place = Place(
            rule.about.where,
            message_no=message.message_no,
            order_no=orders.setdefault(key, len(orders) + 1),
            copy=copies[key],
            kind=message.kind,
        )
        if rule.matches(place):
            found.append(message.message_no)
    return found


def _errors(rule: FaultRule) -> dict[str, dict[str, Any]]:
    """Replies by service and protocol; without a service those of all others."""
    reply: Callable[[Subject, str], ErrorReply]
    match rule.name:
        case FaultName.THROTTLE:
            reply = fault_replies.throttled
        case FaultName.SERVER_ERROR:
            unavailable = rule.option == UNAVAILABLE
            reply = partial(fault_replies.server_error, unavailable=unavailable)
        case FaultName.ACCESS_DENIED:
            reply = fault_replies.access_denied
        case _:
            return {}
    usual = (("", protocol) for protocol in (Protocol.JSON, Protocol.QUERY, Protocol.REST))
    told = {}
    for service, protocol in (*_WRITTEN, *usual):
        subject = Subject(protocol, service or _SERVICE, None, _OPERATION, None, 1, None)
        error = reply(subject, _REQUEST_ID)
        told[f"{service} {protocol}"] = {
            "status": error.status,
            "headers": dict(error.headers),
            "body": error.body.decode(),
        }
    return told
