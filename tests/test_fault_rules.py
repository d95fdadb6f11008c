"""Fault rules: how they may be written, what they become, and what is said about mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import UsageError
from analysis.schema import Fault, FaultRuleInfo, MessageKind, RunInfo
from consumer.clock import HostClock
from consumer.faults import KINDS, FaultName, FaultPlan, FaultRule, Place, Where
from consumer.injector import Injector
from consumer.recorder import Recorder
from loadtest.config import FaultFlags, load_settings
from loadtest.fault_rules import FILTERS, may_last, real_rules, rule_info, rule_text
from loadtest.run import what_fired
from tests.cli import loadtest, only_run
from tests.histories import RUN, write_rows

ROOM = "[queue]\nbatch_size = 2\n"
"""Settings under which every fault can be asked for."""


def plan_of(
    cwd: Path, text: str = "", *flags: str, file: Path | None = None, seed: int = 1
) -> FaultPlan:
    (cwd / "loadtest.toml").write_text(ROOM + text)
    asked = FaultFlags(flags, file)
    return load_settings(None, {"load.seed": seed}, cwd, asked).faults


def rules_of(cwd: Path, text: str = "", *flags: str, file: Path | None = None) -> list[str]:
    return [rule_text(rule) for rule in plan_of(cwd, text, *flags, file=file).rules]


def problems_of(cwd: Path, text: str = "", *flags: str, file: Path | None = None) -> list[str]:
    with pytest.raises(UsageError) as caught:
        plan_of(cwd, text, *flags, file=file)
    return str(caught.value).splitlines()


# --- flags ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "rule"),
    [
        ("throttle", FaultRule(FaultName.THROTTLE)),
        ("throttle=0.25", FaultRule(FaultName.THROTTLE, 0.25)),
        ("throttle=1", FaultRule(FaultName.THROTTLE)),
        ("throttle:lasting=1e-3", FaultRule(FaultName.THROTTLE, 0.001, lasting=True)),
        ("lost-reply:silent", FaultRule(FaultName.LOST_REPLY, option="silent")),
        (
            "lost-reply:lasting:silent=0.5",
            FaultRule(FaultName.LOST_REPLY, 0.5, option="silent", lasting=True),
        ),
        ("redrive:early", FaultRule(FaultName.REDRIVE, option="early")),
    ],
)
def test_a_flag_is_one_rule(tmp_path: Path, flag: str, rule: FaultRule) -> None:
    assert plan_of(tmp_path, "", flag).rules == (rule,)


def test_flags_add_up_and_the_plan_has_the_seed_of_the_load(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "", "slow=0.5", "slow:tail", "resend", seed=7)
    assert [rule.name for rule in plan.rules] == ["slow", "slow", "resend"]
    assert plan.seed == 7


def test_a_crash_is_its_three_kinds(tmp_path: Path) -> None:
    assert rules_of(tmp_path, "", "crash=0.3") == [
        "crash-before-call=0.1",
        "crash-after-call=0.1",
        "crash-before-answer=0.1",
    ]


def test_a_flag_stands_in_for_the_files_rules_of_its_name(tmp_path: Path) -> None:
    file = "[faults]\nthrottle = [0.1, { rate = 0.2, lasting = true }]\nslow = 0.3\ncrash = 0.3\n"
    assert rules_of(tmp_path, file, "throttle=0.9", "crash-after-call=0.8") == [
        "slow=0.3",
        "crash-before-call=0.1",
        "crash-before-answer=0.1",
        "throttle=0.9",
        "crash-after-call=0.8",
    ]


def test_a_rate_of_zero_switches_a_rule_off(tmp_path: Path) -> None:
    file = "[faults]\nthrottle = 0.1\nslow = 0\nredrive = true\nresend = false\n"
    assert rules_of(tmp_path, file, "throttle=0", "redrive=0", "freeze=0") == []


names = st.sampled_from([name for name in FaultName if name is not FaultName.CRASH])


@st.composite
def plain_rules(draw: st.DrawFn) -> FaultRule:
    """Every rule that a flag can say."""
    name = draw(names)
    is_for_run = KINDS[name].where is Where.RUN
    return FaultRule(
        name,
        rate=1.0 if is_for_run else draw(st.integers(1, 1000)) / 1000,
        option=draw(st.sampled_from([None, *KINDS[name].options])),
        lasting=may_last(name) and draw(st.booleans()),
    )


@given(st.lists(plain_rules(), max_size=5))
def test_the_text_of_a_rule_is_the_flag_that_asks_for_it(
    tmp_path_factory: pytest.TempPathFactory, rules: list[FaultRule]
) -> None:
    texts = [rule_text(rule) for rule in rules]
    assert plan_of(tmp_path_factory.getbasetemp(), "", *texts).rules == tuple(rules)


# --- the table --------------------------------------------------------------------------


def test_a_table_says_where_a_rule_may_strike(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        [faults]
        lost-reply = { rate = 0.1, operation = "PutItem", call = 2, copy = 1, every = 10 }
        slow = [{ seconds = [0.1, 0.5], option = "tail" }, { service = "sns", seconds = 2 }]
        redeliver-after = { kind = "order", receive = 1, message = 3 }
        receive-without-run = { lasting = true, rate = 0.5 }
        access-denied = { resource = "orders" }
        resend = true
        redrive = { option = "early" }
        """,
    )
    assert plan.rules == (
        FaultRule(FaultName.LOST_REPLY, 0.1, operation="PutItem", call=2, copy=1, every=10),
        FaultRule(FaultName.SLOW, option="tail", seconds=(0.1, 0.5)),
        FaultRule(FaultName.SLOW, service="sns", seconds=(2, 2)),
        FaultRule(FaultName.REDELIVER_AFTER, kind=MessageKind.ORDER, receive=1, message=3),
        FaultRule(FaultName.RECEIVE_WITHOUT_RUN, 0.5, lasting=True),
        FaultRule(FaultName.ACCESS_DENIED, resource="orders"),
        FaultRule(FaultName.RESEND),
        FaultRule(FaultName.REDRIVE, option="early"),
    )
    assert [rule_text(rule) for rule in plan.rules[:4]] == [
        "lost-reply=0.1 operation=PutItem call=2 copy=1 every=10",
        "slow:tail seconds=0.1-0.5",
        "slow service=sns seconds=2",
        "redeliver-after message=3 kind=order receive=1",
    ]


def test_every_fault_can_be_asked_for_with_its_options_and_filters(tmp_path: Path) -> None:
    values = {"service": "dynamodb", "operation": "PutItem", "kind": "copy", "resource": "orders"}
    for name, about in KINDS.items():
        where = Where.INVOCATION if name is FaultName.CRASH else about.where
        given: dict[str, object] = {word: values.get(word, 1) for word in FILTERS[where]}
        if about.operations:
            given["operation"] = about.operations[0]
        for option in (None, *about.options):
            entry = given if option is None else {**given, "option": option}
            text = ", ".join(f"{word} = {json.dumps(value)}" for word, value in entry.items())
            rules = plan_of(tmp_path, f"[faults]\n{name} = {{ {text} }}\n").rules
            assert len(rules) == (3 if name is FaultName.CRASH else 1)
            for rule in rules:
                assert {word: getattr(rule, word) for word in entry} == entry


def test_a_rule_as_the_run_keeps_it() -> None:
    rule = FaultRule(FaultName.THROTTLE, 0.01, lasting=True, operation="PutItem")
    text = "throttle:lasting=0.01 operation=PutItem"
    assert rule_info(rule, 12) == FaultRuleInfo("throttle", text, 0.01, None, True, 12)


# --- a file of its own ------------------------------------------------------------------


def test_a_file_stands_in_for_the_table(tmp_path: Path) -> None:
    (tmp_path / "exact.toml").write_text("[faults]\nthrottle = { message = 3, receive = 1 }\n")
    asked = rules_of(tmp_path, "[faults]\nslow = 0.5\n", "freeze=0.1", file=Path("exact.toml"))
    assert asked == ["throttle message=3 receive=1", "freeze=0.1"]


def test_what_is_wrong_in_a_file_is_named_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "exact.toml").write_text("[fault]\nslow = 1\n[faults]\nslow = 2\n")
    assert problems_of(tmp_path, file=Path("exact.toml")) == [
        "--faults exact.toml: fault: is not a known setting (did you mean faults?); this file may "
        "hold [faults] only",
        "--faults exact.toml: faults.slow: the rate must be from 0 to 1 (got 2)",
    ]
    (problem,) = problems_of(tmp_path, file=Path("none.toml"))
    assert problem == "--faults none.toml: cannot be read: No such file or directory"


# --- a run that was ---------------------------------------------------------------------


def earlier_run(cwd: Path, rules: Iterable[FaultRule], rows: list[Fault]) -> Path:
    infos = tuple(rule_info(rule) for rule in rules)
    plan = replace(RUN.plan, seed=1, orders=200, copies=5)  # the defaults
    run: RunInfo = replace(RUN, faults=infos, plan=plan)
    write_rows(cwd / "earlier", list(rows), run)
    return Path("earlier")


def fired(
    number: int,
    name: str,
    rule: int = 1,
    message_no: int | None = 4,
    receive: int | None = 2,
    call: int | None = None,
    duration_ns: int = 0,
) -> Fault:
    return Fault(
        number, rule, name, number, duration_ns, message_no, receive, call, None, None, None
    )


def test_what_fired_in_a_run_becomes_exact_rules(tmp_path: Path) -> None:
    asked = (
        FaultRule(FaultName.THROTTLE, 0.1, lasting=True, operation="PutItem"),
        FaultRule(FaultName.SLOW, 0.2, option="tail", seconds=(0, 9)),
        FaultRule(FaultName.RECEIVE_WITHOUT_RUN, 0.1, lasting=True),
        FaultRule(FaultName.REDRIVE, option="early"),
    )
    run = earlier_run(
        tmp_path,
        asked,
        [
            # Two attempts of one call, which are one place.
            fired(1, "throttle", call=3),
            fired(2, "throttle", call=3),
            fired(3, "slow", rule=2, message_no=5, call=1, duration_ns=1_500_000_000),
            fired(4, "receive-without-run", rule=3, receive=1),
            fired(5, "receive-without-run", rule=3, receive=2),
            fired(6, "redrive", rule=4, message_no=None, receive=None),
            # Not a message of the plan: no rule could name it.
            fired(7, "throttle", message_no=None, call=1),
        ],
    )
    assert plan_of(tmp_path, "[faults]\nfreeze = 1\n", file=run).rules == (
        FaultRule(FaultName.THROTTLE, lasting=True, message=4, receive=2, call=3),
        FaultRule(FaultName.SLOW, option="tail", seconds=(1.5, 1.5), message=5, receive=2, call=1),
        FaultRule(FaultName.RECEIVE_WITHOUT_RUN, message=4, receive=1),
        FaultRule(FaultName.RECEIVE_WITHOUT_RUN, message=4, receive=2),
        FaultRule(FaultName.REDRIVE, option="early"),
    )


@given(st.integers(1, 2**40), st.integers(1, 30), st.integers(1, 3), st.integers(1, 4))
def test_an_exact_rule_strikes_its_place_and_no_other(
    seed: int, message: int, receive: int, call: int
) -> None:
    rule = FaultRule(FaultName.THROTTLE, message=5, receive=2, call=3)
    place = Place(Where.CALL, message_no=message, receive=receive, call=call)
    strikes = rule.matches(place) and rule.strikes(seed, 1, place)
    assert strikes == ((message, receive, call) == (5, 2, 3))


messages = st.one_of(st.none(), st.integers(1, 3))


@given(st.lists(messages, max_size=8), messages)
def test_rules_that_name_a_message_are_asked_in_the_plans_order(
    named: list[int | None], message: int | None
) -> None:
    plan = FaultPlan(tuple(FaultRule(FaultName.SLOW, message=one) for one in named))
    matching = plan.matching(Place(Where.CALL, message_no=message))
    assert [number for number, _ in matching] == [
        number for number, one in enumerate(named, 1) if one in (None, message)
    ]


def test_the_faults_of_another_plan_are_refused(tmp_path: Path) -> None:
    run = earlier_run(tmp_path, [FaultRule(FaultName.SLOW)], [fired(1, "slow", call=1)])
    for flags in ({"load.seed": 2}, {"load.orders": 100}, {"load.copies": 4}):
        with pytest.raises(UsageError, match="plan; add --seed 1 --orders 200 --copies 5"):
            load_settings(None, flags, tmp_path, FaultFlags(file=run))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (problem,) = problems_of(tmp_path, file=Path("empty"))
    assert problem.startswith("--faults empty: ")
    assert "run.json" in problem


def test_a_run_repeats_what_fired_in_another(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(
        "[load]\norders = 8\ncopies = 2\nconflicts = 0\npoison = 0\nconcurrency = 2\n"
        "[expect]\ncontended_orders = 0\n"
    )
    first = loadtest("run", "--fault", "throttle=0.3", "--seed", "3", cwd=tmp_path)
    then = only_run(tmp_path)
    sql = "SELECT name, message_no, receive, call FROM faults ORDER BY ALL"
    strikes = then.rows(sql)
    assert 0 < len(strikes) < 16, first.out
    (info,) = then.info.faults
    assert (info.text, then.info.fault_seed) == ("throttle=0.3", 3)
    assert info.opportunities >= 16
    then.path.rename(tmp_path / "then")
    again = loadtest("run", "--faults", "then", "--seed", "3", cwd=tmp_path)
    assert "throttle call=1 message=" in again.out
    assert only_run(tmp_path).rows(sql) == strikes


# --- mistakes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        (
            "throtle=1",
            'no fault is called "throtle" (did you mean throttle?); loadtest faults lists them all',
        ),
        ("", 'no fault is called ""; loadtest faults lists them all'),
        ("slow=2", 'the rate must be a number from 0 to 1 (got "2")'),
        ("slow=-0.1", 'the rate must be a number from 0 to 1 (got "-0.1")'),
        ("slow=nan", 'the rate must be a number from 0 to 1 (got "nan")'),
        ("slow=", 'the rate must be a number from 0 to 1 (got "")'),
        ("slow=2%", 'the rate must be a number from 0 to 1 (got "2%")'),
        (
            "server-error:aplied",
            '"aplied" is no option of server-error (did you mean applied?); its options: applied, '
            "unavailable",
        ),
        ("throttle:silent", '"silent" is no option of throttle; it has none'),
        (
            "slow:tail:tail",
            '"tail" is one word too many: write NAME:OPTION:lasting=RATE',
        ),
        (
            "timeout:lasting",
            "lasting does not go with timeout: the process is gone, so no further attempt meets it",
        ),
        (
            "freeze:lasting",
            "lasting does not go with freeze: it is met once by each invocation",
        ),
        ("redrive=0.5", "takes no rate: redrive is done once in a run"),
    ],
)
def test_what_is_wrong_with_a_flag_is_named_by_the_flag(
    tmp_path: Path, flag: str, problem: str
) -> None:
    assert problems_of(tmp_path, "", flag) == [f"--fault {flag}: {problem}"]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            "lost-repli = 1",
            'lost-repli: no fault is called "lost-repli" (did you mean lost-reply?); '
            "loadtest faults lists them all",
        ),
        ("slow = 1.5", "slow: the rate must be from 0 to 1 (got 1.5)"),
        ("slow = nan", "slow: the rate must be from 0 to 1 (got NaN)"),
        ("slow = true", "slow: must be a rate from 0 to 1, or a table (got true)"),
        ('slow = [1, "x"]', 'slow[1]: must be a rate from 0 to 1, or a table (got "x")'),
        ("redrive = 1", "redrive: must be true, it is done once, or a table (got 1)"),
        ("slow = { rate = 2 }", "slow.rate: must be at most 1 (got 2)"),
        ("slow = { rat = 1 }", "slow.rat: is not a known setting (did you mean rate?)"),
        ("slow = { call = 0 }", "slow.call: must be at least 1 (got 0)"),
        (
            'slow = { kind = "orders" }',
            "slow.kind: must be 'order', 'copy', 'conflict' or 'poison' (got \"orders\")",
        ),
        (
            "slow = { seconds = [2, 1] }",
            "slow.seconds: must be 0 or more, the lowest first (got [2, 1])",
        ),
        (
            'slow = { seconds = "2" }',
            'slow.seconds: must be a number of seconds or [lowest, highest] (got "2")',
        ),
        (
            "throttle = { seconds = 1 }",
            "throttle: seconds does not go with throttle: it has no duration",
        ),
        (
            "long-delay = { seconds = 901 }",
            "long-delay: seconds must be at most 900, the longest delay of SQS",
        ),
        (
            'freeze = { operation = "PutItem" }',
            "freeze: operation does not go with freeze, which strikes one invocation; it can be "
            "narrowed by message, copy, kind, every, receive",
        ),
        (
            "long-delay = { receive = 1 }",
            "long-delay: receive does not go with long-delay, which strikes one message; it can "
            "be narrowed by message, copy, kind, every",
        ),
        (
            "resend = { copy = 1 }",
            "resend: copy does not go with resend, which concerns the whole run",
        ),
        (
            "crash = { call = 2 }",
            "crash: call does not go with crash, one of whose kinds knows no call: name "
            "crash-before-call or crash-after-call",
        ),
        (
            "redeliver-during = { lasting = true, receive = 1 }",
            "redeliver-during: receive does not go with lasting, which is met by every receive",
        ),
        (
            'stale-read = { operation = "PutItem" }',
            'stale-read: stale-read never meets the operation "PutItem" (did you mean GetItem?); '
            "only GetItem, BatchGetItem, Query, Scan",
        ),
        (
            'transaction-conflict = { service = "sqs" }',
            'transaction-conflict: transaction-conflict never meets the service "sqs"; '
            "only dynamodb",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_named_by_file_and_key(
    tmp_path: Path, rule: str, problem: str
) -> None:
    assert problems_of(tmp_path, f"[faults]\n{rule}\n") == [f"loadtest.toml: faults.{problem}"]


def test_faults_must_be_a_table(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text("faults = 1\n")
    with pytest.raises(UsageError, match=r"faults: must be a table, \[faults\] \(got 1\)"):
        load_settings(None, {}, tmp_path)


@pytest.mark.parametrize(
    ("flag", "settings", "problem"),
    [
        (
            "same-message-twice",
            {"queue.batch_size": 1},
            "--batch-size: must be at least 2 for same-message-twice (got 1)",
        ),
        (
            "redeliver-during",
            {"load.concurrency": 1},
            "--concurrency: must be at least 2 for redeliver-during, which keeps two environments "
            "at work on one message (got 1)",
        ),
    ],
)
def test_what_the_run_cannot_carry_out_is_refused(
    tmp_path: Path, flag: str, settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(None, settings, tmp_path, FaultFlags((flag,)))
    assert str(caught.value) == problem


@pytest.mark.parametrize("name", ["out-of-order", "long-delay"])
def test_what_a_fifo_queue_does_not_do_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = problems_of(tmp_path, "fifo = true\n", name)
    assert problem.startswith(f"loadtest.toml: queue.fifo: must be false for {name}: ")


@pytest.mark.parametrize(
    ("platform", "cause"), [("darwin", "works on Linux only"), ("linux", "needs the package")]
)
def test_a_clock_that_cannot_be_set_ahead_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, cause: str
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = problems_of(tmp_path, "", "clock")
    assert problem.startswith("faults: clock ")
    assert cause in problem


# --- real names -------------------------------------------------------------------------


def test_resources_get_the_names_of_the_run() -> None:
    names = {"table:orders": "run-orders", "queue:out": "run-out", "queue:out_url": "http://x"}
    resources = ("orders", "out", "elsewhere", None)
    plan = FaultPlan(tuple(FaultRule(FaultName.SLOW, resource=one) for one in resources), seed=3)
    real = real_rules(plan, names)
    assert [rule.resource for rule in real.rules] == ["run-orders", "run-out", "elsewhere", None]
    assert real.seed == 3


def test_a_resource_is_met_where_its_real_name_is_another(
    tmp_path: Path, emulator_url: str
) -> None:
    (tmp_path / "loadtest.toml").write_text(
        "[load]\norders = 2\ncopies = 2\nconflicts = 0\npoison = 0\nconcurrency = 2\n"
        '[faults]\nslow = { resource = "orders", seconds = 0.01 }\n'
    )
    ended = loadtest("run", "--endpoint-url", emulator_url, cwd=tmp_path)
    run = only_run(tmp_path)
    (info,) = run.info.faults
    assert info.text == "slow resource=orders seconds=0.01"
    (count,) = run.rows("SELECT count(*) AS fired FROM faults")
    assert count["fired"] == info.opportunities > 0, ended.said


# --- the list ---------------------------------------------------------------------------


def test_the_list_names_every_fault_on_a_line_of_its_own(tmp_path: Path) -> None:
    ended = loadtest("faults", cwd=tmp_path)
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == list(FaultName)
    line = next(line for line in ended.out.splitlines() if line.startswith("slow "))
    assert "0.05-0.5" in line
    assert line.endswith("; options :tail :lasting")
    assert "\x1b" not in ended.out


def test_the_list_for_machines(tmp_path: Path) -> None:
    ended = loadtest("faults", "--json", cwd=tmp_path)
    rows = {row["name"]: row for row in json.loads(ended.out)}
    assert list(rows) == list(FaultName)
    assert rows["crash-after-call"]["lasting"] is False
    assert rows["server-error"]["options"] == ["applied", "unavailable"]
    assert rows["freeze"]["seconds"] == [1.0, 1.0]
    assert rows["resend"]["filters"] == []
    assert all(row["imitates"] and row["source"] for row in rows.values())


def test_the_list_on_a_terminal_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ended = loadtest("faults", cwd=tmp_path)
    assert "each strikes one acknowledgement" in ended.out
    assert all(name in ended.out for name in FaultName)
    assert max(map(len, ended.out.splitlines())) < 160


# --- what is said of it -----------------------------------------------------------------


def carried_out(cwd: Path, rules: Iterable[FaultRule], places: int, fired: int) -> list[str]:
    """What the end of a run says when each call of this many messages was struck, and the
    fault carried out at the first ones."""
    plan = FaultPlan(tuple(rules))
    recorder = Recorder(cwd / "evidence")
    injector = Injector(plan, recorder, HostClock())
    for number in range(1, places + 1):
        strike = injector.strike(Where.DELIVERY, FaultName.OUT_OF_ORDER, message_no=number)
        if strike is not None and number <= fired:
            injector.fire(strike)
    recorder.close()
    return list(what_fired(plan.rules, injector.fired, injector.opportunities))


@pytest.mark.parametrize(
    ("places", "fired", "said"),
    [
        (3, 2, "fired 2 times, 3 places matched"),
        (1, 0, "never fired: 1 place matched, and at none was it carried out"),
        (0, 0, "never fired: no delivery of this run matched"),
    ],
)
def test_the_end_of_a_run_says_what_fired(
    tmp_path: Path, places: int, fired: int, said: str
) -> None:
    rules = [FaultRule(FaultName.OUT_OF_ORDER)]
    assert carried_out(tmp_path, rules, places, fired) == [f"fault out-of-order {said}"]


def test_of_many_rules_only_those_that_never_fired_are_named(tmp_path: Path) -> None:
    rules = [FaultRule(FaultName.OUT_OF_ORDER, message=number) for number in range(1, 31)]
    said = carried_out(tmp_path, rules, places=7, fired=7)
    assert said[0] == "7 faults fired, by 7 of 30 rules"
    assert said[1].startswith("fault out-of-order message=8 never fired: ")
    assert len(said) == 22
    assert said[-1] == "and 3 more fault rules never fired"
