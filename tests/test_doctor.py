"""Advice: what is said before a run, about a queue that is there, and after a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from loadtest.config import FaultFlags, load_settings
from loadtest.doctor import Advice, Level, examine, examine_queue, examine_run
from loadtest.run import plan_of
from tests.cli import loadtest, only_run
from tests.histories import write_history

SOUND = """
[handler]
timeout = 2
[queue]
visibility_timeout = 12
max_receive_count = 5
"""


def advice_of(cwd: Path, text: str = "", *faults: str) -> list[Advice]:
    (cwd / "loadtest.toml").write_text(text or SOUND)
    settings = load_settings(None, {}, cwd, FaultFlags(faults))
    return list(examine(settings, plan_of(settings)))


def said(advice: list[Advice]) -> list[tuple[Level, str]]:
    return [(one.level, one.place) for one in advice]


# --- settings ---------------------------------------------------------------------------


def test_a_sound_configuration_gets_no_advice(tmp_path: Path) -> None:
    assert advice_of(tmp_path) == []


def test_short_visibility_and_few_receives_are_hints(tmp_path: Path) -> None:
    text = "[handler]\ntimeout = 2\n[queue]\nvisibility_timeout = 11\nmax_receive_count = 4\n"
    visibility, receives = advice_of(tmp_path, text)
    assert str(visibility) == (
        "queue.visibility_timeout: is 11 s; AWS advises 6 times the function's timeout, 12 s, so "
        "that a throttled batch can be tried again in time. Raise it on the real queue; for a test "
        "a short one is quicker."
    )
    assert str(receives) == (
        "queue.max_receive_count: is 4; AWS advises 5 or more with Lambda, because throttling "
        "spends receives too. Raise it on the real queue; for a test few are quicker."
    )
    assert {visibility.level, receives.level} == {Level.HINT}


def test_the_batching_window_adds_to_the_visibility_timeout(tmp_path: Path) -> None:
    assert advice_of(tmp_path, SOUND.replace("12", "15") + "batching_window = 3\n") == []
    (hint,) = advice_of(tmp_path, SOUND.replace("12", "14") + "batching_window = 3\n")
    assert "6 times the function's timeout and the batching window, 15 s" in hint.cause


@pytest.mark.parametrize(
    ("batch", "warned"),
    [
        ("batch_size = 2", True),
        ("batch_size = 2\nreport_batch_item_failures = true", False),
        ("batch_size = 1", False),
    ],
)
def test_batches_without_failure_reports_are_a_warning(
    tmp_path: Path, batch: str, warned: bool
) -> None:
    advice = advice_of(tmp_path, SOUND + batch)
    place = (Level.WARNING, "queue.report_batch_item_failures")
    assert said(advice) == ([place] if warned else [])


@pytest.mark.parametrize(("limit", "warned"), [(59, True), (60, False)])
def test_a_drain_limit_that_no_dead_letter_can_meet_is_a_warning(
    tmp_path: Path, limit: int, warned: bool
) -> None:
    advice = advice_of(tmp_path, f"{SOUND}[load]\ndrain_limit = {limit}\n")
    assert said(advice) == ([(Level.WARNING, "load.drain_limit")] if warned else [])
    # Without messages that fail nothing takes that long.
    calm = f"{SOUND}[load]\ndrain_limit = {limit}\nconflicts = 0\npoison = 0\n"
    assert advice_of(tmp_path, calm) == []


def test_poison_that_may_be_dropped_and_is_not_sent_is_a_hint(tmp_path: Path) -> None:
    text = f'{SOUND}[load]\npoison = 0\n[expect]\npoison = "drop"\n'
    assert said(advice_of(tmp_path, text)) == [(Level.HINT, "expect.poison")]


# --- fault rules ------------------------------------------------------------------------

PLAN = "[load]\norders = 10\ncopies = 2\nconflicts = 0\npoison = 0.1\n"  # 21 messages


@pytest.mark.parametrize(
    "rule",
    [
        "slow = { message = 21 }",
        "slow = { copy = 2 }",
        "slow = { every = 11 }",  # the eleventh is poison
        'slow = { kind = "poison" }',
        "slow = { receive = 5 }",
        'slow = { operation = "PutItem", service = "dynamodb", resource = "orders" }',
        'slow = { operation = "POST v2" }',
        "short-visibility = { seconds = 11 }",
        "redrive = true",
    ],
)
def test_a_rule_that_can_strike_gets_no_advice(tmp_path: Path, rule: str) -> None:
    assert advice_of(tmp_path, f"{SOUND}{PLAN}[faults]\n{rule}\n") == []


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("slow = { message = 22 }", "none of the plan's 21 messages matches"),
        ("slow = { copy = 3 }", "none of the plan's 21 messages matches"),
        ("slow = { every = 12 }", "none of the plan's 21 messages matches"),
        ('slow = { kind = "conflict" }', "none of the plan's 21 messages matches"),
        ('slow = { copy = 2, kind = "poison" }', "none of the plan's 21 messages matches"),
        ("slow = { message = 3, copy = 9 }", "none of the plan's 21 messages matches"),
        ("slow = { receive = 6 }", "after 5 receives a message goes to the dead-letter queue"),
        ("short-visibility = { seconds = 12 }", "no shorter than queue.visibility_timeout, 12 s"),
        ("long-delay = { seconds = 900 }", "may outlast load.drain_limit"),
        (
            'slow = { service = "dynamodb", operation = "PutItems" }',
            'no operation "PutItems" (did you mean PutItem?)',
        ),
        (
            'stale-read = { resource = "order" }',
            'no [[table]] is called "order" (did you mean orders?); declared: orders, reference',
        ),
    ],
)
def test_a_rule_that_cannot_strike_is_a_warning(tmp_path: Path, rule: str, cause: str) -> None:
    (advice,) = advice_of(tmp_path, f"{SOUND}{PLAN}[faults]\n{rule}\n")
    assert advice.level is Level.WARNING
    assert advice.place.startswith(f"fault {rule.partition(' ')[0]}")
    assert cause in advice.cause


@pytest.mark.parametrize(
    ("rule", "warned"),
    [
        ("redeliver-after = 1", True),
        ("redeliver-after = { receive = 1 }", False),
        ("receive-without-run = { lasting = true }", False),
        ("clock = 1", True),
        ("clock = { receive = 1 }", False),
        ("item-deleted = 1", False),
    ],
)
def test_a_rule_that_would_cost_the_only_receive_is_a_warning(
    tmp_path: Path, rule: str, warned: bool
) -> None:
    text = f"{SOUND.replace('= 5', '= 1')}{PLAN}[faults]\n{rule}\n"
    rules = [one for one in advice_of(tmp_path, text) if one.place.startswith("fault ")]
    assert [one.level for one in rules] == ([Level.WARNING] if warned else [])


# --- the command ------------------------------------------------------------------------


def test_hints_alone_are_no_reason_to_fail(tmp_path: Path) -> None:
    ended = loadtest("doctor", cwd=tmp_path)
    assert ended.code == 0
    assert "hint: queue.max_receive_count: is 3; " in ended.out
    assert ended.out.splitlines()[-1] == "0 errors, 0 warnings, 2 hints"


def test_a_warning_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(f"{SOUND}batch_size = 3\n")
    ended = loadtest("doctor", "--config", "other.toml", cwd=tmp_path)
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == "0 errors, 1 warning, 0 hints"


def test_a_wrong_configuration_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(
        "[handler]\ntimeout = 9\n[queue]\nvisibility_timeout = 8"
    )
    ended = loadtest("doctor", cwd=tmp_path)
    assert ended.code == 2
    assert "AWS refuses the mapping" in ended.said


def test_a_queue_needs_its_endpoint(tmp_path: Path) -> None:
    ended = loadtest("doctor", "--queue", "orders", cwd=tmp_path)
    assert ended.code == 2
    assert "--endpoint-url and --queue go together" in ended.said


def test_a_run_tells_warnings_before_it_starts_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(
        "[load]\norders = 1\ncopies = 2\nconflicts = 0\npoison = 0\nconcurrency = 2\n"
        "[queue]\nbatch_size = 2\n"
    )
    ended = loadtest("run", "--fault", "short-visibility=0", cwd=tmp_path)
    assert "warning: queue.report_batch_item_failures: is false with batches of 2" in ended.err
    assert "hint" not in ended.err
    assert only_run(tmp_path).info.faults == ()


# --- a queue that is there --------------------------------------------------------------


def make_queue(url: str, name: str, *, dead_letter: str | None = None, **more: Any) -> None:
    sqs = boto3.client("sqs", endpoint_url=url, region_name="us-east-1")
    attributes = {key: str(value) for key, value in more.items()}
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if dead_letter is not None:
        target = f"arn:aws:sqs:us-east-1:000000000000:{dead_letter}"
        policy = {"deadLetterTargetArn": target, "maxReceiveCount": 3}
        attributes["RedrivePolicy"] = json.dumps(policy)
    sqs.create_queue(QueueName=name, Attributes=attributes)


def queue_advice(cwd: Path, url: str, name: str) -> list[Advice]:
    (cwd / "loadtest.toml").write_text(SOUND)
    return list(examine_queue(url, name, load_settings(None, {}, cwd)))


def test_an_existing_queue_is_looked_over(tmp_path: Path, emulator_url: str) -> None:
    make_queue(emulator_url, "doctor-dlq", MessageRetentionPeriod=1_209_600)
    make_queue(emulator_url, "doctor", dead_letter="doctor-dlq", VisibilityTimeout=1)
    assert said(queue_advice(tmp_path, emulator_url, "doctor")) == [
        (Level.ERROR, "VisibilityTimeout"),
        (Level.HINT, "RedrivePolicy.maxReceiveCount"),
    ]


def test_a_queue_without_a_dead_letter_queue_is_a_warning(
    tmp_path: Path, emulator_url: str
) -> None:
    make_queue(emulator_url, "doctor-alone", VisibilityTimeout=12)
    advice = queue_advice(tmp_path, emulator_url, "doctor-alone")
    assert said(advice) == [(Level.WARNING, "RedrivePolicy")]


@pytest.mark.parametrize(
    ("name", "dead_letter"), [("mixed.fifo", "mixed-dlq"), ("mixed", "mixed-dlq.fifo")]
)
def test_a_dead_letter_queue_of_the_other_type_is_an_error(
    tmp_path: Path, emulator_url: str, name: str, dead_letter: str
) -> None:
    make_queue(emulator_url, dead_letter, MessageRetentionPeriod=1_209_600)
    make_queue(emulator_url, name, dead_letter=dead_letter, VisibilityTimeout=12)
    advice = queue_advice(tmp_path, emulator_url, name)
    assert (Level.ERROR, "RedrivePolicy.deadLetterTargetArn") in said(advice)


def test_dead_letters_that_are_kept_no_longer_are_a_hint(tmp_path: Path, emulator_url: str) -> None:
    make_queue(emulator_url, "brief-dlq")
    make_queue(emulator_url, "brief", dead_letter="brief-dlq", VisibilityTimeout=12)
    advice = queue_advice(tmp_path, emulator_url, "brief")
    assert (Level.HINT, "MessageRetentionPeriod") in said(advice)


def test_a_queue_is_named_by_its_url_too(tmp_path: Path, emulator_url: str) -> None:
    make_queue(emulator_url, "by-url", VisibilityTimeout=1)
    options = ("--endpoint-url", emulator_url, "--queue", f"{emulator_url}/000000000000/by-url")
    ended = loadtest("doctor", *options, cwd=tmp_path)
    assert ended.code == 1
    assert "error: VisibilityTimeout: is 1 s, below the function's timeout" in ended.out


def test_a_queue_that_is_not_there_is_said_to_be_so(tmp_path: Path, emulator_url: str) -> None:
    ended = loadtest("doctor", "--endpoint-url", emulator_url, "--queue", "nobody", cwd=tmp_path)
    assert ended.code == 4
    assert "could not be asked about the queue nobody" in ended.said


# --- conditions -------------------------------------------------------------------------


def conditions(cwd: Path, history: str) -> list[str]:
    return [str(one) for one in examine_run(write_history(cwd / "run", history))]


def test_a_condition_on_what_no_item_has_cannot_fail(tmp_path: Path) -> None:
    put = "+/cond=attribute_not_exists(version)"
    assert conditions(tmp_path, f"1<A4 1{put} 1>p 2<B4 2{put} 2>p") == [
        "condition attribute_not_exists(version): cannot fail: no item of orders ever had version. "
        "2 writes relied on it. Ask for the table's key: attribute_not_exists(id)."
    ]


@pytest.mark.parametrize(
    "history",
    [
        # The key, what items have, what they have later, and what was refused once.
        "1<A4 1+/cond=attribute_not_exists(id) 1>p",
        "1<A4 1+/cond=attribute_not_exists(quantity) 1>p",
        "1<A4 1+/cond=attribute_not_exists(done) 1>p 2<B4 2+/any/done=1 2>p",
        "1<A4 1+/cond=attribute_not_exists(x) 1>p 2<A4 2-/cond=attribute_not_exists(x) 2>d",
        # More than this can tell, and no condition at all.
        "1<A4 1+/cond=attribute_not_exists(x)_OR_y=1 1>p",
        "1<A4 1+/any 1>p",
        # Nothing relied on it.
        "1<A4 1?/cond=attribute_not_exists(x) 1>f",
        # Not judged by what it holds.
        "1<A4 1+ 1+/on=other/cond=attribute_not_exists(x) 1>p",
    ],
)
def test_other_conditions_are_left_alone(tmp_path: Path, history: str) -> None:
    assert conditions(tmp_path, history) == []


def test_the_command_looks_into_a_run(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(SOUND)
    write_history(tmp_path / "run", "1<A4 1+/cond=attribute_not_exists(version) 1>p")
    ended = loadtest("doctor", "run", cwd=tmp_path)
    assert ended.code == 1
    assert "warning: condition attribute_not_exists(version): cannot fail" in ended.out
    machines = loadtest("doctor", "run", "--json", cwd=tmp_path)
    assert machines.code == 1
    (warning,) = (one for one in json.loads(machines.out) if one["level"] == "warning")
    assert warning["place"] == "condition attribute_not_exists(version)"
    assert set(warning) == {"level", "place", "cause", "cure"}
