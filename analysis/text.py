"""Foreign text made safe to show, and numbers made readable."""

from __future__ import annotations

import json
from typing import Any

from analysis.schema import NO_ITEM

SHORT_TEXT = 120  # characters of a key, an item, a condition or an error


def milliseconds(time_ns: int) -> str:
    """Milliseconds with at most three decimals and no trailing zeros."""
    text = f"{time_ns / 1e6:,.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def duration_text(time_ns: int | None) -> str:
    """Milliseconds with at least three significant digits; a dash for ``None``."""
    if time_ns is None:
        return "-"
    decimals = 1 if abs(time_ns) >= 100_000_000 else 2 if abs(time_ns) >= 1_000_000 else 3
    return f"{time_ns / 1e6:,.{decimals}f}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def visible(text: str, most: int = SHORT_TEXT) -> str:
    """Text bounded and with every character visible.

    Keys, bodies and errors are foreign: escape codes and direction marks must not reach a
    terminal, nor a page.
    """
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in short
    )


def quoted(text: str, most: int = SHORT_TEXT) -> str:
    """Like :func:`visible`, in double quotes."""
    return json.dumps(visible(text, most), ensure_ascii=False)


def short_item(text: str, most: int = SHORT_TEXT) -> str:
    """Canonical item text for reading: ``id="a", quantity=4``; "no item" for none."""
    if text == NO_ITEM:
        return "no item"
    try:
        attributes = json.loads(text)
        parts = [f"{visible(name)}={_value_text(value)}" for name, value in attributes.items()]
    except (ValueError, AttributeError):
        return quoted(text, most)
    joined = ", ".join(parts)
    return joined if len(joined) <= most else joined[: most - 1] + "…"


def _value_text(value: Any) -> str:
    match value:
        case {"S": str(text)}:
            return quoted(text, 60)
        case {"N": str(number)}:
            return visible(number, 60)
    return visible(json.dumps(value, ensure_ascii=False, sort_keys=True), 60)
