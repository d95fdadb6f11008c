"""Places in JSON values, as dotted names: ``detail.lines.0.sku``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from analysis.schema import item_text

Path = tuple[str | int, ...]


def find(value: Any, name: str) -> Path | None:
    """Where ``name`` is in a JSON value; None when it is not there.

    A member that is called so as it stands comes first, also where it has full stops in its
    name. Members of a list go by their index from 0.
    """
    match value:
        case Mapping():
            if name in value:
                return (name,)
            for first, rest in _splits(name):
                if first in value and (path := find(value[first], rest)) is not None:
                    return first, *path
        case list():
            first, _, rest = name.partition(".")
            if first.isdigit() and int(first) < len(value):
                if not rest:
                    return (int(first),)
                if (path := find(value[int(first)], rest)) is not None:
                    return int(first), *path
    return None


def _splits(name: str) -> Iterator[tuple[str, str]]:
    parts = name.split(".")
    for at in range(1, len(parts)):
        yield ".".join(parts[:at]), ".".join(parts[at:])


def at(value: Any, path: Sequence[str | int]) -> Any:
    """What is at a place that :func:`find` found."""
    for step in path:
        value = value[step]
    return value


def put(item: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    """Put a DynamoDB attribute value into an item, in a map where the name is a path."""
    *maps, last = name.split(".")
    for step in maps:
        item = item.setdefault(step, {"M": {}})["M"]
    item[last] = value


def details_text(image: Mapping[str, Any], names: Iterable[str]) -> str:
    """The attributes of these names that an item (in DynamoDB JSON) has, as canonical text."""
    found: dict[str, Any] = {}
    for name in names:
        value: Any = image.get(name)
        if value is None and "." in name:
            first, *others = name.split(".")
            value = image.get(first)
            for step in others:
                value = value.get("M", {}).get(step) if isinstance(value, dict) else None
        if value is not None:
            put(found, name, value)
    return item_text(found)
