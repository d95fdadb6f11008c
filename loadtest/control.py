"""``loadtest run --control``: would this load have caught a handler with a known race?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import consumer
from analysis.errors import UsageError
from analysis.item_kinds import ANYTHING, ORDER_ID
from analysis.schema import TableRole
from loadtest import paths
from loadtest.config import Settings
from loadtest.orders import sample_body
from loadtest.sections import ResultSettings

_SORT_VALUES = {"S": "ORDER", "N": "0", "B": "ORDER"}


def control_settings(settings: Settings) -> Settings:
    """The same load on the same queue and tables, with ``consumer/control.py`` as the handler.

    It fits every order that a body template makes: where its key and its details are in a body
    is known.

    :raises UsageError: the messages are made by a function, or tell of objects in a bucket.
    """
    if settings.plan is not None or settings.order.has_objects:
        why = "order.plan" if settings.plan is not None else 'order.envelope "s3"'
        raise UsageError(
            f"--control: goes without {why}: the control's handler reads orders from messages "
            "that are made by order.body. Check the load with loadtest mutants instead."
        )
    table = next(table for table in settings.tables if table.role is TableRole.ORDERS)
    kind = table.order_items
    keys = [(table.key, table.key_type, ORDER_ID)]
    if table.sort is not None:
        keys.append((table.sort, table.sort_type, _SORT_VALUES[table.sort_type]))
    complete_when = table.complete_when
    if kind is not None:
        forms = (kind.key, kind.sort)
        keys = [
            (name, type_, text if form is None else form.replace(ANYTHING, "x"))
            for (name, type_, text), form in zip(keys, forms, strict=False)
        ]
        complete_when = kind.complete_when
    fixed = [(name, "S", texts[0]) for name, texts in complete_when.items() if texts]
    sample = sample_body(settings.order)
    places = {name: paths.find(sample, name) for name in settings.order.attributes}
    envelope = settings.order.envelope
    shape = json.dumps(
        [
            None if envelope is None else envelope.kind,
            places[settings.order.key],
            keys,
            fixed,
            [
                (places[name], attribute)
                for name, attribute in settings.order.attributes.items()
                if places[name] is not None
            ],
        ]
    )
    # Lists and texts only, so every brace is within a text; there it must not look like the
    # placeholder of a name.
    shape = shape.replace("{", "\\u007b").replace("}", "\\u007d")
    handler = settings.handler.model_copy(
        update={
            "code": Path(consumer.__file__).parent,
            "handler": "control.handler",
            "environment": {"TABLE_NAME": f"{{table:{table.name}}}", "SHAPE": shape},
        }
    )
    return replace(settings, handler=handler, result=ResultSettings.model_validate({}))
