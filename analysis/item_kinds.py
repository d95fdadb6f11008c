"""Tables that hold several kinds of items, told apart by their keys (single-table designs).

For judging, each kind is a table of its own: the kind of role orders keeps the table's name,
the others are called by it and their form (``shop IDEMP#*``), and what fits no form is
``shop, other items``. :func:`apart` gives their descriptions; :mod:`analysis.store` gives the
rows of the evidence these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from analysis.schema import ItemsInfo, TableInfo, TableRole

ORDER_ID = "{id}"
"""In a form of a key: the order's id."""
ANYTHING = "*"


def pattern_of(form: str) -> str:
    """A form as a regular expression of the whole text, in the syntax that Python's ``re`` and
    RE2 share. Its one group, if any, is the order's id."""
    parts = re.split(r"(\{id\}|\*)", form)
    known = {ORDER_ID: "(.+?)", ANYTHING: ".*?"}
    return f"(?s)^{''.join(known.get(part, re.escape(part)) for part in parts)}$"


def filled(form: str, order_key: str) -> str | None:
    """The text of this form for an order; None where only some of it is known."""
    return None if ANYTHING in form else form.replace(ORDER_ID, order_key)


def order_key_of(items: ItemsInfo, key: str, sort: str = "") -> str | None:
    """The order id that a key of this kind bears; None for a key of another kind.

    :param key: text of the partition key.
    :param sort: text of the sort key, empty where the table has none.
    """
    found = None
    for form, text in ((items.sort, sort), (items.key, key)):
        if form is not None:
            match = re.match(pattern_of(form), text)
            if match is None:
                return None
            found = match[1] if ORDER_ID in form else found
    return key if found is None else found


def apart(tables: Iterable[TableInfo]) -> tuple[TableInfo, ...]:
    """Every kind as a table of its own, ``items`` its one kind. Other tables stay."""
    found: list[TableInfo] = []
    for table in tables:
        if not table.items:
            found.append(table)
            continue
        for kind in table.items:
            is_orders = kind.role is TableRole.ORDERS
            forms = "/".join(form for form in (kind.key, kind.sort) if form is not None)
            found.append(
                replace(
                    table,
                    name=table.name if is_orders else f"{table.name} {forms}",
                    role=kind.role,
                    complete_when=kind.complete_when,
                    items=(kind,),
                )
            )
        rest = replace(table, name=f"{table.name}, other items", role=TableRole.OTHER)
        found.append(replace(rest, complete_when={}, items=(ItemsInfo(TableRole.OTHER),)))
    return tuple(found)
