"""``[order]``: what messages look like, and where their details are in the table's items."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from analysis.item_kinds import ORDER_ID
from consumer.ledger import STAMP
from loadtest import orders, paths
from loadtest.envelopes import Letter, wrapped
from loadtest.orders import Dice, EnvelopeKind, OrderShape, Value
from loadtest.problems import Problems, did_you_mean, names_of, parse_section, unknown
from loadtest.sections import (
    FieldSection,
    OrderSection,
    PlanOrderSection,
    TableSettings,
    shown,
)

MAX_BODY_BYTES = 1_047_552
"""SQS takes 1 MiB a message; 1 KiB of it is left for message attributes."""
ATTRIBUTE_NAME = r"(?i)(?!(aws|amazon)\.)(?=.{1,256}$)[a-z0-9_-]+(\.[a-z0-9_-]+)*"
"""Of a message attribute (SQS developer guide, "Amazon SQS message metadata")."""
ATTRIBUTE_TYPE = r"(String|Number|Binary)(\.[A-Za-z0-9_.-]{1,240})?"
MAX_ATTRIBUTES = 9
_SENDERS = {EnvelopeKind.S3: "S3", EnvelopeKind.EVENTBRIDGE: "EventBridge"}


def order_shape(
    data: dict[str, Any], orders_table: TableSettings | None, problems: Problems
) -> OrderShape | None:
    """The shape of the orders; None where something is wrong with it.

    :param data: ``[order]`` as it was read.
    """
    known = names_of(OrderSection)
    own = {name: value for name, value in data.items() if name in known}
    fields: dict[str, orders.Field | None] = {}
    for name, value in data.items():
        if name in known:
            continue
        if not isinstance(value, dict):
            problems.add(f"order.{name}", unknown(name, known) + ", nor is its value a generator")
            continue
        generator = parse_section(FieldSection, value, f"order.{name}", problems)
        fields[name] = generator.field() if generator else None
    names = [own["key"], *fields] if "key" in own else [*fields]
    members = ", ".join(f'"{name}": {{{name}}}' for name in names)
    own.setdefault("body", f"{{{members}}}")
    section = parse_section(OrderSection, own, "order", problems)
    if section is None or not _fields_fit(section, fields, problems):
        return None
    valid = {name: field for name, field in fields.items() if field is not None}
    if len(valid) < len(fields) or orders_table is None:
        return None
    return _shape(section, valid, orders_table, problems)


def planned_shape(
    data: Mapping[str, Any],
    orders_table: TableSettings | None,
    directory: Path,
    problems: Problems,
) -> tuple[OrderShape, PlanFunction] | None:
    """What is known of orders whose messages a function makes, and the function.

    :param data: ``[order]`` as it was read.
    :param directory: of the configuration file.
    """
    own = {}
    for name, value in data.items():
        if name in names_of(PlanOrderSection):
            own[name] = value
        else:
            problems.add(f"order.{name}", "goes without plan: its function makes the messages")
    section = parse_section(PlanOrderSection, own, "order", problems)
    if section is None or orders_table is None:
        return None
    attribute = id_attribute(section.key, section.item, orders_table)
    shape = OrderShape(
        section.key,
        "",
        {},
        {section.key: attribute},
        key_type=orders_table.key_type,
        key_form=_key_form(orders_table, attribute),
    )
    module, _, function = section.plan.partition(":")
    return shape, PlanFunction(directory, module, function, section.item)


@dataclass(frozen=True, slots=True)
class PlanFunction:
    """``[order] plan``: a function of the user's that makes the messages."""

    directory: Path  # where its module is found
    module: str
    function: str
    item: Mapping[str, str | None]  # [order] item

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


def default_table_key(data: Mapping[str, Any]) -> str:
    """The key of a table that is made for these orders: called as the order's id is.

    :param data: ``[order]`` as it was read.
    """
    key, body = data.get("key"), data.get("body")
    if not isinstance(key, str):
        return "id"
    # Without a body it is made of the fields, by their names as they stand.
    is_member = not is_planned(data) and (not isinstance(body, str) or f'"{key}"' in body)
    return key if is_member else key.rpartition(".")[2] or key


def is_planned(data: Mapping[str, Any]) -> bool:
    """Whether a function makes the messages. A table called so is the generator of a field.

    :param data: ``[order]`` as it was read.
    """
    return isinstance(data.get("plan"), str)


def is_about_objects(envelope: object) -> bool:
    """Whether ``[order] envelope``, as it was read, makes a run that has a bucket."""
    kind = envelope.get("kind") if isinstance(envelope, dict) else envelope
    return kind == EnvelopeKind.S3


def _fields_fit(
    section: OrderSection, fields: Mapping[str, orders.Field | None], problems: Problems
) -> bool:
    """Whether body, generators and conflict fields belong to each other."""
    before = len(problems.lines)
    names = orders.placeholders(section.body)
    whole = orders.members(section.body)
    ids = {section.key} | ({"id"} - fields.keys())
    for name in names:
        if name not in ids and name not in fields:
            hint = did_you_mean(name, [section.key, *fields])
            text = f"{{{name}}} has no generator{hint}; give it one, [order] {name} = {{ ... }}"
            problems.add("order.body", text)
    if not ids.intersection(names):
        name = "id" if "." in section.key else section.key
        problems.add("order.body", f"has no {{{name}}}, the place of the order id")
    for name, field in fields.items():
        if name == section.key:
            problems.add(f"order.{name}", "is the order's key: it gets the order id, no generator")
        elif name not in names:
            problems.add(f"order.{name}", f"order.body has no {{{name}}}")
        elif field and field.optional and name not in whole:
            text = f'only a whole member of the body can be left out: "name": {{{name}}}'
            problems.add(f"order.{name}.optional", text)
    for name in section.conflict:
        if name not in fields:
            hint = did_you_mean(name, fields)
            problems.add("order.conflict", f'"{name}" is not a field with a generator{hint}')
        elif (field := fields[name]) and not field.varies():
            problems.add("order.conflict", f'"{name}" has only one value: nothing can differ in it')
    return len(problems.lines) == before


def _shape(
    section: OrderSection,
    fields: Mapping[str, orders.Field],
    orders_table: TableSettings,
    problems: Problems,
) -> OrderShape | None:
    """The shape, if bodies made with it are what they must be."""
    before = len(problems.lines)
    details = _sample(section, fields, orders_table.key_type, problems)
    if details is None:
        return None
    attributes = _attributes(section, details, orders_table, problems)
    if section.near_ids and orders_table.key_type == "N":
        problems.add("order.near_ids", "needs a key that is text: a number has one spelling")
    shape = OrderShape(
        key=section.key,
        template=section.body,
        fields=fields,
        attributes=attributes,
        conflict=section.conflict,
        key_type=orders_table.key_type,
        near_ids=section.near_ids,
        spellings=section.spellings,
        poison=section.poison,
        key_form=_key_form(orders_table, attributes[section.key]),
        message_attributes=_message_attributes(section, fields, problems),
        envelope=None if section.envelope is None else section.envelope.envelope(),
    )
    _check_envelope(section, shape, problems)
    _check_longest(shape, problems)
    for name in section.conflict:
        if not _is_compared(shape, name):
            text = f'"{name}" is not among the details that are compared: name it in order.item'
            problems.add("order.conflict", text)
    possible = orders.poison_bodies(shape, "1", Dice(0, "sample"))
    for kind in section.poison:
        if "poison" in section.model_fields_set and kind not in possible:
            problems.add("order.poison", f'"{kind}" is not possible: no field has a range')
    return shape if len(problems.lines) == before else None


def _attributes(
    section: OrderSection,
    details: Mapping[str, Any],
    orders_table: TableSettings,
    problems: Problems,
) -> dict[str, str]:
    """Those of :func:`compared_attributes`, if they can be told apart."""
    for name in section.item:
        if paths.find(details, name) is None:
            known = compared_attributes(section.key, {}, details, "")
            problems.add(
                f"order.item.{name}", f"the body has no such field{did_you_mean(name, known)}"
            )
    attributes = compared_attributes(
        section.key, section.item, details, id_attribute(section.key, section.item, orders_table)
    )
    for name, attribute in attributes.items():
        for other, others in attributes.items():
            if other == name:
                break
            if attribute == others:
                text = f'"{other}" and "{name}" would both be the attribute "{attribute}"'
                problems.add("order.item", text)
            elif attribute.startswith(f"{others}.") or others.startswith(f"{attribute}."):
                text = f'"{attribute}" and "{others}" would be one within the other'
                problems.add("order.item", text)
    return attributes


def _check_envelope(section: OrderSection, shape: OrderShape, problems: Problems) -> None:
    envelope = shape.envelope
    if envelope is None:
        return
    if section.attributes and envelope.kind is not EnvelopeKind.SNS:
        text = f"messages from {_SENDERS[envelope.kind]} have no message attributes"
        problems.add("order.attributes", text)
    if envelope.kind is not EnvelopeKind.S3:
        return
    if "{id}" not in envelope.object_key:
        problems.add("order.envelope.object_key", "has no {id}, the place of the order id")
    elif "{n}" not in envelope.object_key:
        several = [
            name
            for name, given in (("conflict", section.conflict), ("spellings", section.spellings))
            if given
        ]
        if several:
            problems.add(
                "order.envelope.object_key",
                f"needs {{n}} with order.{several[0]}: an order's different contents are "
                "different objects",
            )


def _check_longest(shape: OrderShape, problems: Problems) -> None:
    """Whether a message can be sent in its longest form."""
    dice = Dice(0, "sample")
    values = {
        name: "x" * field.generator.longest
        if isinstance(field.generator, orders.Text)
        else field.generator.draw(dice)
        for name, field in shape.fields.items()
    }
    body = orders.body_text(shape, "1", values)
    attributes = orders.message_attributes(shape, "1", values)
    around = ""
    if shape.envelope is not None:
        letter = Letter(body, 1, "1", 1, attributes=attributes)
        body, attributes, around = wrapped(shape.envelope, letter).body, (), ", envelope included"
    size = len(body.encode()) + sum(map(orders.attribute_size, attributes))
    if size > MAX_BODY_BYTES:
        text = f"may grow to {size} bytes{around}; at most {MAX_BODY_BYTES} can be sent"
        problems.add("order.body", text)
    for one in orders.message_attributes(shape, "1", values):
        if one.type.startswith("Number") and not _is_number(one.value):
            problems.add(f"order.attributes.{one.name}", f"is no number (got {shown(one.value)})")


def _is_number(value: str | bytes) -> bool:
    try:
        Decimal(value if isinstance(value, str) else value.decode())
    except (InvalidOperation, ValueError):
        return False
    return True


def _is_compared(shape: OrderShape, name: str) -> bool:
    """Whether orders that differ in this field have different items."""
    dice = Dice(0, "sample")
    values = {field: one.generator.draw(dice) for field, one in shape.fields.items()}
    other = shape.fields[name].draw_other(dice, values[name])
    changed = {field: value for field, value in values.items() if field != name}
    changed |= {} if other is None else {name: other}
    first, second = (
        orders.expected_item(shape, orders.body_text(shape, "1", one)) for one in (values, changed)
    )
    return first != second


def id_attribute(key: str, item: Mapping[str, str | None], table: TableSettings) -> str:
    """The attribute of an order's item that holds its id: what ``item`` says, else the part of
    the primary key that it is in."""
    named = item.get(key)
    if named is not None:
        return named
    kind = table.order_items
    in_sort = kind is not None and ORDER_ID not in (kind.key or "")
    return table.sort if in_sort and table.sort is not None else table.key


def compared_attributes(
    key: str, item: Mapping[str, str | None], details: Mapping[str, Any], key_attribute: str
) -> dict[str, str]:
    """The details of an order and where they are in its item: the members of the object that
    has the order's id, under their own names, and what ``[order] item`` says beside.

    :param key: where the order's id is; it is there.
    :param details: a body.
    """
    key_path = paths.find(details, key)
    assert key_path is not None
    prefix = "".join(f"{step}." for step in key_path[:-1])
    order = paths.at(details, key_path[:-1])
    members = [f"{prefix}{name}" for name in order] if isinstance(order, dict) else []
    there = set(members)
    for name in item:
        path = paths.find(details, name)
        for end in range(len(key_path), len(path or ())):
            # Told apart: the member as a whole is not compared any more.
            there.discard(".".join(map(str, (path or ())[:end])))
        if path is not None:
            there.add(name)
    attributes: dict[str, str] = {}
    for name in dict.fromkeys([*members, key, *item]):
        attribute = item.get(name, name.removeprefix(prefix))
        if name == key:
            attributes[name] = key_attribute
        elif name in there and attribute is not None:
            attributes[name] = attribute
    return attributes


def _key_form(table: TableSettings, attribute: str) -> str | None:
    """What an attribute of an order's item holds more than the order's id."""
    kind = table.order_items
    if kind is None:
        return None
    return {table.key: kind.key, table.sort: kind.sort}.get(attribute)


def _message_attributes(
    section: OrderSection, fields: Mapping[str, orders.Field], problems: Problems
) -> tuple[orders.AttributeShape, ...]:
    shapes = []
    names = {section.key, "id", *fields}
    for name, attribute in section.attributes.items():
        at = f"order.attributes.{name}"
        if not re.fullmatch(ATTRIBUTE_NAME, name):
            text = "must be up to 256 letters, digits, _, - and single full stops within"
            problems.add(at, f"{text}; AWS. and Amazon. are taken")
        elif name == STAMP:
            problems.add(at, "is the attribute by which a run knows its messages")
        for one in orders.placeholders(attribute.value):
            if one not in names:
                problems.add(at, f"{{{one}}} has no generator{did_you_mean(one, names)}")
        shapes.append(orders.AttributeShape(name, attribute.type, attribute.value))
    if len(shapes) > MAX_ATTRIBUTES:
        text = f"may hold {MAX_ATTRIBUTES}: SQS takes 10 a message, and one tells the run's own"
        problems.add("order.attributes", text)
    return tuple(shapes)


def _sample(
    section: OrderSection, fields: Mapping[str, orders.Field], key_type: str, problems: Problems
) -> dict[str, Any] | None:
    """The details of one order with all its fields; None if some body would be no order."""
    dice = Dice(0, "sample")
    order_id: Value = 1 if key_type == "N" else "1"
    values = {name: field.generator.draw(dice) for name, field in fields.items()}
    optional = [name for name, field in fields.items() if field.optional]
    complete: dict[str, Any] = {}
    for absent in ([], *([name] for name in optional), optional):
        present = {name: value for name, value in values.items() if name not in absent}
        body = orders.fill(section.body, {"id": order_id, **present, section.key: order_id})
        try:
            details = json.loads(body, parse_constant=_no_constant)
        except ValueError as error:
            problems.add("order.body", f"is not JSON when filled in: {error}: {body[:200]}")
            return None
        path = paths.find(details, section.key)
        if (
            not isinstance(details, dict)
            or path is None
            or str(paths.at(details, path)) != str(order_id)
        ):
            where = f'"{section.key}": {{{section.key}}} as a member'
            if "." in section.key:
                where = f'{{id}} at "{section.key}", the path to the order id'
            problems.add("order.body", f"must be an object with {where}")
            return None
        complete = complete or details
    return complete


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
