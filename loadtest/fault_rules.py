"""Fault rules as a user writes them: in a configuration, in a file of their own, as flags.

A flag is ``NAME[:OPTION][:lasting][=RATE]``: ``lost-reply:silent=0.02``. A table says more::

    [faults]
    throttle = 0.01
    crash = { rate = 0.3, operation = "PutItem", copy = 1, every = 10 }
    slow = [{ seconds = [0.1, 0.5] }, { rate = 0.01, seconds = 20, option = "tail" }]
    redrive = true

A rate of 0 asks for nothing, so that a flag can switch off what a file asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.errors import EvidenceError, UsageError
from analysis.schema import FaultRuleInfo, RunInfo
from analysis.store import load_run, open_evidence
from consumer.faults import KINDS, LASTING, FaultName, FaultPlan, FaultRule, Kind, Where, expanded
from consumer.handler_clock import library
from loadtest.problems import Problems, did_you_mean, names_of, parse_section
from loadtest.sections import FaultSection, LoadSettings, QueueSettings, shown

_MESSAGE_FILTERS = ("message", "copy", "kind", "every")
FILTERS: Mapping[Where, tuple[str, ...]] = {
    Where.CALL: ("service", "operation", "resource", "call", *_MESSAGE_FILTERS, "receive"),
    Where.INVOCATION: (*_MESSAGE_FILTERS, "receive"),
    Where.DELIVERY: (*_MESSAGE_FILTERS, "receive"),
    Where.ACK: (*_MESSAGE_FILTERS, "receive"),
    Where.MESSAGE: _MESSAGE_FILTERS,
    Where.RUN: (),
}
"""Which filters a rule may have, by what its fault strikes."""

_CALL_FILTERS = FILTERS[Where.CALL][:4]
_NO_ATTEMPT_FOLLOWS: Mapping[FaultName, str] = {
    FaultName.CRASH: "the process is gone",
    FaultName.CRASH_BEFORE_CALL: "the process is gone",
    FaultName.CRASH_AFTER_CALL: "the process is gone",
    FaultName.TIMEOUT: "the process is gone",
    FaultName.STALE_READ: "the call succeeds",
    FaultName.PARTIAL_BATCH_WRITE: "the call succeeds",
    FaultName.TRANSACTION_IN_PROGRESS: "it meets the next attempt as it is",
}
_MAX_DELAY_S = 900
"""DelaySeconds of SQS (API reference, SendMessage)."""


# --- reading ----------------------------------------------------------------------------


def rules_of_table(data: object, problems: Problems) -> tuple[FaultRule, ...]:
    """The rules of a ``[faults]`` table."""
    if not isinstance(data, dict):
        problems.add("faults", f"must be a table, [faults] (got {shown(data)})")
        return ()
    rules: list[FaultRule] = []
    for name, value in data.items():
        several = isinstance(value, list)
        for number, entry in enumerate(value if several else [value]):
            at = f"faults.{name}[{number}]" if several else f"faults.{name}"
            known = _known_name(name, at, problems)
            if known is not None:
                rules += _rules_of_entry(known, entry, at, problems)
    return tuple(rules)


def _rules_of_entry(
    name: FaultName, entry: object, at: str, problems: Problems
) -> tuple[FaultRule, ...]:
    is_for_run = KINDS[name].where is Where.RUN
    match entry:
        case bool() if is_for_run:
            given: dict[str, Any] | None = {} if entry else None
        case int() | float() if not isinstance(entry, bool) and not is_for_run:
            if not 0 <= entry <= 1:  # also for a NaN
                problems.add(at, f"the rate must be from 0 to 1 (got {shown(entry)})")
                return ()
            given = {"rate": float(entry)}
        case dict():
            given = entry
        case _:
            wanted = "true, it is done once" if is_for_run else "a rate from 0 to 1"
            problems.add(at, f"must be {wanted}, or a table (got {shown(entry)})")
            return ()
    if given is None:
        return ()
    section = parse_section(FaultSection, given, at, problems)
    return () if section is None else _rules(name, section, at, problems)


def rules_of_flags(texts: Iterable[str], problems: Problems) -> tuple[FaultRule, ...]:
    """The rules of ``--fault`` flags; a rate of 0 gives a rule that strikes nothing."""
    rules: list[FaultRule] = []
    for text in texts:
        at = f"--fault {text}"
        head, has_rate, rate_text = text.partition("=")
        name_text, *words = head.split(":")
        name = _known_name(name_text, at, problems)
        if name is None:
            continue
        given: dict[str, Any] = {}
        for word in words:
            key = "lasting" if word == LASTING else "option"
            if key in given:
                problems.add(at, f'"{word}" is one word too many: write NAME:OPTION:lasting=RATE')
            given[key] = True if word == LASTING else word
        if has_rate:
            rate = _rate(rate_text)
            if rate is None:
                problems.add(at, f'the rate must be a number from 0 to 1 (got "{rate_text}")')
                continue
            given["rate"] = rate
        section = parse_section(FaultSection, given, at, problems)
        if section is not None:
            rules += _rules(name, section, at, problems)
    return tuple(rules)


def _rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if 0 <= rate <= 1 else None


def _known_name(text: str, at: str, problems: Problems) -> FaultName | None:
    try:
        return FaultName(text)
    except ValueError:
        hint = did_you_mean(text, FaultName)
        problems.add(at, f'no fault is called "{text}"{hint}; loadtest faults lists them all')
        return None


def rules_of_run(run_dir: Path) -> tuple[RunInfo, tuple[FaultRule, ...]]:
    """What fired in an earlier run, as rules that strike exactly there and nowhere else.

    A fault is named by its message, receive and call. What struck something that is not one
    of the plan's messages cannot be named so, and is left out.

    :raises EvidenceError: the run cannot be read.
    """
    run = load_run(run_dir)
    with open_evidence(run_dir) as evidence:
        rows = evidence.rows(
            "SELECT rule, name, message_no, receive, call, any_value(duration_ns) AS duration_ns "
            "FROM faults GROUP BY ALL ORDER BY min(fault_id)"
        )
    rules = []
    for row in rows:
        if not 0 < row["rule"] <= len(run.faults):
            raise EvidenceError(f"{run_dir}: its faults name rule {row['rule']}, which it lacks")
        asked = run.faults[row["rule"] - 1]
        name = FaultName(row["name"])
        about = KINDS[name]
        if row["message_no"] is None and about.where is not Where.RUN:
            continue
        duration_s = row["duration_ns"] / 1e9
        rules.append(
            FaultRule(
                name,
                option=asked.option,
                # Of a delivery every receive it met has a row of its own.
                lasting=asked.lasting and about.where is Where.CALL,
                seconds=None if about.seconds is None else (duration_s, duration_s),
                message=row["message_no"],
                receive=row["receive"],
                call=row["call"],
            )
        )
    return run, tuple(rules)


# --- checking ---------------------------------------------------------------------------


def may_last(name: FaultName) -> bool:
    """Whether ``lasting`` may follow the name."""
    return KINDS[name].where in (Where.CALL, Where.DELIVERY) and name not in _NO_ATTEMPT_FOLLOWS


def options_text(name: FaultName) -> str:
    """What may follow the name: ``:silent :lasting``."""
    options = [*KINDS[name].options, *([LASTING] if may_last(name) else [])]
    return " ".join(f":{option}" for option in options)


def _rules(
    name: FaultName, section: FaultSection, at: str, problems: Problems
) -> tuple[FaultRule, ...]:
    """The rule, ``crash`` as its three; none if something about it is wrong."""
    before = len(problems.lines)
    about = KINDS[name]
    for text in _mistakes(name, about, section):
        problems.add(at, text)
    if len(problems.lines) > before:
        return ()
    return expanded(
        FaultRule(
            name,
            rate=section.rate,
            option=section.option,
            lasting=section.lasting,
            seconds=section.seconds,
            service=section.service,
            operation=section.operation,
            resource=section.resource,
            call=section.call,
            message=section.message,
            copy=section.copy_no,
            kind=section.kind,
            receive=section.receive,
            every=section.every,
        )
    )


def _mistakes(name: FaultName, about: Kind, section: FaultSection) -> Iterable[str]:
    option = section.option
    if option is not None and option not in about.options:
        known = f"its options: {', '.join(about.options)}" if about.options else "it has none"
        yield f'"{option}" is no option of {name}{did_you_mean(option, about.options)}; {known}'
    if section.lasting and not may_last(name):
        why = f"it is met once by each {about.where}"
        if name in _NO_ATTEMPT_FOLLOWS:
            why = f"{_NO_ATTEMPT_FOLLOWS[name]}, so no further attempt meets it"
        yield f"lasting does not go with {name}: {why}"
    elif section.lasting and about.where is Where.DELIVERY and section.receive is not None:
        yield "receive does not go with lasting, which is met by every receive"
    if section.seconds is not None:
        if about.seconds is None:
            yield f"seconds does not go with {name}: it has no duration"
        elif name is FaultName.LONG_DELAY and section.seconds[1] > _MAX_DELAY_S:
            yield f"seconds must be at most {_MAX_DELAY_S}, the longest delay of SQS"
    if about.where is Where.RUN and section.rate > 0 and "rate" in section.model_fields_set:
        yield f"takes no rate: {name} is done once in a run"
    allowed = FILTERS[about.where]
    if name is FaultName.CRASH:
        allowed = tuple(word for word in allowed if word not in _CALL_FILTERS)
    for field, word in zip(FaultSection.model_fields, names_of(FaultSection), strict=True):
        if word not in FILTERS[Where.CALL] or getattr(section, field) is None or word in allowed:
            continue
        if name is FaultName.CRASH:
            yield (
                f"{word} does not go with crash, one of whose kinds knows no call: "
                "name crash-before-call or crash-after-call"
            )
        elif allowed:
            yield (
                f"{word} does not go with {name}, which strikes one {about.where}; it can be "
                f"narrowed by {', '.join(allowed)}"
            )
        else:
            yield f"{word} does not go with {name}, which concerns the whole run"
    for word, value, possible in (
        ("service", section.service, about.services),
        ("operation", section.operation, about.operations),
    ):
        if value is not None and possible and value not in possible:
            hint = did_you_mean(value, possible)
            yield f'{name} never meets the {word} "{value}"{hint}; only {", ".join(possible)}'


def check_rules(
    rules: Sequence[FaultRule], queue: QueueSettings, load: LoadSettings, problems: Problems
) -> None:
    """Whether the run can carry out what the rules ask for."""
    names = {rule.name for rule in rules}
    if FaultName.SAME_MESSAGE_TWICE in names and queue.batch_size < 2:
        problems.add(
            "queue.batch_size", f"must be at least 2 for {FaultName.SAME_MESSAGE_TWICE} (got 1)"
        )
    if FaultName.REDELIVER_DURING in names and load.concurrency < 2:
        problems.add(
            "load.concurrency",
            f"must be at least 2 for {FaultName.REDELIVER_DURING}, which keeps two environments "
            "at work on one message (got 1)",
        )
    for name, why in (
        (FaultName.OUT_OF_ORDER, "a FIFO queue keeps its order"),
        (FaultName.LONG_DELAY, "a FIFO queue delays no single message"),
    ):
        if name in names and queue.fifo:
            problems.add("queue.fifo", f"must be false for {name}: {why}")
    if FaultName.CLOCK in names:
        try:
            library()
        except UsageError as error:
            problems.lines.append(str(error))


def with_flags(rules: Sequence[FaultRule], flags: Sequence[FaultRule]) -> tuple[FaultRule, ...]:
    """The file's rules and the flags', which stand in for rules of the same name."""
    named = {rule.name for rule in flags}
    kept = (*(rule for rule in rules if rule.name not in named), *flags)
    return tuple(rule for rule in kept if rule.rate > 0)


def real_rules(plan: FaultPlan, names: Mapping[str, str]) -> FaultPlan:
    """The plan with the resources of its rules as the services know them.

    :param names: the run's own: placeholder (``table:orders``) -> real name.
    """

    def real(resource: str) -> str:
        kinds = ("table", "topic", "queue")
        return next(
            (names[f"{kind}:{resource}"] for kind in kinds if f"{kind}:{resource}" in names),
            resource,
        )

    return replace(
        plan,
        rules=tuple(
            rule if rule.resource is None else replace(rule, resource=real(rule.resource))
            for rule in plan.rules
        ),
    )


# --- writing ----------------------------------------------------------------------------


def rule_text(rule: FaultRule) -> str:
    """A rule on one line: ``throttle:lasting=0.01 operation=PutItem seconds=0.1-0.5``."""
    head = ":".join(
        part for part in (rule.name, rule.option, LASTING if rule.lasting else None) if part
    )
    if rule.rate < 1:
        head += f"={rule.rate:.6g}"
    filters = {word: getattr(rule, word) for word in FILTERS[Where.CALL]}
    parts = [head, *(f"{word}={value}" for word, value in filters.items() if value is not None)]
    if rule.seconds is not None:
        low, high = rule.seconds
        parts.append(f"seconds={low:g}" if low == high else f"seconds={low:g}-{high:g}")
    return " ".join(parts)


def rule_info(rule: FaultRule, opportunities: int = 0) -> FaultRuleInfo:
    """A rule as ``run.json`` keeps it."""
    return FaultRuleInfo(
        name=rule.name,
        text=rule_text(rule),
        rate=rule.rate,
        option=rule.option,
        lasting=rule.lasting,
        opportunities=opportunities,
    )


def faults_json() -> str:
    """All faults for machines: a list of objects."""
    rows = [
        {
            "name": name,
            "where": about.where,
            "options": about.options,
            "lasting": may_last(name),
            "seconds": about.seconds,
            "services": about.services,
            "operations": about.operations,
            "filters": FILTERS[about.where],
            "imitates": about.imitates,
            "source": about.source,
        }
        for name, about in KINDS.items()
    ]
    return json.dumps(rows, indent=2) + "\n"
