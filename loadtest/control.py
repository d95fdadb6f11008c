"""``loadtest run --control``: would this load have caught a handler with a known race?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import consumer
from analysis.schema import TableRole
from loadtest.config import Settings
from loadtest.sections import ResultSettings

_SORT_VALUES = {"S": "ORDER", "N": "0", "B": "ORDER"}


def control_settings(settings: Settings) -> Settings:
    """The same load on the same queue and tables, with ``consumer/control.py`` as the handler.

    It fits every order: a body is always a JSON object with the order's key as a member.
    """
    table = next(table for table in settings.tables if table.role is TableRole.ORDERS)
    sort = [] if table.sort is None else [(table.sort, table.sort_type)]
    key = [(name, kind, _SORT_VALUES[kind]) for name, kind in sort]
    complete = [(name, "S", texts[0]) for name, texts in table.complete_when.items() if texts]
    shape = json.dumps(
        [
            settings.order.key,
            (table.key, table.key_type),
            key + complete,
            len(key),
            list(settings.order.attributes.items()),
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
