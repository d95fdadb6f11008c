"""Eventually consistent reads that answer from before an item's last write. Pure.

Amazon DynamoDB developer guide, "Read consistency": such a read might not reflect the
results of a recently completed write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from analysis.schema import Action, CallItem, Decision, item_text
from consumer.aws_wire import short_name
from consumer.dynamodb_wire import Attributes, Reply, Request, Touch, key_of, read_images
from consumer.key_locks import Key

KeyNames = Callable[[str], Sequence[str] | None]
"""Names of the key attributes of a table, None when not known."""

_WRITES = (Action.PUT, Action.UPDATE, Action.DELETE)
_fields = msgspec.json.Decoder(dict[str, Any])


class PreviousImages:
    """The image of each item from before its last accepted write, as far as it is known."""

    def __init__(self) -> None:
        self._images: dict[Key, str] = {}

    def learn(self, row: CallItem) -> None:
        """Take in what became of one item of a write."""
        if row.action not in _WRITES:
            return
        key = row.resource, row.item_key
        if row.decision is Decision.ACCEPTED and row.before is not None:
            self._images[key] = row.before
        elif row.decision in (Decision.ACCEPTED, Decision.UNKNOWN):
            self._images.pop(key, None)

    def of(self, key: Key) -> Attributes | None:
        """The item (empty: there was none); None when it is not known."""
        image = self._images.get(key)
        return None if image is None else json.loads(image)


def stale(
    request: Request, body: bytes, reply: Reply, previous: PreviousImages, key_names: KeyNames
) -> tuple[bytes, int] | None:
    """The reply with its items as they were before their last write, and how many changed.

    None when nothing would be different: nothing was written, the read is consistent or
    a transaction, or what it would have returned cannot be told.
    """
    fields = _fields.decode(body)
    match request.operation:
        case "GetItem":
            changed = _get(request, fields, reply, previous, key_names)
        case "BatchGetItem":
            changed = _batch(request, fields, reply, previous, key_names)
        case "Query" | "Scan":
            changed = _search(request, fields, previous, key_names)
        case _:
            return None
    return (msgspec.json.encode(fields), changed) if changed else None


def _get(
    request: Request,
    fields: dict[str, Any],
    reply: Reply,
    previous: PreviousImages,
    key_names: KeyNames,
) -> int:
    (touch,) = request.touches
    older = _older(touch, touch.attributes, previous, key_names)
    if older is None or item_text(older) == item_text(reply.item):
        return 0
    if older:
        fields["Item"] = older
    else:
        del fields["Item"]
    return 1


def _batch(
    request: Request,
    fields: dict[str, Any],
    reply: Reply,
    previous: PreviousImages,
    key_names: KeyNames,
) -> int:
    # Keys whose item cannot be found among those returned are left alone.
    images: Mapping[Key, str | None] = read_images(request.touches, reply, key_names)
    changed = 0
    for touch in request.touches:
        older = _older(touch, touch.attributes, previous, key_names)
        names = key_names(touch.table)
        if older is None or names is None:
            continue
        key = key_of(touch.attributes, names)
        image = images.get((short_name(touch.table), item_text(key)))
        if image is None or image == item_text(older):
            continue
        items = fields.setdefault("Responses", {}).setdefault(touch.table, [])
        found = [item for item in items if key_of(item, names) == key]
        if found:
            items.remove(found[0])
        elif not touch.whole:
            continue  # it may have been returned without its key
        if older:
            items.append(older)
        changed += 1
    return changed


def _search(
    request: Request, fields: dict[str, Any], previous: PreviousImages, key_names: KeyNames
) -> int:
    touch = request.search
    if touch is None or not fields.get("Items"):
        return 0
    changed = 0
    items = []
    for item in fields["Items"]:
        older = _older(touch, item, previous, key_names, filtered=request.filtered)
        if older is None or item_text(older) == item_text(item):
            items.append(item)
            continue
        changed += 1
        if older:
            items.append(older)
    gone = len(fields["Items"]) - len(items)
    fields["Items"] = items
    for count in ("Count", "ScannedCount"):
        if isinstance(fields.get(count), int):
            fields[count] -= gone
    return changed


def _older(
    touch: Touch,
    attributes: Attributes,
    previous: PreviousImages,
    key_names: KeyNames,
    *,
    filtered: bool = False,
) -> Attributes | None:
    """What a read would have found earlier: {} for no item; None when that cannot be told.

    :param filtered: whether a filter might have left the earlier image out.
    """
    names = key_names(touch.table)
    key = key_of(attributes, names) if names else None
    if touch.consistent or key is None:
        return None
    older = previous.of((short_name(touch.table), item_text(key)))
    if not older:
        return older
    return None if filtered else touch.part(older)
