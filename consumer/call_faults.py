"""What a call fault makes of one wire attempt. Pure; the gateway carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

from consumer import fault_replies
from consumer.aws_wire import Subject
from consumer.fault_replies import ErrorReply
from consumer.faults import FaultName, Strike

SILENT = "silent"  # of lost-reply: the connection stays open
APPLIED = "applied"  # of server-error: after the effect
UNAVAILABLE = "unavailable"  # of server-error: HTTP 503

DEFAULT_REASON = "throttling-error"
"""Why a transaction is cancelled when the rule does not say."""


class Ending(Enum):
    """What the handler gets."""

    REPLY = auto()
    RESET = auto()  # its connection is closed
    SILENCE = auto()  # nothing, until it closes the connection itself
    KILL = auto()  # its process is ended


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that one wire attempt meets."""

    strike: Strike
    ending: Ending
    forwards: bool = True  # the service gets the request
    error: ErrorReply | None = None  # in place of the service's reply
    detail: str | None = None
    repeats: bool = False  # carries on what has fired already


def injection(
    strike: Strike, subject: Subject, *, call_id: int, actions: int, met: int
) -> Injection:
    """Work out what a strike does.

    :param actions: of a transaction, 1 for every other call.
    :param met: which of the SDK call's attempts this rule strikes now, from 1.
    """
    request_id = str(UUID(int=call_id))
    option = strike.rule.option

    def instead(error: ErrorReply, detail: str | None = None) -> Injection:
        return Injection(strike, Ending.REPLY, forwards=False, error=error, detail=detail)

    match strike.name:
        case FaultName.LOST_REPLY:
            return Injection(strike, Ending.SILENCE if option == SILENT else Ending.RESET)
        case FaultName.LOST_REQUEST:
            return Injection(strike, Ending.RESET, forwards=False)
        case FaultName.THROTTLE:
            return instead(fault_replies.throttled(subject, request_id))
        case FaultName.SERVER_ERROR:
            error = fault_replies.server_error(
                subject, request_id, unavailable=option == UNAVAILABLE
            )
            return Injection(strike, Ending.REPLY, forwards=option == APPLIED, error=error)
        case FaultName.ACCESS_DENIED:
            return instead(fault_replies.access_denied(subject, request_id))
        case FaultName.TRANSACTION_CANCELLED:
            reason = (option or DEFAULT_REASON).title().replace("-", "")
            error = fault_replies.cancelled_by_first(subject, request_id, reason, actions)
            return instead(error, reason)
        case FaultName.TRANSACTION_CONFLICT if subject.operation == "TransactWriteItems":
            reason = "TransactionConflict"
            return instead(fault_replies.cancelled_by_first(subject, request_id, reason, actions))
        case FaultName.TRANSACTION_CONFLICT:
            return instead(fault_replies.transaction_conflict(subject, request_id))
        case FaultName.TRANSACTION_IN_PROGRESS if met == 1:
            return Injection(strike, Ending.RESET, detail="applied, reply lost")
        case FaultName.TRANSACTION_IN_PROGRESS:
            error = fault_replies.transaction_in_progress(subject, request_id)
            return instead(error, "asked again while in progress")
        case FaultName.CRASH_BEFORE_CALL:
            return Injection(strike, Ending.KILL, forwards=False)
        case FaultName.CRASH_AFTER_CALL:
            return Injection(strike, Ending.KILL)
        case FaultName.TIMEOUT:
            return Injection(strike, Ending.SILENCE)
    return Injection(strike, Ending.REPLY)  # slow, stale-read, partial-batch-write


def cut_off(strike: Strike) -> Injection:
    """A further call of an invocation that waits for its timeout: nothing gets through."""
    return Injection(strike, Ending.SILENCE, forwards=False, repeats=True)
