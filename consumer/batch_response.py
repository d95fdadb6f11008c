"""What an invocation's ending means for each message of its batch. Pure.

Rules of AWS's event source mapping for SQS (Lambda developer guide, "Handling errors for
an SQS event source"): without ``ReportBatchItemFailures`` a returned value is not read;
with it, an empty or null answer, or an empty or null list, is success for the whole batch,
and an answer that is malformed fails the whole batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.schema import Invocation, Outcome, Result, ResultInfo

_KEPT_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class Fate:
    """One message after its invocation."""

    succeeded: bool  # the mapping may delete it
    result: Result | None  # what the consumer reported, where that can be told
    detail: str | None  # the object it returned for this message as JSON, or the error


def fates(
    ended: Invocation,
    message_ids: Sequence[str],
    *,
    report_batch_item_failures: bool,
    fields: ResultInfo,
) -> list[Fate]:
    """The fate of every message of the batch, in its order."""
    if ended.outcome is not Outcome.RETURNED:
        error = f"{ended.error_type}: {ended.error_message}"[:_KEPT_CHARACTERS]
        return [Fate(False, Result.FAILED, error)] * len(message_ids)
    try:
        answer = json.loads(ended.response) if ended.response else None
        valid = True
    except ValueError:
        answer, valid = None, False
    failed: set[str] = set()
    if report_batch_item_failures:
        reported = _reported(answer, message_ids) if valid else None
        if reported is None:
            error = f"malformed batch response: {(ended.response or '')[:_KEPT_CHARACTERS]}"
            return [Fate(False, Result.FAILED, error)] * len(message_ids)
        failed = reported
    found: list[Fate] = []
    for position, message_id in enumerate(message_ids):
        if message_id in failed:
            found.append(Fate(False, Result.FAILED, "reported in batchItemFailures"))
            continue
        said = _said(answer, position, message_id, single=len(message_ids) == 1)
        detail = None if said is None else json.dumps(said, sort_keys=True)[:_KEPT_CHARACTERS]
        found.append(Fate(True, _result(said, fields), detail))
    return found


def _reported(answer: Any, message_ids: Sequence[str]) -> set[str] | None:
    """The reported message ids; None when the answer is malformed."""
    if answer is None or answer == {}:
        return set()
    if not isinstance(answer, dict):
        return None
    if "batchItemFailures" not in answer:
        # An object of the handler's own, as if nothing were reported.
        return set()
    failures = answer["batchItemFailures"]
    if failures is None:
        return set()
    if not isinstance(failures, list):
        return None
    reported: set[str] = set()
    for failure in failures:
        identifier = failure.get("itemIdentifier") if isinstance(failure, dict) else None
        if not isinstance(identifier, str) or identifier not in message_ids:
            return None
        reported.add(identifier)
    return reported


def _said(answer: Any, position: int, message_id: str, *, single: bool) -> dict[str, Any] | None:
    """What the answer says of one message: the object itself, by position, or by id."""
    match answer:
        case list() if position < len(answer):
            entry = answer[position]
        case dict() if message_id in answer:
            entry = answer[message_id]
        case dict() if single and "batchItemFailures" not in answer:
            entry = answer
        case _:
            return None
    return entry if isinstance(entry, dict) else None


def _result(said: dict[str, Any] | None, fields: ResultInfo) -> Result | None:
    """A field counts when it is true; processed goes first."""
    if said is None:
        return None
    if fields.processed is not None and said.get(fields.processed) is True:
        return Result.PROCESSED
    if fields.duplicate is not None and said.get(fields.duplicate) is True:
        return Result.DUPLICATE
    return None
