"""The shape of an order from a saved event, as ``sam local invoke`` takes one. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from loadtest.orders import EnvelopeKind, placeholders
from loadtest.problems import names_of
from loadtest.sections import OrderSection

_NAME = re.compile(r"\w+", re.ASCII)
_USUAL_KEYS = ("order_id", "orderId", "orderID", "OrderId", "id", "ID", "Id")
_LARGEST = 10**12
"""A number above this is an id or a time: it is left as it is."""


_MOST_PLACES = 9
"""A number with more is measured, not chosen."""


@dataclass(frozen=True, slots=True)
class OrderSample:
    key: str
    body: str  # with {name} in place of the key and of each field
    fields: Mapping[str, str]  # name -> its generator, as TOML
    conflict: str | None  # a field that may differ
    envelope: EnvelopeKind | None = None  # what was around it in the event


def sample_of(text: str, table_key: str | None) -> OrderSample | None:
    """The order in the first SQS record of an event; None where there is none, or where it
    is not plain to see.

    :param table_key: the key of the orders' table, which the body may have under that name.
    """
    order, envelope = _first_order(text)
    if order is None:
        return None
    candidates = [table_key, *_USUAL_KEYS, *(name for name in order if name.lower().endswith("id"))]
    key = next(
        (name for name in candidates if name in order and _is_id(order[name]) and _usable(name)),
        None,
    )
    if key is None:
        return None
    fields: dict[str, str] = {}
    members: list[str] = []
    for name, value in order.items():
        generator = None if name == key or not _usable(name) else _generator(value)
        if name == key or generator is not None:
            form = f'"{{{name}}}"' if isinstance(value, str) else f"{{{name}}}"
        else:
            form = json.dumps(value, ensure_ascii=False, default=float)
        if generator is not None:
            fields[name] = generator
        members.append(f"{json.dumps(name, ensure_ascii=False)}: {form}")
    body = "{" + ", ".join(members) + "}"
    if set(placeholders(body)) != {key, *fields}:
        return None  # a text of the sample looks like a placeholder
    numbers = (name for name in fields if not isinstance(order[name], str))
    return OrderSample(key, body, fields, next(numbers, None), envelope)


def _first_order(text: str) -> tuple[dict[str, Any] | None, EnvelopeKind | None]:
    envelope = None
    try:
        event = json.loads(text)
        record = event["Records"][0]
        order = _json(record["body"]) if record["eventSource"] == "aws:sqs" else None
        match order:
            # As the services wrap them: Amazon SNS developer guide, "Fanout to Amazon SQS
            # queues"; EventBridge user guide, "Events".
            case {"Type": "Notification", "TopicArn": _, "Message": message}:
                envelope, order = EnvelopeKind.SNS, _json(message)
            case {"detail-type": _, "detail": detail}:
                envelope, order = EnvelopeKind.EVENTBRIDGE, detail
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None, None
    return (order if isinstance(order, dict) else None), envelope


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _usable(name: str) -> bool:
    """Whether ``[order]`` can have a generator of this name."""
    return _NAME.fullmatch(name) is not None and name not in names_of(OrderSection)


def _generator(value: object) -> str | None:
    """A generator that a handler which took the value should take too."""
    match value:
        case bool():
            return "choice = [true, false]"
        case int() if abs(value) < _LARGEST:
            return f"integer = [{min(value, 1)}, {max(value, 10)}]"
        case Decimal() if value.is_finite() and abs(value) < _LARGEST:
            places = max(-int(value.as_tuple().exponent), 0)
            if places > _MOST_PLACES:
                return None
            return f"decimal = [{min(int(value) - 1, 1)}, {max(int(value) + 1, 10)}, {places}]"
        case str():
            # What it may be instead, the handler alone knows.
            return f"choice = [{json.dumps(value, ensure_ascii=False)}]".replace("\x7f", "\\u007f")
    return None
