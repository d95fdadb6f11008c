"""DynamoDB's requests and replies: which items they touch and what became of them. Pure.

Formats: DynamoDB API reference, version 2012-08-10, JSON protocol. A request that does
not have the form documented there is none of ours to explain: it is forwarded as it is.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from analysis.schema import NO_ITEM, Action, CallItem, Decision, item_text
from consumer.aws_wire import short_name

TARGET = "DynamoDB_20120810."
"""What ``X-Amz-Target`` begins with."""

MAX_READ_ROWS = 100
"""Evidence keeps this many of the items one read returned."""

MAX_BATCH_KEYS = 100
"""Keys of one BatchGetItem (API reference)."""

Attributes = dict[str, Any]
"""An item or a key in DynamoDB JSON: ``{"id": {"S": "a"}}``."""

_CONDITION_FAILED = "ConditionalCheckFailedException"
_CANCELLED = "TransactionCanceledException"


# --- requests -------------------------------------------------------------------------


class _Write(msgspec.Struct, rename="pascal"):
    """PutItem, UpdateItem, DeleteItem, and the same inside a transaction."""

    table_name: str
    item: Attributes | None = None
    key: Attributes | None = None
    condition_expression: str | None = None
    expression_attribute_names: dict[str, str] | None = None
    expression_attribute_values: Attributes | None = None
    expected: dict[str, Any] | None = None
    return_values: str | None = None
    return_values_on_condition_check_failure: str | None = None


class _TransactWrite(msgspec.Struct, rename="pascal"):
    put: _Write | None = None
    update: _Write | None = None
    delete: _Write | None = None
    condition_check: _Write | None = None


class _TransactWriteItems(msgspec.Struct, rename="pascal"):
    transact_items: list[_TransactWrite]
    client_request_token: str | None = None


class _Put(msgspec.Struct, rename="pascal"):
    item: Attributes


class _Delete(msgspec.Struct, rename="pascal"):
    key: Attributes


class _BatchWrite(msgspec.Struct, rename="pascal"):
    put_request: _Put | None = None
    delete_request: _Delete | None = None


class _BatchWriteItem(msgspec.Struct, rename="pascal"):
    request_items: dict[str, list[_BatchWrite]]


class _Projected(msgspec.Struct, rename="pascal", kw_only=True):
    consistent_read: bool = False
    projection_expression: str | None = None
    attributes_to_get: list[str] | None = None
    expression_attribute_names: dict[str, str] | None = None

    @property
    def whole(self) -> bool:
        return self.projection_expression is None and self.attributes_to_get is None

    @property
    def shown(self) -> frozenset[str] | None:
        """The attributes asked for; None when a part of one is."""
        if self.projection_expression is None:
            return frozenset(self.attributes_to_get or ())
        names = self.expression_attribute_names or {}
        paths = [path.strip() for path in self.projection_expression.split(",")]
        if any("." in path or "[" in path for path in paths):
            return None
        return frozenset(names.get(path, path) for path in paths)


class _Get(_Projected, rename="pascal", kw_only=True):
    table_name: str
    key: Attributes


class _Keys(_Projected, rename="pascal", kw_only=True):
    keys: list[Attributes]


class _BatchGetItem(msgspec.Struct, rename="pascal"):
    request_items: dict[str, _Keys]


class _TransactGet(msgspec.Struct, rename="pascal"):
    get: _Get


class _TransactGetItems(msgspec.Struct, rename="pascal"):
    transact_items: list[_TransactGet]


class _Search(_Projected, rename="pascal", kw_only=True):
    """Query and Scan."""

    table_name: str
    index_name: str | None = None
    select: str | None = None
    filter_expression: str | None = None
    query_filter: dict[str, Any] | None = None
    scan_filter: dict[str, Any] | None = None

    @property
    def filtered(self) -> bool:
        return (self.filter_expression or self.query_filter or self.scan_filter) is not None


@dataclass(frozen=True, slots=True)
class Touch:
    """One item that a request names."""

    action: Action
    table: str  # as sent: a name or an ARN
    attributes: Attributes  # its key; of a put, the whole item
    condition: str | None = None
    whole: bool = True  # a read of the whole item
    shown: frozenset[str] | None = None  # of a read of whole attributes: their names
    consistent: bool = False  # a read that must not be stale

    def part(self, item: Attributes) -> Attributes | None:
        """What this read would have returned of an item; None when that cannot be told."""
        if self.whole:
            return item
        if self.shown is None:
            return None
        return {name: value for name, value in item.items() if name in self.shown}


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose items evidence can name, and what its images take."""

    operation: str
    body: bytes  # what to forward
    touches: tuple[Touch, ...] = ()
    search: Touch | None = None  # Query or Scan: its items are known from the reply alone
    filtered: bool = False  # a search that leaves out what does not match a filter
    exclusive: bool = False  # no other write of the same keys meanwhile
    reads_before: bool = False  # no reply can tell: read the items first
    reads_after: bool = False  # and again when it was accepted
    hides_old: bool = False  # the old item was not asked for by the handler
    hides_rejecting: bool = False  # nor the item that made the condition fail
    token: str | None = None  # ClientRequestToken of a transaction

    @property
    def tables(self) -> set[str]:
        """The tables it is about, as sent."""
        if self.search is not None:
            return {self.search.table}
        return {touch.table for touch in self.touches}

    @property
    def writes(self) -> bool:
        return bool(self.touches) and self.touches[0].action is not Action.READ


_ACTIONS = {"PutItem": Action.PUT, "UpdateItem": Action.UPDATE, "DeleteItem": Action.DELETE}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_write = msgspec.json.Decoder(_Write)
_ALL_OLD = msgspec.Raw(b'"ALL_OLD"')


def parse(operation: str, body: bytes) -> Request | None:
    """What a request is about; None for an operation or a form that is not known here."""
    try:
        match operation:
            case "PutItem" | "UpdateItem" | "DeleteItem":
                return _parse_write(operation, body)
            case "GetItem":
                return Request(operation, body, (_get(msgspec.json.decode(body, type=_Get)),))
            case "Query" | "Scan":
                search = msgspec.json.decode(body, type=_Search)
                # An index may hold a part of the item only; so may COUNT and its like.
                plain = search.index_name is None and search.select in (None, "ALL_ATTRIBUTES")
                touch = Touch(
                    Action.READ,
                    search.table_name,
                    {},
                    whole=search.whole and plain,
                    consistent=search.consistent_read,
                )
                return Request(operation, body, search=touch, filtered=search.filtered)
            case "BatchGetItem":
                tables = msgspec.json.decode(body, type=_BatchGetItem).request_items
                touches = [
                    _read(entry, table, key)
                    for table, entry in tables.items()
                    for key in entry.keys
                ]
                return Request(operation, body, tuple(touches))
            case "TransactGetItems":
                gets = msgspec.json.decode(body, type=_TransactGetItems).transact_items
                return Request(operation, body, tuple(_get(entry.get) for entry in gets))
            case "TransactWriteItems":
                transaction = msgspec.json.decode(body, type=_TransactWriteItems)
                return Request(
                    operation,
                    body,
                    tuple(_transact_touch(entry) for entry in transaction.transact_items),
                    exclusive=True,
                    reads_before=True,
                    reads_after=True,
                    token=transaction.client_request_token,
                )
            case "BatchWriteItem":
                batch = msgspec.json.decode(body, type=_BatchWriteItem).request_items
                return Request(
                    operation,
                    body,
                    tuple(_batch_touch(table, entry) for table in batch for entry in batch[table]),
                    exclusive=True,
                    reads_before=True,
                    reads_after=True,
                )
    except (msgspec.DecodeError, UnicodeDecodeError, _UnknownFormError):
        pass
    return None


class _UnknownFormError(Exception):
    """A request that lacks what its operation needs."""


def _parse_write(operation: str, body: bytes) -> Request:
    write = _write.decode(body)
    action = _ACTIONS[operation]
    touch = _write_touch(action, write)
    update = action is Action.UPDATE
    # The legacy Expected cannot be mixed with newer parameters, so those are not added.
    if write.expected is not None or write.return_values not in (None, "NONE", "ALL_OLD"):
        return Request(
            operation, body, (touch,), exclusive=True, reads_before=True, reads_after=True
        )
    hides_old = write.return_values != "ALL_OLD"
    hides_rejecting = (
        write.condition_expression is not None
        and write.return_values_on_condition_check_failure in (None, "NONE")
    )
    if hides_old or hides_rejecting:
        fields = _fields.decode(body)
        if hides_old:
            fields["ReturnValues"] = _ALL_OLD
        if hides_rejecting:
            fields["ReturnValuesOnConditionCheckFailure"] = _ALL_OLD
        body = msgspec.json.encode(fields)
    return Request(
        operation,
        body,
        (touch,),
        exclusive=update,
        reads_after=update,
        hides_old=hides_old,
        hides_rejecting=hides_rejecting,
    )


def _write_touch(action: Action, write: _Write) -> Touch:
    attributes = write.item if action is Action.PUT else write.key
    if attributes is None:
        raise _UnknownFormError
    return Touch(action, write.table_name, attributes, _condition_text(write))


def _transact_touch(entry: _TransactWrite) -> Touch:
    for action, write in (
        (Action.PUT, entry.put),
        (Action.UPDATE, entry.update),
        (Action.DELETE, entry.delete),
        (Action.CHECK, entry.condition_check),
    ):
        if write is not None:
            return _write_touch(action, write)
    raise _UnknownFormError


def _batch_touch(table: str, entry: _BatchWrite) -> Touch:
    if entry.put_request is not None:
        return Touch(Action.PUT, table, entry.put_request.item)
    if entry.delete_request is not None:
        return Touch(Action.DELETE, table, entry.delete_request.key)
    raise _UnknownFormError


def _get(get: _Get) -> Touch:
    return _read(get, get.table_name, get.key)


def _read(asked: _Projected, table: str, key: Attributes) -> Touch:
    whole = asked.whole
    return Touch(
        Action.READ,
        table,
        key,
        whole=whole,
        shown=None if whole else asked.shown,
        consistent=asked.consistent_read,
    )


# --- batch writes ---------------------------------------------------------------------


class _RawBatch(msgspec.Struct, rename="pascal"):
    request_items: dict[str, list[msgspec.Raw]]


class _RawUnprocessed(msgspec.Struct, rename="pascal"):
    unprocessed_items: dict[str, list[msgspec.Raw]] | None = None


Unprocessed = dict[str, list[msgspec.Raw]]
"""Entries of a batch write by table, as sent."""


def halved(request: Request) -> tuple[Request, Unprocessed] | None:
    """A batch write with the first half of its entries, and the others.

    None for a batch of one: a store that can make none of a batch refuses it.
    """
    batch = msgspec.json.decode(request.body, type=_RawBatch).request_items
    entries = [(table, entry) for table, listed in batch.items() for entry in listed]
    if len(entries) < 2:
        return None
    half = (len(entries) + 1) // 2
    fields = _fields.decode(request.body)
    fields["RequestItems"] = msgspec.Raw(msgspec.json.encode(_by_table(entries[:half])))
    return replace(request, body=msgspec.json.encode(fields)), _by_table(entries[half:])


def with_token(request: Request, token: str) -> Request:
    """The same transaction under another token."""
    fields = _fields.decode(request.body)
    fields["ClientRequestToken"] = msgspec.Raw(msgspec.json.encode(token))
    return replace(request, body=msgspec.json.encode(fields), token=token)


def with_unprocessed(body: bytes, more: Unprocessed) -> bytes:
    """The reply to a batch write that left these entries undone as well."""
    fields = _fields.decode(body)
    undone = msgspec.json.decode(body, type=_RawUnprocessed).unprocessed_items or {}
    for table, entries in more.items():
        undone.setdefault(table, []).extend(entries)
    fields["UnprocessedItems"] = msgspec.Raw(msgspec.json.encode(undone))
    return msgspec.json.encode(fields)


def _by_table(entries: Iterable[tuple[str, msgspec.Raw]]) -> Unprocessed:
    tables: Unprocessed = {}
    for table, entry in entries:
        tables.setdefault(table, []).append(entry)
    return tables


# --- conditions -----------------------------------------------------------------------

_PLACEHOLDER = re.compile(r"[#:][A-Za-z0-9_]+")


def _condition_text(write: _Write) -> str | None:
    """A condition as a person would write it: names and values in their places."""
    if write.condition_expression is None:
        return None if write.expected is None else json.dumps(write.expected, sort_keys=True)
    names = write.expression_attribute_names or {}
    values = write.expression_attribute_values or {}

    def put_in(placeholder: re.Match[str]) -> str:
        name = placeholder.group()
        if name.startswith("#"):
            return names.get(name, name)
        return _value_text(values[name]) if name in values else name

    return _PLACEHOLDER.sub(put_in, write.condition_expression)


def _value_text(value: Any) -> str:
    match value:
        case {"N": str(number)}:
            return number
        case {"S": content} | {"BOOL": content}:
            return json.dumps(content, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


# --- keys -----------------------------------------------------------------------------


def key_of(attributes: Attributes, key_names: Sequence[str]) -> Attributes | None:
    """The primary key within an item or a key; None when a part of it is missing."""
    if not all(name in attributes for name in key_names):
        return None
    return {name: attributes[name] for name in key_names}


class _KeySchemaElement(msgspec.Struct, rename="pascal"):
    attribute_name: str


class _Table(msgspec.Struct, rename="pascal"):
    key_schema: list[_KeySchemaElement]


class _DescribeTable(msgspec.Struct, rename="pascal"):
    table: _Table


def described_key_names(reply: bytes) -> tuple[str, ...] | None:
    """Names of the key attributes in the reply of DescribeTable."""
    try:
        table = msgspec.json.decode(reply, type=_DescribeTable).table
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return tuple(element.attribute_name for element in table.key_schema)


def read_requests(keys: Iterable[tuple[str, Attributes]]) -> list[tuple[str, bytes]]:
    """Operations and bodies that read these items, consistently.

    :param keys: table and key, no key twice.
    """
    listed = list(keys)
    if len(listed) == 1:
        ((table, key),) = listed
        body = {"TableName": table, "Key": key, "ConsistentRead": True}
        return [("GetItem", msgspec.json.encode(body))]
    requests = []
    for start in range(0, len(listed), MAX_BATCH_KEYS):
        tables: dict[str, dict[str, Any]] = {}
        for table, key in listed[start : start + MAX_BATCH_KEYS]:
            tables.setdefault(table, {"ConsistentRead": True, "Keys": []})["Keys"].append(key)
        requests.append(("BatchGetItem", msgspec.json.encode({"RequestItems": tables})))
    return requests


# --- replies --------------------------------------------------------------------------


class _Reason(msgspec.Struct, rename="pascal"):
    code: str | None = None


class _ItemOnly(msgspec.Struct, rename="pascal"):
    item: Attributes | None = None


class Reply(msgspec.Struct, rename="pascal"):
    """The members of all replies that matter here."""

    attributes: Attributes | None = None
    item: Attributes | None = None
    items: list[Attributes] | None = None
    responses: dict[str, list[Attributes]] | list[_ItemOnly] | None = None
    cancellation_reasons: list[_Reason] | None = None
    unprocessed_items: dict[str, list[_BatchWrite]] | None = None
    unprocessed_keys: dict[str, _Keys] | None = None


_reply = msgspec.json.Decoder(Reply)


def parse_reply(body: bytes) -> Reply | None:
    """None for text that is no reply of DynamoDB."""
    try:
        return _reply.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def without(body: bytes, member: str) -> bytes:
    """A reply with one of its members taken out, spaced as it was."""
    fields = _fields.decode(body)
    if member not in fields:
        return body
    # A space after the first colon: Python's spacing. AWS sends none.
    between, after_name = (
        (b", ", b": ") if body[body.find(b":") + 1 :][:1] == b" " else (b",", b":")
    )
    return (
        b"{"
        + between.join(
            msgspec.json.encode(name) + after_name + bytes(value)
            for name, value in fields.items()
            if name != member
        )
        + b"}"
    )


def crc32(body: bytes) -> str:
    """What ``x-amz-crc32`` must say."""
    return str(zlib.crc32(body))


def write_decision(decision: Decision, code: str | None, reply: Reply) -> Decision:
    """A decision by status, corrected where the condition alone made the store refuse."""
    if code == _CONDITION_FAILED:
        return Decision.REJECTED
    if code == _CANCELLED:
        codes = {reason.code or "None" for reason in reply.cancellation_reasons or ()}
        if codes - {"None"} == {"ConditionalCheckFailed"}:
            return Decision.REJECTED
    return decision


Image = str | None
"""Canonical item text; None: not known."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one exchange showed."""

    decision: Decision  # of the whole call, by its reply
    code: str | None
    reply: Reply | None
    before: Mapping[tuple[str, str], Image] = field(default_factory=dict)
    """Images by table name and key text, where the items were read."""
    after: Mapping[tuple[str, str], Image] = field(default_factory=dict)
    replayed: bool = False  # a transaction with this token was made before


def settle(request: Request, rows: Sequence[CallItem], exchange: Exchange) -> list[CallItem]:
    """What became of each item of a write.

    :param rows: one for each of the request's touches, as written when it was sent.
    """
    reply = exchange.reply or Reply()
    reasons = reply.cancellation_reasons or []
    undone = _unprocessed(reply)
    settled = []
    for position, (touch, row) in enumerate(zip(request.touches, rows, strict=True)):
        decision, code = exchange.decision, exchange.code
        if code == _CANCELLED and position < len(reasons):
            # The store did nothing with the others either, but not because of them.
            code = reasons[position].code
            failed = code == "ConditionalCheckFailed"
            decision = Decision.REJECTED if failed else Decision.FAILED
        elif undone and (touch.table, item_text(touch.attributes)) in undone:
            decision, code = Decision.FAILED, "UnprocessedItem"
        before, after = _images(request, touch, row, decision, exchange)
        action = row.action
        if exchange.replayed and decision is Decision.ACCEPTED and before == after:
            # The token made this a question whether the transaction had been made.
            action = Action.CHECK
        settled.append(
            replace(
                row, action=action, decision=decision, error_code=code, before=before, after=after
            )
        )
    return settled


def _images(
    request: Request,
    touch: Touch,
    row: CallItem,
    decision: Decision,
    exchange: Exchange,
) -> tuple[Image, Image]:
    reply = exchange.reply or Reply()
    key = (row.resource, row.item_key)
    if request.reads_before:
        before = exchange.before.get(key)
        if decision is Decision.ACCEPTED:
            return before, exchange.after.get(key)
        return before, None if decision is Decision.UNKNOWN else before
    match decision:
        case Decision.ACCEPTED if exchange.reply is not None:
            before = item_text(reply.attributes)
            if touch.action is Action.PUT:
                return before, item_text(touch.attributes)
            return before, NO_ITEM if touch.action is Action.DELETE else exchange.after.get(key)
        case Decision.REJECTED:
            before = item_text(reply.item)
            return before, before
    return None, None


def _unprocessed(reply: Reply) -> set[tuple[str, str]]:
    """Table and text of what a batch write left undone, as the request named it."""
    return {
        (table, item_text(_batch_touch(table, entry).attributes))
        for table, entries in (reply.unprocessed_items or {}).items()
        for entry in entries
    }


def read_rows(
    request: Request,
    call_id: int,
    exchange: Exchange,
    key_names: Callable[[str], Sequence[str] | None],
) -> list[CallItem]:
    """One row for each item a read asked for, or returned where it searched.

    :param key_names: names of the key attributes of a table, None when not known.
    """
    reply = exchange.reply or Reply()
    touches: Iterable[Touch] = request.touches
    found: Mapping[tuple[str, str], Image] = {}
    if request.search is not None:
        touches = [replace(request.search, attributes=item) for item in reply.items or ()]
    elif exchange.decision is Decision.ACCEPTED:
        found = read_images(request.touches, reply, key_names)
    rows = []
    for touch in itertools.islice(touches, MAX_READ_ROWS):
        names = key_names(touch.table)
        key = key_of(touch.attributes, names) if names else None
        if key is None:
            continue
        table, key_text = short_name(touch.table), item_text(key)
        image: Image = None
        if touch.whole:
            searched = request.search is not None
            image = item_text(touch.attributes) if searched else found.get((table, key_text))
        rows.append(
            CallItem(
                call_id,
                table,
                key_text,
                Action.READ,
                decision=exchange.decision,
                error_code=exchange.code,
                before=image,
                after=image,
            )
        )
    return rows


def read_images(
    touches: Iterable[Touch],
    reply: Reply,
    key_names: Callable[[str], Sequence[str] | None],
) -> dict[tuple[str, str], Image]:
    """The items a Get, BatchGet or TransactGet found, by table name and key text.

    Items asked for and not returned are absent (:data:`NO_ITEM`), unless the store says
    that it did not get to them.
    """
    asked = []
    for touch in touches:
        names = key_names(touch.table)
        key = key_of(touch.attributes, names) if names else None
        asked.append((short_name(touch.table), item_text(key)) if key else None)
    if isinstance(reply.responses, list):
        return {
            key: item_text(entry.item)
            for key, entry in zip(asked, reply.responses, strict=False)
            if key is not None
        }
    if reply.responses is None:
        return {key: item_text(reply.item) for key in asked if key is not None}
    images: dict[tuple[str, str], Image] = {key: NO_ITEM for key in asked if key is not None}
    for table, items in reply.responses.items():
        for item in items:
            names = key_names(table)
            key = key_of(item, names) if names else None
            if key is not None:
                images[short_name(table), item_text(key)] = item_text(item)
    for table, entry in (reply.unprocessed_keys or {}).items():
        for key in entry.keys:
            images[short_name(table), item_text(key)] = None
    return images
