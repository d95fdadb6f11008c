"""AWS's rules for what an invocation's answer means for each message of its batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.schema import Invocation, Outcome, Result, ResultInfo
from consumer.batch_response import Fate, fates

FIELDS = ResultInfo(processed="processed", duplicate="duplicate")
IDS = ["a", "b", "c"]


def answered(answer: Any, *, ids: list[str] | None = None, report: bool = True) -> list[Fate]:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    row = Invocation(1, "r", 1, False, 0, 1, Outcome.RETURNED, response=text)
    return fates(row, ids or IDS, report_batch_item_failures=report, fields=FIELDS)


def succeeded(found: list[Fate]) -> list[bool]:
    return [fate.succeeded for fate in found]


def failures(*ids: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in ids]}


@pytest.mark.parametrize(
    "answer", [None, {}, "", {"batchItemFailures": []}, {"batchItemFailures": None}]
)
def test_empty_and_null_answers_are_success_for_the_whole_batch(answer: Any) -> None:
    assert succeeded(answered(answer)) == [True, True, True]


def test_only_what_is_reported_fails() -> None:
    assert succeeded(answered(failures("b"))) == [True, False, True]


@pytest.mark.parametrize(
    "answer",
    [
        failures(""),
        failures(None),
        failures("not of this batch"),
        failures("a", "not of this batch"),
        {"batchItemFailures": [{"messageId": "a"}]},
        {"batchItemFailures": ["a"]},
        {"batchItemFailures": "a"},
        "{not json",
        '"a text"',
    ],
)
def test_a_malformed_answer_fails_the_whole_batch(answer: Any) -> None:
    assert succeeded(answered(answer)) == [False, False, False]


@pytest.mark.parametrize("answer", [failures("a"), failures("nobody"), "{not json", b"x".hex()])
def test_without_the_mapping_setting_an_answer_is_not_read(answer: Any) -> None:
    assert succeeded(answered(answer, report=False)) == [True, True, True]


@pytest.mark.parametrize("outcome", [Outcome.RAISED, Outcome.TIMED_OUT, Outcome.CRASHED])
def test_an_invocation_that_did_not_return_fails_every_message(outcome: Outcome) -> None:
    row = Invocation(1, "r", 1, False, 0, 1, outcome, error_type="E", error_message="m")
    found = fates(row, IDS, report_batch_item_failures=True, fields=FIELDS)
    assert found == [Fate(False, Result.FAILED, "E: m")] * 3


def test_results_are_read_from_one_object_a_list_or_an_object_by_message_id() -> None:
    processed, duplicate = {"processed": True}, {"processed": False, "duplicate": True}
    assert [fate.result for fate in answered(processed, ids=["a"])] == [Result.PROCESSED]
    assert [fate.result for fate in answered([processed, duplicate, {}], report=False)] == [
        Result.PROCESSED,
        Result.DUPLICATE,
        None,
    ]
    assert [fate.result for fate in answered({"b": duplicate})] == [None, Result.DUPLICATE, None]


def test_a_field_counts_only_when_it_is_true() -> None:
    assert [fate.result for fate in answered({"processed": "yes"}, ids=["a"])] == [None]
    assert [fate.result for fate in answered({"processed": 1}, ids=["a"])] == [None]


def test_a_batch_without_attributable_results_has_none() -> None:
    assert [fate.result for fate in answered({"processed": True})] == [None, None, None]
