"""What orders look like: ids, the body template and its fields, conflicts and poison. Pure.

Everything drawn comes from :class:`Dice`, so one seed gives one set of bodies, on every
machine and Python version.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Collection, Mapping, MutableSequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Any

from analysis.item_kinds import filled
from analysis.schema import item_text, number_text, typed_value
from loadtest import paths

Value = str | bool | int | float | Decimal
"""A field's value before it is written into a body."""


class Dice:
    """Seeded choices for one purpose; a purpose drawing more leaves the others as they are.

    Built on ``random.Random.random`` alone: for an integer seed its sequence is promised
    never to change (Python library reference, "random", notes on reproducibility), which
    is not so for ``randrange``, ``choice`` and ``shuffle``.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
        self._fraction = random.Random(int.from_bytes(digest[:8], "big")).random

    def fraction(self) -> float:
        """At least 0, below 1."""
        return self._fraction()

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count - 1``; each as likely as the others to 1 in 2**53."""
        number = 0
        # 53 bits a draw, and 53 more than the count has, so that the remainder is even.
        for _ in range(count.bit_length() // 53 + 2):
            number = number << 53 | int(self._fraction() * (1 << 53))
        return number % count

    def pick(self, text: str) -> str:
        return text[self.below(len(text))]

    def shuffle(self, values: MutableSequence[int]) -> None:
        for last in range(len(values) - 1, 0, -1):
            other = self.below(last + 1)
            values[last], values[other] = values[other], values[last]


# --- fields -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers from ``lo`` to ``hi``, both included, in units of ``10 ** -places``.

    ``NumberRange(150, 225, 2)`` draws 1.50, 1.51 ... 2.25; whole numbers have 0 places.
    """

    lo: int
    hi: int
    places: int

    def draw(self, dice: Dice) -> Decimal:
        return self._number(self.lo + dice.below(self.hi - self.lo + 1))

    def varies(self) -> bool:
        return self.lo < self.hi

    def outside(self) -> tuple[Decimal, Decimal]:
        """The nearest numbers that do not belong."""
        return self._number(self.lo - 1), self._number(self.hi + 1)

    def _number(self, units: int) -> Decimal:
        # The constructor is exact; arithmetic would round to the context's digits.
        return Decimal(f"{units}e-{self.places}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the given values: all texts, all numbers or all booleans."""

    values: tuple[Value, ...]

    def draw(self, dice: Dice) -> Value:
        return self.values[dice.below(len(self.values))]

    def varies(self) -> bool:
        return any(typed_value(value) != typed_value(self.values[0]) for value in self.values)


@dataclass(frozen=True, slots=True)
class Text:
    """Letters and digits, ``shortest`` to ``longest`` of them."""

    shortest: int
    longest: int

    def draw(self, dice: Dice) -> str:
        length = self.shortest + dice.below(self.longest - self.shortest + 1)
        return "".join(dice.pick(ascii_letters + digits) for _ in range(length))

    def varies(self) -> bool:
        return self.longest > 0


@dataclass(frozen=True, slots=True)
class Field:
    """A field other than the order key."""

    generator: NumberRange | Choice | Text
    optional: float = 0.0  # share of the orders that lack it

    def varies(self) -> bool:
        return self.optional > 0 or self.generator.varies()

    def draw(self, dice: Dice) -> Value | None:
        """A value, or None for an order that lacks the field."""
        if self.optional and dice.fraction() < self.optional:
            return None
        return self.generator.draw(dice)

    def draw_other(self, dice: Dice, value: Value | None) -> Value | None:
        """Anything but ``value``; only for a field that varies."""
        if value is not None and not self.generator.varies():
            return None
        other = self.generator.draw(dice)
        while value is not None and typed_value(other) == typed_value(value):
            other = self.generator.draw(dice)
        return other


# --- the body template ------------------------------------------------------------------
#
# A template is JSON text in which {name} stands for a value. Inside quotes the value's
# characters are put in; without quotes its JSON form is: a text then brings its own.

_PLACEHOLDER = re.compile(r"\{([\w.-]+)\}")
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # a text
    r"|\{[\w.-]+\}"  # a placeholder
    r"|[{}\[\]:,]"
    r"|\s+"
    r'|[^"{}\[\]:,\s]+'  # a number or a word
    r"|.",  # a quote that is never closed: reading the body as JSON will say so
    re.DOTALL,
)


def placeholders(template: str) -> tuple[str, ...]:
    """The names in a template, each once, in order of appearance."""
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(template)))


def members(template: str) -> tuple[str, ...]:
    """The names that are the whole value of one member of an object, and used nowhere else.

    In ``{"a": {x}, "b": "{y}", "c": "no. {z}"}``: x and y.
    """
    return tuple(
        name
        for name in placeholders(template)
        if _PLACEHOLDER.findall(template).count(name) == 1 and _member(template, name)
    )


def fill(template: str, values: Mapping[str, Value]) -> str:
    """The body with these values; a member whose name has no value is left out.

    >>> fill('{"id": "{id}", "note": {note}, "n": {n}}', {"id": "a-1", "n": Decimal("2.50")})
    '{"id": "a-1", "n": 2.50}'
    """
    for name in placeholders(template):
        if name not in values:
            template = _without(template, name)
    return "".join(_filled(token, values) for token in _TOKEN.findall(template))


def _filled(token: str, values: Mapping[str, Value]) -> str:
    if token.startswith('"'):
        return _PLACEHOLDER.sub(lambda match: _json_characters(values[match[1]]), token)
    match = _PLACEHOLDER.fullmatch(token)
    return _json_form(values[match[1]]) if match else token


def _json_form(value: Value) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def _json_characters(value: Value) -> str:
    return _json_form(value)[1:-1] if isinstance(value, str) else _json_form(value)


def _member(template: str, name: str) -> tuple[int, int] | None:
    """Where the member with this value begins and ends, with the comma that goes with it."""
    spans = [match.span() for match in _TOKEN.finditer(template) if not match[0].isspace()]
    texts = [template[start:end] for start, end in spans]
    for at, text in enumerate(texts):
        if text in (f"{{{name}}}", f'"{{{name}}}"') and at >= 3 and texts[at - 1] == ":":
            if texts[at - 3] == ",":
                return spans[at - 3][0], spans[at][1]
            if at + 2 < len(texts) and texts[at + 1] == ",":
                return spans[at - 2][0], spans[at + 2][0]
            return spans[at - 2][0], spans[at][1]
    return None


def _without(template: str, name: str) -> str:
    span = _member(template, name)
    if span is None:
        raise ValueError(f"{name} is not the whole value of a member of the body")
    return template[: span[0]] + template[span[1] :]


# --- orders -----------------------------------------------------------------------------


class PoisonKind(StrEnum):
    """Ways to be a message that no handler can accept."""

    BAD_JSON = "bad-json"  # the body without its last character
    MISSING_FIELD = "missing-field"  # without one field that no order lacks
    EXTRA_FIELD = "extra-field"  # with one that no order has
    WRONG_TYPE = "wrong-type"  # true for 4, "4" for 4, 7 for "a", ...
    OUT_OF_RANGE = "out-of-range"  # just below or above a number's range
    EMPTY_OBJECT = "empty-object"
    ARRAY = "array"  # a good order in a list
    NULL = "null"


@dataclass(frozen=True, slots=True)
class MessageAttribute:
    """A message attribute as it is sent."""

    name: str
    type: str  # String, Number or Binary, perhaps with a label: Number.int
    value: str | bytes


def attribute_value(attribute: MessageAttribute) -> dict[str, Any]:
    """A message attribute in the words of SQS."""
    kind = "BinaryValue" if isinstance(attribute.value, bytes) else "StringValue"
    return {"DataType": attribute.type, kind: attribute.value}


def attribute_size(attribute: MessageAttribute) -> int:
    """Bytes that it takes of the limit of a message."""
    value = attribute.value
    content = value.encode() if isinstance(value, str) else value
    return len(attribute.name.encode()) + len(attribute.type) + len(content)


@dataclass(frozen=True, slots=True)
class AttributeShape:
    """A message attribute whose value may have placeholders, as the body has."""

    name: str
    type: str
    template: str


class EnvelopeKind(StrEnum):
    SNS = "sns"
    S3 = "s3"
    EVENTBRIDGE = "eventbridge"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a service puts around the body: see :mod:`loadtest.envelopes`."""

    kind: EnvelopeKind
    topic: str = "orders"  # of SNS, the topic's name
    subject: str | None = None
    source: str = "onceproof"  # of EventBridge
    detail_type: str = "Order"
    object_key: str = "orders/{id}/{n}.json"
    """Of S3. ``{id}`` is the order's id, ``{n}`` tells different contents of one order apart."""


@dataclass(frozen=True, slots=True)
class OrderShape:
    """What one order is made of.

    ``template`` has a placeholder for the order id, called ``id`` or as ``key`` is, and for
    every name in ``fields``; optional fields are whole members of the body.
    """

    key: str  # the name or path of the body's member with the order id
    template: str
    fields: Mapping[str, Field]
    attributes: Mapping[str, str]  # body field -> item attribute, the key's too; paths likewise
    conflict: tuple[str, ...] = ()  # fields of which a conflict changes one; each varies
    key_type: str = "S"  # of the key's attribute: S, N or B
    near_ids: float = 0.0  # further orders with an id close to another's, as a share
    poison: tuple[PoisonKind, ...] = tuple(PoisonKind)
    spellings: bool = False  # every copy says the same in another spelling
    key_form: str | None = None  # of the key's attribute, where it holds more than the id
    message_attributes: tuple[AttributeShape, ...] = ()
    envelope: Envelope | None = None
    id_prefix: str = ""  # of every order id; digits where the key is a number

    @property
    def has_objects(self) -> bool:
        """Whether the messages tell of objects in a bucket."""
        return self.envelope is not None and self.envelope.kind is EnvelopeKind.S3

    @property
    def id_names(self) -> frozenset[str]:
        """The placeholders of the order id."""
        return frozenset({self.key} | ({"id"} - self.fields.keys()))


def new_id(shape: OrderShape, dice: Dice, taken: Collection[str]) -> str:
    """An id that is not ``taken``: ``kT4f-9ZbX2m``, or digits where the key is a number.

    After the shape's prefix it begins with a lower-case letter, an upper-case letter and a
    digit, so that each matters in every id.
    """
    while True:
        if shape.key_type == "N":
            # With a prefix still short enough for languages whose numbers have 53 bits.
            order_id = (
                f"{shape.id_prefix}{dice.below(10**9):09d}"
                if shape.id_prefix
                else str(1 + dice.below(10**12))
            )
        else:
            head = dice.pick(ascii_lowercase) + dice.pick(ascii_uppercase) + dice.pick(digits)
            tail = "".join(dice.pick(ascii_letters + digits) for _ in range(7))
            order_id = f"{shape.id_prefix}{head}{tail[0]}-{tail[1:]}"
        if order_id not in taken:
            return order_id


def near_id(order_id: str, number: int, taken: Collection[str]) -> str:
    """An id that careless code takes for ``order_id``: other case, a leading zero, a blank
    before or after, in turn by ``number``. Only for keys that are no numbers.
    """
    near = (order_id.swapcase(), f"0{order_id}", f" {order_id}", f"{order_id} ")
    candidate = near[number % len(near)]
    # An id of another order may happen to be this one in the other case.
    return candidate if candidate not in taken else near_id(order_id, number + 1, taken)


def draw_values(shape: OrderShape, dice: Dice) -> dict[str, Value]:
    """Values of an order's fields, those it lacks left out."""
    drawn = {name: field.draw(dice) for name, field in shape.fields.items()}
    return {name: value for name, value in drawn.items() if value is not None}


def conflicting_values(
    shape: OrderShape, values: Mapping[str, Value], dice: Dice
) -> dict[str, Value]:
    """The same with one of the conflict fields changed (or left out, or put in)."""
    name = shape.conflict[dice.below(len(shape.conflict))]
    other = shape.fields[name].draw_other(dice, values.get(name))
    kept = {field: value for field, value in values.items() if field != name}
    return kept if other is None else kept | {name: other}


def body_text(shape: OrderShape, order_id: str, values: Mapping[str, Value]) -> str:
    return fill(shape.template, _with_id(shape, order_id, values))


def sample_body(shape: OrderShape) -> Any:
    """The body of an order that has all its fields, as JSON has it."""
    dice = Dice(0, "sample")
    values = {name: field.generator.draw(dice) for name, field in shape.fields.items()}
    return json.loads(body_text(shape, "1", values))


def message_attributes(
    shape: OrderShape, order_id: str, values: Mapping[str, Value]
) -> tuple[MessageAttribute, ...]:
    """Those of one message. One whose field the message lacks is left out, and so is an empty
    text, which SQS does not take."""
    if not shape.message_attributes:
        return ()
    known = _with_id(shape, order_id, values)
    found = []
    for one in shape.message_attributes:
        if any(name not in known for name in placeholders(one.template)):
            continue
        text = _PLACEHOLDER.sub(lambda match: _plain_text(known[match[1]]), one.template)
        if text:
            binary = one.type.startswith("Binary")
            found.append(MessageAttribute(one.name, one.type, text.encode() if binary else text))
    return tuple(found)


def _with_id(shape: OrderShape, order_id: str, values: Mapping[str, Value]) -> dict[str, Value]:
    return {**values, **dict.fromkeys(shape.id_names, _key_value(shape, order_id))}


def _plain_text(value: Value) -> str:
    return value if isinstance(value, str) else _json_form(value)


def respelled(body: str, dice: Dice) -> str:
    """The same object in another spelling: its members in another order, other blanks, a
    letter written as an escape. Numbers stay as they are written.
    """
    tokens = [token for token in _TOKEN.findall(body) if not token.isspace()]
    spelled: list[str] = []
    depth = 0
    for token in tokens[1:-1]:
        if token == "," and depth == 0:
            spelled.append("")
            continue
        depth += (token in ("{", "[")) - (token in ("}", "]"))
        if not spelled:
            spelled.append("")
        spelled[-1] += _escaped(token, dice) + " " * dice.below(2)
    turn = dice.below(len(spelled))
    return "{" + ", ".join(spelled[turn:] + spelled[:turn]) + "}"


def _escaped(token: str, dice: Dice) -> str:
    """A text with its first letter as an escape, every other time."""
    if token.startswith('"') and token[1].isalnum() and token[1] < "\uffff" and dice.below(2):
        return f'"\\u{ord(token[1]):04x}{token[2:]}'
    return token


def expected_item(shape: OrderShape, body: str) -> str:
    """Canonical item text of a body's details, under the names they have in the table."""
    details: dict[str, Any] = json.loads(body, parse_float=Decimal)
    item: dict[str, Any] = {}
    for name, attribute in shape.attributes.items():
        path = paths.find(details, name)
        if path is None:
            continue
        value = typed_value(paths.at(details, path))
        if name == shape.key:
            value = _key_attribute(shape, str(paths.at(details, path)), value)
        paths.put(item, attribute, value)
    return item_text(item)


def _key_attribute(shape: OrderShape, order_id: str, value: dict[str, Any]) -> dict[str, Any]:
    match shape.key_type:
        case "N":
            return {"N": number_text(order_id)}
        case "B":
            return typed_value(order_id.encode())
    if shape.key_form is not None:
        return {"S": filled(shape.key_form, order_id) or order_id}
    return value


def poison_bodies(
    shape: OrderShape, order_id: str, dice: Dice
) -> dict[PoisonKind, tuple[str, ...]]:
    """Every way to spoil one drawn order, by kind. Which kinds, and how many ways each has,
    depends on the shape alone; a kind that its body has no place for is left out.
    """
    drawn = {name: field.generator.draw(dice) for name, field in shape.fields.items()}
    values = _with_id(shape, order_id, drawn)
    body = fill(shape.template, values)
    whole = members(shape.template)
    ids = shape.id_names
    required = [name for name in whole if name in ids or not shape.fields[name].optional]
    extra = "unexpected"
    while extra in body:
        extra += "_"
    bodies = {
        PoisonKind.BAD_JSON: [body.rstrip()[:-1]],
        PoisonKind.MISSING_FIELD: [
            fill(_without(shape.template, name), values) for name in required
        ],
        PoisonKind.EXTRA_FIELD: [_with_member(shape, values, body, extra)],
        PoisonKind.WRONG_TYPE: [
            _spoiled(shape.template, name, literal, values)
            for name in whole
            for literal in _wrong_types(shape.template, name, values[name])
        ],
        PoisonKind.OUT_OF_RANGE: [
            fill(shape.template, {**values, name: number})
            for name, field in shape.fields.items()
            if name in whole and isinstance(field.generator, NumberRange)
            for number in field.generator.outside()
        ],
        PoisonKind.EMPTY_OBJECT: ["{}"],
        PoisonKind.ARRAY: [f"[{body}]"],
        PoisonKind.NULL: ["null"],
    }
    return {kind: tuple(bodies[kind]) for kind in shape.poison if bodies[kind]}


def _with_member(shape: OrderShape, values: Mapping[str, Value], body: str, extra: str) -> str:
    """The body with one more member, in the object that has the order's id."""
    names = [name for name in placeholders(shape.template) if name in shape.id_names]
    span = _member(shape.template, names[0]) if "." in shape.key else None
    if span is None:
        return f'{body.rstrip()[:-1]}, "{extra}": true}}'
    start, end = span
    # The comma that goes with the member is before or after it.
    member = shape.template[start:end].rstrip().removesuffix(",")
    more = f'{member}, "{extra}": true'
    return fill(shape.template[:start] + more + shape.template[start + len(member) :], values)


def _key_value(shape: OrderShape, order_id: str) -> Value:
    return int(order_id) if shape.key_type == "N" else order_id


def _wrong_types(template: str, name: str, value: Value) -> tuple[str, ...]:
    """JSON forms that are of another type than the value has in the body."""
    if f'"{{{name}}}"' in template or isinstance(value, str):
        return "7", "true", '["x"]'
    if isinstance(value, bool):
        return '"true"', "7"
    return "true", f'"{_json_form(value)}"', f"[{_json_form(value)}]"


def _spoiled(template: str, name: str, literal: str, values: Mapping[str, Value]) -> str:
    tokens = _TOKEN.findall(template)
    spoiled = [literal if token in (f"{{{name}}}", f'"{{{name}}}"') else token for token in tokens]
    return fill("".join(spoiled), values)
