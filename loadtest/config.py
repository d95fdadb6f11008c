"""Settings of a run: a configuration file, flags over it, and a default for everything.

The file is ``loadtest.toml``, or ``[tool.loadtest]`` of a ``pyproject.toml``, in the working
directory or where ``--config`` says. Its paths are relative to the file. With neither a
file nor flags the reference handler of this package is tested.

Everything that is wrong is reported at once, one line each, with the file and the dotted
key, or with the flag.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, TypeGuard

from dotenv import dotenv_values

import consumer
from analysis.baseline import METRICS, Threshold, parse_threshold, unknown_metric
from analysis.errors import EvidenceError, UsageError
from analysis.schema import EffectInfo, ExpectInfo, OrderInfo, ResultInfo, TableRole
from consumer.faults import NO_FAULTS, FaultPlan, FaultRule
from loadtest.fault_rules import (
    check_rules,
    rules_of_flags,
    rules_of_run,
    rules_of_table,
    with_flags,
)
from loadtest.order_settings import (
    PlanFunction,
    default_table_key,
    is_about_objects,
    is_planned,
    order_shape,
    planned_shape,
)
from loadtest.orders import OrderShape
from loadtest.plan import Arrangement
from loadtest.problems import Problems, did_you_mean, names_of, parse_section, unknown
from loadtest.sections import (
    AwsSettings,
    EffectSection,
    ExpectSettings,
    HandlerSettings,
    LoadSettings,
    OrderSection,
    QueueSettings,
    ResultSettings,
    TableSettings,
    shown,
)

MAX_MESSAGES = 10_000_000

# "Defined runtime environment variables", AWS Lambda developer guide: a function
# configuration that sets one of these is refused.
_RESERVED = frozenset(
    {
        "_HANDLER",
        "_X_AMZN_TRACE_ID",
        "AWS_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_LAMBDA_RUNTIME_API",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "LAMBDA_RUNTIME_DIR",
        "LAMBDA_TASK_ROOT",
    }
)
_HANDLER_PATHS = ("code", "dependencies", "layers", "env_file")

# These would lead the handler's calls past the gateway that records them.
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")

# What can be asked of a service so that something happens outside of the tables judged.
_EFFECT_CALLS: Mapping[str, tuple[str, ...]] = {
    "sns": ("Publish", "PublishBatch"),
    "sqs": ("SendMessage", "SendMessageBatch"),
    "ses": ("SendEmail", "SendRawEmail", "SendTemplatedEmail", "SendBulkTemplatedEmail"),
    "sesv2": ("SendEmail", "SendBulkEmail"),
    "dynamodb": ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"),
    "http": ("POST", "PUT", "PATCH", "DELETE", "GET"),
}
_EFFECT_RESOURCES = {"sns": "topic", "sqs": "queue", "dynamodb": "table", "http": "URL"}
_DECLARED_BY = {
    "topic": "[[effect]] of sns",
    "queue": "[[effect]] of sqs",
    "http": "[[effect]] of http",
}
_MAX_QUEUE_NAME = 38
"""SQS takes 80 characters; the longest prefix of a run takes 42."""
_EFFECT_NAME = rf"(?=.{{1,{_MAX_QUEUE_NAME}}}$)[A-Za-z0-9_-]+(\.fifo)?"

_REFERENCE_ORDER: Mapping[str, Any] = {
    "key": "id",
    "body": '{"id": "{id}", "quantity": {quantity}}',
    "quantity": {"integer": [1, 10]},
    "conflict": ["quantity"],
}


# --- the whole --------------------------------------------------------------------------


_CAUTIOUS = AwsSettings.model_validate({})


@dataclass(frozen=True, slots=True)
class Settings:
    handler: HandlerSettings
    queue: QueueSettings
    tables: tuple[TableSettings, ...]
    order: OrderShape
    result: ResultSettings
    load: LoadSettings
    expect: ExpectSettings
    faults: FaultPlan = NO_FAULTS
    effects: tuple[EffectInfo, ...] = ()
    """Resources under their declared names."""
    plan: PlanFunction | None = None  # makes the messages, of which ``order`` says the rest
    thresholds: tuple[Threshold, ...] | None = None
    """For ``loadtest check``; None: nothing is said about them."""
    aws: AwsSettings = _CAUTIOUS

    # What run.json records. The handler's environment is not part of it: its values may be
    # secrets.

    def order_info(self) -> OrderInfo:
        return OrderInfo(self.order.key, dict(self.order.attributes))

    def result_info(self) -> ResultInfo:
        return ResultInfo(self.result.processed, self.result.duplicate)

    def expect_info(self) -> ExpectInfo:
        expect = self.expect
        return ExpectInfo(expect.contended_orders, expect.send_lag_s, expect.poison)


@dataclass(frozen=True, slots=True)
class FaultFlags:
    """Faults asked for beside the configuration."""

    rules: tuple[str, ...] = ()  # NAME[:OPTION][:lasting][=RATE], over the file's of that name
    file: Path | None = None  # instead of [faults]: a file with that table, or a run's directory


_NO_FLAGS = FaultFlags()


def load_settings(
    config_path: Path | None,
    flags: Mapping[str, object],
    cwd: Path,
    faults: FaultFlags = _NO_FLAGS,
) -> Settings:
    """Settings from the file (found in ``cwd`` if none is named) with the flags over it.

    :param flags: dotted key -> value, such as ``{"load.orders": 10}``; None for "not given".
        Flags differ from the file in two things: ``load.rate`` may be a number as text, and
        ``load.burst`` chooses between the arrangements burst and interleaved.
    :raises UsageError: with one line for each problem.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    return _settings(_read(config_path, cwd), given, cwd, faults)


def settings_of(data: Mapping[str, Any], base: Path) -> Settings:
    """Settings from the tables of a configuration file, given as a mapping.

    :param base: what its paths are relative to.
    :raises UsageError: with one line for each problem.
    """
    return _settings(_Source("", "", base, data), {}, base, _NO_FLAGS)


def _settings(
    source: _Source, given: Mapping[str, object], cwd: Path, faults: FaultFlags
) -> Settings:
    problems = Problems(source.label, source.prefix, frozenset(given))
    merged = _merged(source, given, cwd)
    settings = _checked(merged, source.base, problems)
    rules = _rules(merged.get("faults"), faults, cwd, settings, problems)
    if settings is not None:
        check_rules(rules, settings.queue, settings.load, problems)
        settings = replace(settings, faults=FaultPlan(rules, settings.load.seed))
    if settings is None or problems.lines:
        raise UsageError("\n".join(problems.lines))
    return settings


def escaped(text: str) -> str:
    """For the handler's environment: its braces stand for themselves."""
    return re.sub(r'\{([^{}"]+)\}', r"{{\1}}", text)


def fill_names(environment: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The handler's environment with the run's own names put in.

    ``{queue}``, ``{queue_url}``, ``{queue_arn}``, ``{dlq}``, ``{dlq_url}``, ``{dlq_arn}``,
    ``{table:NAME}``, and of effects ``{topic:NAME}`` and ``{queue:NAME}`` with ``_arn`` and
    ``_url``, are replaced by ``names["queue"]`` and so on; doubled braces stand for
    themselves: ``{{x}}`` gives ``{x}``. ``{http:NAME}`` stays: its URL is known only where
    the handler runs.

    :raises UsageError: for a placeholder that ``names`` does not have.
    """
    filled = {}
    for variable, text in environment.items():
        own = {name: f"{{{name}}}" for name in _placeholders(text) if name.startswith("http:")}
        known = {**names, **own}
        for name in _placeholders(text):
            if name not in known:
                raise UsageError(f"handler.environment.{variable}: {_no_such_name(name, names)}")
        filled[variable] = _ENVIRONMENT_PLACEHOLDER.sub(partial(_put_in, known), text)
    return filled


def real_effects(effects: Sequence[EffectInfo], names: Mapping[str, str]) -> tuple[EffectInfo, ...]:
    """The effects with their resources as the services know them.

    :param names: the run's own, as for :func:`fill_names`.
    """
    kinds = {"sns": "topic", "sqs": "queue", "dynamodb": "table"}
    return tuple(
        replace(effect, resource=names[f"{kinds[effect.service]}:{effect.resource}"])
        if effect.service in kinds
        else effect
        for effect in effects
    )


def _put_in(names: Mapping[str, str], match: re.Match[str]) -> str:
    return f"{{{match[1]}}}" if match[1] else names[match[2]]


# --- reading ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Source:
    label: str  # the file as the user knows it; empty without a file
    prefix: str  # before every key: "tool.loadtest." in a pyproject.toml
    base: Path  # what its paths are relative to
    data: Mapping[str, Any]


def _read(config_path: Path | None, cwd: Path) -> _Source:
    if config_path is not None:
        source = _read_file(cwd / config_path, str(config_path))
        if source is None:
            raise UsageError(f"{config_path}: has no [tool.loadtest]")
        return source
    for name in ("loadtest.toml", "pyproject.toml"):
        if (cwd / name).is_file() and (source := _read_file(cwd / name, name)) is not None:
            return source
    return _Source("", "", cwd, {})


def _read_file(path: Path, label: str) -> _Source | None:
    """None for a ``pyproject.toml`` that says nothing about us."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{label}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{label}: is not UTF-8 text, as TOML must be") from error
    except ValueError as error:  # also for a number of too many digits
        raise UsageError(f"{label}: is not valid TOML: {error}") from error
    if path.name != "pyproject.toml":
        return _Source(label, "", path.parent, data)
    tools = data.get("tool")
    ours = tools.get("loadtest") if isinstance(tools, dict) else None
    if ours is None:
        return None
    if not isinstance(ours, dict):
        raise UsageError(f"{label}: tool.loadtest: must be a table")
    return _Source(label, "tool.loadtest.", path.parent, ours)


def _merged(source: _Source, flags: Mapping[str, object], cwd: Path) -> dict[str, Any]:
    """The file's tables with the flags over them; ``handler.code`` is a full path."""
    merged = {
        name: dict(section) if isinstance(section, dict) else section
        for name, section in source.data.items()
    }
    handler = merged.get("handler")
    if isinstance(handler, dict):
        for name in _HANDLER_PATHS:
            match handler.get(name):
                case str() as text:
                    handler[name] = source.base / text
                case list() as texts:
                    handler[name] = [
                        source.base / text if isinstance(text, str) else text for text in texts
                    ]
    for key, value in flags.items():
        section, _, name = key.partition(".")
        if isinstance(table := merged.setdefault(section, {}), dict):
            match key, value:
                case "handler.code", str() | Path():
                    table[name] = cwd / value
                case "load.rate", str() if re.fullmatch(r"\d+(\.\d+)?", value):
                    table[name] = float(value)
                case "load.burst", bool():
                    arrangement = Arrangement.BURST if value else Arrangement.INTERLEAVED
                    table["arrangement"] = arrangement
                case _:
                    table[name] = value
    handler = merged.get("handler")
    if isinstance(handler, dict) and "handler" in handler:
        handler.setdefault("code", source.base)
    return merged


def _rules(
    table: object, flags: FaultFlags, cwd: Path, settings: Settings | None, problems: Problems
) -> tuple[FaultRule, ...]:
    """The rules of the file, or of what ``--faults`` names, with those of the flags."""
    rules: tuple[FaultRule, ...] = ()
    if flags.file is not None:
        label = f"--faults {flags.file}"
        own = Problems(label, lines=problems.lines)
        if (cwd / flags.file).is_dir():
            rules = _rules_of_run(cwd / flags.file, label, settings, problems)
        elif (source := _read_file(cwd / flags.file, label)) is not None:
            for name in source.data:
                if name != "faults":
                    own.add(name, f"{unknown(name, ['faults'])}; this file may hold [faults] only")
            rules = rules_of_table(source.data.get("faults", {}), own)
    elif table is not None:
        rules = rules_of_table(table, problems)
    # Of a flag the place is the flag itself.
    return with_flags(rules, rules_of_flags(flags.rules, Problems(lines=problems.lines)))


def _rules_of_run(
    run_dir: Path, label: str, settings: Settings | None, problems: Problems
) -> tuple[FaultRule, ...]:
    try:
        run, rules = rules_of_run(run_dir)
    except EvidenceError as error:
        problems.lines.append(f"{label}: {error}")
        return ()
    then = run.plan
    if settings is not None:
        load = settings.load
        orders_now = then.orders if settings.order.near_ids else load.orders
        if (load.seed, orders_now, load.copies) != (then.seed, then.orders, then.copies):
            problems.lines.append(
                f"{label}: its faults name the messages of another plan; add --seed {then.seed} "
                f"--orders {then.orders} --copies {then.copies}, and what else it was asked for"
            )
    return rules


# --- checking ---------------------------------------------------------------------------

_SECTIONS = (
    "handler",
    "queue",
    "table",
    "effect",
    "order",
    "result",
    "load",
    "expect",
    "faults",
    "thresholds",
    "aws",
)

_ENVIRONMENT_PLACEHOLDER = re.compile(r'\{\{([^{}"]+)\}\}|\{([^{}"]+)\}')


def _checked(data: dict[str, Any], base: Path, problems: Problems) -> Settings | None:
    """None only if there are problems. A broken section does not hide what is wrong in others."""
    for name in data:
        if name not in _SECTIONS:
            problems.add(name, unknown(name, _SECTIONS))
    handler_data = _table(data, "handler", problems)
    queue_data = _table(data, "queue", problems)
    order_data = _table(data, "order", problems)
    result_data = _table(data, "result", problems)
    load_data = _table(data, "load", problems)

    if "code" not in handler_data and "handler" not in handler_data:
        handler_data |= {"code": Path(consumer.__file__).parent, "handler": "app.handler"}
        result_data = {"processed": "processed", "duplicate": "duplicate"} | result_data
    by_function = is_planned(order_data)
    if not by_function and set(order_data) <= set(names_of(OrderSection)) - {"key", "body"}:
        order_data = {**_REFERENCE_ORDER, **order_data}

    tables = _tables(data.get("table"), default_table_key(order_data), problems)
    orders_table = next((t for t in tables if t and t.role is TableRole.ORDERS), None)
    if None not in tables and orders_table is None:
        problems.add("table", 'none has role = "orders", so there would be nothing to judge')
    if orders_table is not None:
        handler_data.setdefault("environment", {"TABLE_NAME": f"{{table:{orders_table.name}}}"})
    effects = _effects(data.get("effect"), tables, problems)
    bucket = ["bucket"] if is_about_objects(order_data.get("envelope")) else []
    if isinstance(file := handler_data.pop("env_file", None), Path):
        handler_data["environment"] = _variables(file, handler_data.get("environment"), problems)
    elif file is not None:
        problems.add("handler.env_file", f"must be a path (got {shown(file)})")
    _check_environment(handler_data.get("environment"), bucket, tables, effects, problems)
    handler = parse_section(HandlerSettings, handler_data, "handler", problems)

    # From the data: one broken key of a section must not hide this.
    timeout_s = handler_data.get("timeout", HandlerSettings.model_fields["timeout_s"].default)
    if _is_time_s(timeout_s):
        queue_data.setdefault("visibility_timeout", math.ceil(timeout_s) + 1)
        visibility_s = queue_data["visibility_timeout"]
        if _is_time_s(visibility_s) and timeout_s > visibility_s:
            problems.add(
                "queue.visibility_timeout",
                f"must be at least handler.timeout, {timeout_s:g} s, or AWS refuses the "
                f"mapping (got {visibility_s})",
            )
    queue = parse_section(QueueSettings, queue_data, "queue", problems)

    planned = order = None
    if by_function:
        planned = planned_shape(order_data, orders_table, base, problems)
        order = None if planned is None else planned[0]
    else:
        order = order_shape(order_data, orders_table, problems)
    may_conflict = by_function or order_data.get("conflict")
    load_data.setdefault("conflicts", 0.05 if may_conflict else 0.0)
    load = parse_section(LoadSettings, load_data, "load", problems)
    if load and load.conflicts > 0 and not may_conflict:
        problems.add(
            "load.conflicts",
            "needs order.conflict, the fields in which two messages of one order may differ",
        )
    if load and load.orders * load.copies > MAX_MESSAGES:
        problems.add("load.orders", f"orders x copies must be at most {MAX_MESSAGES}")
    if load and queue and "drain_limit" not in load_data:
        # A minute to spare, beyond a slow drain and the last message's deliveries.
        messages_s = load.orders * load.copies / 10
        redeliveries_s = queue.visibility_timeout_s * queue.max_receive_count
        load = load.model_copy(update={"drain_limit_s": 60 + messages_s + redeliveries_s})

    result = parse_section(ResultSettings, result_data, "result", problems)
    expect = parse_section(ExpectSettings, _table(data, "expect", problems), "expect", problems)
    thresholds = _thresholds(data, problems)
    aws = parse_section(AwsSettings, _table(data, "aws", problems), "aws", problems)
    valid_tables = tuple(table for table in tables if table is not None)
    if not (handler and queue and order and load and result and expect and aws):
        return None
    return Settings(
        handler,
        queue,
        valid_tables,
        order,
        result,
        load,
        expect,
        effects=tuple(effect for effect in effects if effect is not None),
        thresholds=thresholds,
        plan=None if planned is None else planned[1],
        aws=aws,
    )


def _is_time_s(value: object) -> TypeGuard[int | float]:
    """Whether it can be reckoned with; its range is the section's matter."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _table(data: Mapping[str, Any], name: str, problems: Problems) -> dict[str, Any]:
    table = data.get(name, {})
    if isinstance(table, dict):
        return dict(table)
    problems.add(name, f"must be a table, [{name}] (got {shown(table)})")
    return {}


def _thresholds(data: Mapping[str, Any], problems: Problems) -> tuple[Threshold, ...] | None:
    if "thresholds" not in data:
        return None
    found = []
    for metric, text in _table(data, "thresholds", problems).items():
        key = f"thresholds.{metric}"
        if metric not in METRICS:
            problems.add(key, unknown_metric(metric))
        elif not isinstance(text, str):
            problems.add(key, f'must be text, such as "<= 1.25x" (got {shown(text)})')
        else:
            try:
                found.append(parse_threshold(metric, text))
            except ValueError as error:
                problems.add(key, str(error))
    return tuple(found)


def _tables(data: object, key: str, problems: Problems) -> list[TableSettings | None]:
    """The declared tables, None for a broken one; the default is one for orders and one that
    must not change.

    :param key: of the default's tables.
    """
    if data is None:
        data = [
            {"name": "orders", "key": key},
            {"name": "reference", "key": key, "role": "reference"},
        ]
    if not isinstance(data, list):
        problems.add("table", "must be a list of tables: [[table]]")
        return [None]
    tables: list[TableSettings | None] = []
    for number, entry in enumerate(data):
        at = f"table[{number}]"
        role = TableRole.OTHER if number else TableRole.ORDERS
        table = parse_section(
            TableSettings,
            {"role": role, **entry} if isinstance(entry, dict) else entry,
            at,
            problems,
        )
        if table and table.items:
            _check_items(table, entry, at, problems)
            whole = TableRole.OTHER if table.order_items is None else TableRole.ORDERS
            table = table.model_copy(update={"role": whole})
        if table and any(other and other.name == table.name for other in tables):
            problems.add(f"{at}.name", f'another table is called "{table.name}" too')
        if table and table.sort == table.key:
            problems.add(f"{at}.sort", "must be another attribute than key")
        if table and table.sort is None and "sort_type" in table.model_fields_set:
            problems.add(f"{at}.sort_type", "needs sort, the name of the sort key")
        tables.append(table)
    return tables


def _check_items(
    table: TableSettings, given: Mapping[str, Any], at: str, problems: Problems
) -> None:
    """Whether the kinds of items fit their table and can be told apart.

    :param given: the table as the file has it.
    """
    for name in ("role", "complete_when"):
        if name in given:
            text = f"goes without items: set it there, [[table.items]] {name}"
            problems.add(f"{at}.{name}", text)
    for number, kind in enumerate(table.items):
        here = f"{at}.items[{number}]"
        if kind.sort is not None and table.sort is None:
            problems.add(f"{here}.sort", "the table has no sort key: set sort beside its key")
        for name, form, type_ in (
            ("key", kind.key, table.key_type),
            ("sort", kind.sort, table.sort_type),
        ):
            if form is not None and type_ != "S":
                problems.add(f"{here}.{name}", f"needs a key of type S (is {type_})")
        for before in table.items[:number]:
            if (before.key, before.sort) == (kind.key, kind.sort):
                problems.add(here, "another kind of this table has the same keys")
            if before.role is kind.role is TableRole.ORDERS:
                text = "only one kind of a table can be the orders; declare the others as other"
                problems.add(f"{here}.role", text)


def _effects(
    data: object, tables: Sequence[TableSettings | None], problems: Problems
) -> list[EffectInfo | None]:
    """The declared effects, None for a broken one."""
    if data is None:
        return []
    if not isinstance(data, list):
        problems.add("effect", "must be a list of tables: [[effect]]")
        return [None]
    effects: list[EffectInfo | None] = []
    for number, entry in enumerate(data):
        at = f"effect[{number}]"
        section = parse_section(EffectSection, entry, at, problems)
        effect = None if section is None else _effect(section, at, tables, problems)
        if effect and any(other and other.name == effect.name for other in effects):
            problems.add(at, f'"{effect.name}" is declared twice')
        effects.append(effect)
    return effects


def _effect(
    section: EffectSection, at: str, tables: Sequence[TableSettings | None], problems: Problems
) -> EffectInfo | None:
    before = len(problems.lines)
    service, _, operation = section.call.partition(":")
    resource = section.resource
    if service not in _EFFECT_CALLS:
        hint = did_you_mean(service, _EFFECT_CALLS)
        problems.add(
            f"{at}.call",
            "must be SERVICE:OPERATION, such as sns:Publish, with one of the services "
            f"{', '.join(_EFFECT_CALLS)}{hint} (got {shown(section.call)})",
        )
        return None
    operations = _EFFECT_CALLS[service]
    if operation not in operations:
        hint = did_you_mean(operation, operations)
        problems.add(
            f"{at}.call",
            f"an effect of {service} is one of {', '.join(operations)}{hint} "
            f"(got {shown(section.call)})",
        )
    what = _EFFECT_RESOURCES.get(service)
    if what is not None and resource is None:
        problems.add(f"{at}.resource", f"is missing: name the {what}")
    elif service == "dynamodb" and None not in tables:
        names = [table.name for table in tables if table]
        if resource not in names:
            problems.add(
                f"{at}.resource",
                f'no [[table]] is called "{resource}"{did_you_mean(str(resource), names)}; '
                f"declared: {', '.join(names)}",
            )
    elif service in ("sns", "sqs", "http") and not re.fullmatch(_EFFECT_NAME, resource or ""):
        problems.add(
            f"{at}.resource",
            f"must be at most {_MAX_QUEUE_NAME} letters, digits, _ and -, with .fifo at the end "
            f"for a FIFO one (got {shown(resource)})",
        )
    if len(problems.lines) > before:
        return None
    name = section.call if resource is None else f"{section.call} {resource}"
    return EffectInfo(service, operation, resource, section.key, name)


def _names_of_effect(effect: EffectInfo) -> list[str]:
    """The placeholders that stand for its resource."""
    match effect.service:
        case "sns":
            return [f"topic:{effect.resource}", f"topic:{effect.resource}_arn"]
        case "sqs":
            return [f"queue:{effect.resource}{part}" for part in ("", "_url", "_arn")]
        case "http":
            return [f"http:{effect.resource}"]
    return []


def _variables(file: Path, environment: object, problems: Problems) -> object:
    """The handler's variables: those of the file, and over them those of the configuration.

    What Lambda sets itself, as the credentials that such files hold, is left out.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.add("handler.env_file", f"{file} cannot be read: {error}")
        return environment
    found = {
        name: value
        for name, value in dotenv_values(stream=StringIO(text)).items()
        if value is not None and name not in _RESERVED and not name.startswith(_ENDPOINTS)
    }
    return {**found, **environment} if isinstance(environment, dict) else environment


def _check_environment(
    environment: object,
    more: Sequence[str],
    tables: Sequence[TableSettings | None],
    effects: Sequence[EffectInfo | None],
    problems: Problems,
) -> None:
    if not isinstance(environment, dict):
        return  # the section's own check says so
    names = ["queue", "queue_url", "queue_arn", "dlq", "dlq_url", "dlq_arn", *more]
    for table in tables:
        names += [f"table:{table.name}"] if table else []
    for effect in effects:
        names += _names_of_effect(effect) if effect else []
    for variable, text in environment.items():
        at = f"handler.environment.{variable}"
        if problem := variable_problem(variable):
            problems.add(at, problem)
        if isinstance(text, str) and None not in tables and None not in effects:
            for name in _placeholders(text):
                if name not in names:
                    problems.add(at, _no_such_name(name, names))
        if isinstance(text, str) and "\0" in text:
            problems.add(at, "must not hold a NUL character")


def variable_problem(variable: str) -> str | None:
    """Why a variable of this name cannot be set for the handler."""
    if variable in _RESERVED:
        return "is reserved by Lambda, which sets it itself"
    if variable.startswith(_ENDPOINTS):
        return "cannot be set: the run points the handler at its own endpoint"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]+", variable):
        return "needs a name of two or more letters, digits and _, a letter first"
    return None


def _placeholders(text: str) -> list[str]:
    matches = _ENVIRONMENT_PLACEHOLDER.finditer(text)
    return [match[2] for match in matches if match[2] is not None]


def _no_such_name(name: str, names: Iterable[str]) -> str:
    kind, colon, _ = name.partition(":")
    declared = ""
    if colon and kind in _DECLARED_BY:
        alike = [known for known in names if known.startswith(f"{kind}:")]
        there = ", ".join(f"{{{known}}}" for known in alike) or "none"
        declared = f" ({_DECLARED_BY[kind]} declares: {there})"
    return (
        f"{{{name}}} is not a name of this run{did_you_mean(name, names)}{declared}; "
        f"write {{{{{name}}}}} for the text {{{name}}} itself"
    )
