"""``[order] plan``: a plan of the user's own, made by a Python function.

The function is asked in a process of its own, where no module of this package is in its way,
and asked twice, each time with another seed of Python's hashing: what it yields must be the
same, or no run could be repeated.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

from analysis.errors import UsageError
from analysis.schema import MessageKind, OrderInfo, item_text, typed_value
from loadtest import paths
from loadtest.order_settings import (
    ATTRIBUTE_NAME,
    ATTRIBUTE_TYPE,
    MAX_ATTRIBUTES,
    MAX_BODY_BYTES,
    PlanFunction,
    compared_attributes,
)
from loadtest.orders import MessageAttribute, OrderShape, attribute_size, expected_item
from loadtest.plan import Plan, PlannedMessage, sent_after_ns

MAX_MESSAGES = 1_000_000
MAX_TOTAL_BYTES = 2**30
TIME_LIMIT_S = 60.0
_MAX_LINE_BYTES = 8 * 1024 * 1024  # a body at its limit with every character escaped
_MAX_SHOWN = 5  # problems that are told
_GROUP_CHARACTERS = 128  # SQS API reference, SendMessage
_FIELDS = ("key", "body", "kind", "item", "attributes", "group")


class _MessageError(Exception):
    """What is wrong with one message."""


def plan_by(
    function: PlanFunction,
    shape: OrderShape,
    arguments: Mapping[str, Any],
    rate_per_s: float | None,
) -> Plan:
    """The plan that the function makes.

    :param shape: its key, key attribute and type; the rest of an order is the function's.
    :param arguments: of the function: ``seed`` and ``load``.
    :raises UsageError: it fails, takes too long, is not the same both times, or yields what is
        no message.
    """
    given = list(_asked(function, arguments, hash_seed=1))
    number = 0
    with contextlib.closing(_asked(function, arguments, hash_seed=2)) as told:
        for number, again in enumerate(told, 1):
            if number > len(given) or given[number - 1] != again:
                first = given[number - 1] if number <= len(given) else None
                raise _unlike(function, number, first, again)
    if number < len(given):
        raise _unlike(function, number + 1, given[number], None)
    return _Made(function, shape).plan(given, rate_per_s)


def _unlike(
    function: PlanFunction, number: int, first: dict[str, Any] | None, again: dict[str, Any] | None
) -> UsageError:
    seen = [
        "none" if one is None else _short(json.dumps(one, ensure_ascii=False, default=str))
        for one in (first, again)
    ]
    return UsageError(
        f"order.plan: {function} does not yield the same messages each time: message {number} was "
        f"{seen[0]} and then {seen[1]}. Draw from random.Random(seed) only, and put what has no "
        "order (a set) into one."
    )


# --- asking ---------------------------------------------------------------------------


def _asked(
    function: PlanFunction, arguments: Mapping[str, Any], *, hash_seed: int
) -> Generator[dict[str, Any]]:
    """What the function yields; closed early, its process is ended."""
    asked = {
        "directory": str(function.directory.resolve()),
        "module": function.module,
        "function": function.function,
        "arguments": arguments,
    }
    script = Path(__file__).with_name("plan_child.py")
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            cwd=function.directory,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"},
        ) as process,
    ):
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        limit = threading.Timer(TIME_LIMIT_S, stop)
        limit.daemon = True
        limit.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(asked).encode())
            yield from _read(function, process.stdout)
        except EOFError:
            process.wait()
            code = process.returncode
            raise UsageError(_cut_off(function, code, printed, late=late.is_set())) from None
        finally:
            limit.cancel()
            process.kill()


def _read(function: PlanFunction, told: IO[bytes]) -> Iterator[dict[str, Any]]:
    """
    :raises EOFError: the process ended before it had told all.
    """
    size = 0
    number = 0
    while True:
        line = told.readline(_MAX_LINE_BYTES)
        size += len(line)
        if len(line) == _MAX_LINE_BYTES or size > MAX_TOTAL_BYTES or number > MAX_MESSAGES:
            raise UsageError(
                f"order.plan: {function} yields more than a run can send: at most {MAX_MESSAGES} "
                f"messages, {MAX_BODY_BYTES} bytes each, {MAX_TOTAL_BYTES >> 20} MiB in all (this "
                f"was message {number + 1})."
            )
        if not line.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = json.loads(line, parse_float=Decimal)
        match message:
            case {"error": str(text)} if len(message) == 1:
                raise UsageError(f"order.plan: {function} failed:\n{text.rstrip()}")
            case {"end": int()} if len(message) == 1:
                return
        yield message
        number += 1


def _cut_off(function: PlanFunction, code: int, printed: IO[bytes], *, late: bool) -> str:
    if late:
        return f"order.plan: {function} had not yielded all its messages after {TIME_LIMIT_S:g} s."
    printed.seek(0)
    said = printed.read().decode(errors="replace").strip()[-500:]
    last = f" It printed: {said}" if said else ""
    return f"order.plan: {function} ended its process (code {code}) before its last message.{last}"


# --- understanding --------------------------------------------------------------------


@dataclass(slots=True)
class _Given:
    """One message while it is being understood."""

    number: int
    key: str
    body: str
    kind: MessageKind | None
    item: str | None
    attributes: tuple[MessageAttribute, ...]
    group: str | None


class _Made:
    """Messages of the plan from what the function yielded."""

    def __init__(self, function: PlanFunction, shape: OrderShape) -> None:
        self._function = function
        self._shape = shape
        self._names: dict[str, str] = {shape.key: shape.attributes[shape.key]}

    def plan(self, given: list[dict[str, Any]], rate_per_s: float | None) -> Plan:
        problems: list[str] = []
        found: list[_Given] = []
        for number, message in enumerate(given, 1):
            try:
                found.append(self._understood(number, message))
            except _MessageError as error:
                problems.append(f"message {number}: {error}")
        if not problems:
            problems += self._set_kinds(found)
        if not given:
            problems.append("no message at all")
        elif not problems and all(one.kind is MessageKind.POISON for one in found):
            problems.append("no message of an order: all are poison")
        if problems:
            more = [f"and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
            lines = [*problems[:_MAX_SHOWN], *more]
            raise UsageError(
                "\n".join(f"order.plan: {self._function} yields {line}" for line in lines)
            )
        messages = tuple(
            PlannedMessage(
                one.number,
                one.key,
                one.kind or MessageKind.ORDER,
                one.body,
                None if one.kind is MessageKind.POISON else one.item,
                sent_after_ns(one.number - 1, rate_per_s),
                one.attributes,
                one.group,
            )
            for one in found
        )
        return Plan(messages, order=OrderInfo(self._shape.key, self._names))

    def _understood(self, number: int, message: dict[str, Any]) -> _Given:
        unknown = sorted(message.keys() - set(_FIELDS))
        if unknown:
            raise _MessageError(f'"{unknown[0]}" is none of its fields: {", ".join(_FIELDS)}')
        body = message.get("body")
        if not isinstance(body, str) or not body:
            raise _MessageError('"body" must be text, or what becomes a JSON text')
        kind = message.get("kind")
        if kind is not None and kind not in list(MessageKind):
            raise _MessageError(
                f'"kind" must be one of {", ".join(MessageKind)} (got {_short(repr(kind))})'
            )
        group = message.get("group")
        if group is not None and not (isinstance(group, str) and 0 < len(group) <= 128):
            raise _MessageError(f'"group" must be text of 1 to {_GROUP_CHARACTERS} characters')
        attributes = tuple(_attributes(message.get("attributes", {})))
        size = len(body.encode("utf-8", "surrogatepass")) + sum(map(attribute_size, attributes))
        if size > MAX_BODY_BYTES:
            raise _MessageError(f"has {size} bytes; at most {MAX_BODY_BYTES} can be sent")
        is_poison = kind == MessageKind.POISON
        own = f"{self._shape.id_prefix}poison-{number}" if is_poison else None
        key = self._key(message.get("key", own))
        item = None if is_poison else self._expected(key, body, message.get("item"))
        return _Given(
            number, key, body, MessageKind(kind) if kind else None, item, attributes, group
        )

    def _key(self, key: object) -> str:
        if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
            raise _MessageError('"key" must be the order\'s id, text or a whole number')
        if self._shape.key_type == "N":
            try:
                Decimal(str(key))
            except InvalidOperation:
                raise _MessageError(f'"key" must be a number (got {_short(repr(key))})') from None
        prefix = self._shape.id_prefix
        if not str(key).startswith(prefix):
            raise _MessageError(
                f'"key" must begin with load["id_prefix"], here {prefix!r}, so that what the run '
                f"stores can be found again (got {_short(repr(key))})"
            )
        return str(key)

    def _expected(self, key: str, body: str, item: object) -> str:
        """Canonical text of what is to be stored."""
        if item is None:
            return self._from_body(key, body)
        if not isinstance(item, dict) or not item:
            raise _MessageError('"item" must be the order\'s details: {"amount": 5}')
        self._names |= {name: name for name in item}
        return item_text({name: typed_value(value) for name, value in item.items()})

    def _from_body(self, key: str, body: str) -> str:
        try:
            details = json.loads(body, parse_float=Decimal)
        except ValueError:
            details = None
        path = paths.find(details, self._shape.key) if isinstance(details, dict) else None
        if path is None:
            raise _MessageError(
                f'has no "item", and its body is no JSON object with "{self._shape.key}" in it '
                "([order] key) from which to take the details"
            )
        said = str(paths.at(details, path))
        if said != key:
            raise _MessageError(
                f'"key" is {_short(repr(key))}, but its body says {_short(repr(said))} at '
                f"{self._shape.key}"
            )
        attributes = compared_attributes(
            self._shape.key, self._function.item, details, self._shape.attributes[self._shape.key]
        )
        self._names |= attributes
        return expected_item(_with_attributes(self._shape, attributes), body)

    def _set_kinds(self, found: list[_Given]) -> list[str]:
        """Give every message a kind: the first of an order is the order, others are copies or
        conflicts of it. What contradicts that is a problem."""
        by_key: dict[str, list[_Given]] = defaultdict(list)
        for one in found:
            by_key[one.key].append(one)
        problems = []
        for key, messages in by_key.items():
            poison = [one for one in messages if one.kind is MessageKind.POISON]
            if poison:
                if len(messages) > 1:
                    problems.append(
                        f"message {poison[0].number}: is poison, and another message has its key "
                        f"{_short(repr(key))}: give each poison message a key of its own, or none"
                    )
                continue
            firsts = [one for one in messages if one.kind is MessageKind.ORDER]
            if len(firsts) > 1:
                problems.append(
                    f"message {firsts[1].number}: is the order {_short(repr(key))}, and so is "
                    f"message {firsts[0].number}: further ones are a copy or a conflict"
                )
                continue
            first = (
                firsts[0] if firsts else next((one for one in messages if one.kind is None), None)
            )
            if first is None:
                problems.append(
                    f"message {messages[0].number}: is a {messages[0].kind} of order "
                    f"{_short(repr(key))}, of which there is no message of kind order"
                )
                continue
            first.kind = MessageKind.ORDER
            for one in messages:
                is_copy = one.item == first.item
                right = MessageKind.COPY if is_copy else MessageKind.CONFLICT
                one.kind = one.kind or right
                if one is not first and one.kind is not right:
                    same = "the same details as" if is_copy else "other details than"
                    problems.append(
                        f"message {one.number}: is a {one.kind}, but has {same} message "
                        f"{first.number}, the order"
                    )
        return problems


def _with_attributes(shape: OrderShape, attributes: Mapping[str, str]) -> OrderShape:
    return OrderShape(
        shape.key, "", {}, attributes, key_type=shape.key_type, key_form=shape.key_form
    )


def _attributes(given: object) -> Iterator[MessageAttribute]:
    if not isinstance(given, dict):
        raise _MessageError('"attributes" must be a dict of names and values')
    if len(given) > MAX_ATTRIBUTES:
        raise _MessageError(f"may have {MAX_ATTRIBUTES} attributes: SQS takes 10, one is the run's")
    for name, value in given.items():
        if not re.fullmatch(ATTRIBUTE_NAME, name):
            raise _MessageError(f"cannot have an attribute of the name {_short(repr(name))}")
        match value:
            case {"type": str(kind), "value": str(content)}:
                binary = kind.startswith("Binary")
                one = MessageAttribute(name, kind, content.encode() if binary else content)
            case str():
                one = MessageAttribute(name, "String", value)
            case {"base64": str(content)} if len(value) == 1:
                one = MessageAttribute(name, "Binary", _decoded(name, content))
            case int() | Decimal() if not isinstance(value, bool):
                one = MessageAttribute(name, "Number", str(value))
            case _:
                raise _MessageError(
                    f'attribute "{name}" must be text, a number, bytes, or a dict with type and '
                    "value"
                )
        if not re.fullmatch(ATTRIBUTE_TYPE, one.type) or not one.value:
            raise _MessageError(
                f'attribute "{name}" needs the type String, Number or Binary, and a value'
            )
        yield one


def _decoded(name: str, content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise _MessageError(f'attribute "{name}" is not base64') from None


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
