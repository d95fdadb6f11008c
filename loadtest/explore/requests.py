"""From a request on the wire to a :class:`~loadtest.explore.model.Call`: its text, and the
items that it may look at and change. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from analysis.schema import Action, EffectInfo, TableInfo, item_text
from consumer import dynamodb_wire
from consumer.aws_wire import Protocol, short_name
from consumer.dynamodb_wire import Attributes, Request
from consumer.effects import Effects
from consumer.gate import WireCall
from consumer.redaction import NOTHING_SECRET, Redaction
from loadtest.explore.model import Call
from loadtest.explore.world import EFFECT

TOKEN = "token:"
"""How the items begin that stand for transactions that were made under a token."""
SERVICE = "service:"
"""How the items begin that count the calls that may have changed another service."""
SENT = "sent:"
"""How the items begin that stand for what a FIFO queue or topic has been sent, and drops
when it comes again (SQS and SNS developer guides, deduplication)."""

NO_TABLE = (EFFECT, SENT, SERVICE, TOKEN)
"""How items begin that are in no table."""

_DEDUPLICATION = re.compile(r"MessageDeduplicationId(?:\": |=)(\"[^\"]*\"|[^&]*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item is kept."""

    table: str
    key: Attributes

    @property
    def item(self) -> str:
        return f"{self.table} {item_text(self.key)}"


@dataclass(frozen=True, slots=True)
class Understood:
    """A request, and what it means."""

    call: Call
    wire_call: WireCall
    request: Request | None  # of DynamoDB, where all its items are known
    places: tuple[Place, ...]  # one for each of the request's touches
    effects: tuple[str, ...]  # items of the side effects that it asks for, one for each


class Reader:
    """
    :param tables: those whose keys are known; requests about others may touch anything.
    :param redaction: takes out of a call's text what must not be kept.
    """

    def __init__(
        self,
        tables: Iterable[TableInfo],
        effects: Iterable[EffectInfo],
        redaction: Redaction = NOTHING_SECRET,
    ) -> None:
        self._redaction = redaction
        self._keys = {
            table.name: (table.key,) if table.sort is None else (table.key, table.sort)
            for table in tables
        }
        declared = tuple(effects)
        self._names = [effect.name for effect in declared]
        self._effects = Effects(declared)

    def key_names(self, table: str) -> tuple[str, ...]:
        return self._keys[table]

    def read(self, asked: WireCall) -> Understood:
        subject = asked.subject
        text = request_text(asked, self._redaction)
        request, places = self._request(asked)
        effects = tuple(
            f"{EFFECT}{self._names[one.row.effect - 1]}:{one.row.order_key}"
            for one in self._effects.asked(0, subject, asked.target, asked.body, request)
        )
        if subject.service == "dynamodb":
            call = self._dynamodb_call(text, request, places, effects)
        elif effects or subject.protocol is Protocol.HTTP:
            items = frozenset(effects) | _sent(asked, text)
            call = Call(text, items, items)
        else:
            other = frozenset({f"{SERVICE}{subject.service}"})
            call = Call(text, other, frozenset() if subject.reads else other)
        return Understood(call, asked, request, places, effects)

    def _request(self, asked: WireCall) -> tuple[Request | None, tuple[Place, ...]]:
        if not asked.headers.get("X-Amz-Target", "").startswith(dynamodb_wire.TARGET):
            return None, ()
        request = dynamodb_wire.parse(asked.subject.operation, asked.body)
        if request is None or not {short_name(one) for one in request.tables} <= self._keys.keys():
            return None, ()
        places = []
        for touch in request.touches:
            table = short_name(touch.table)
            key = dynamodb_wire.key_of(touch.attributes, self._keys[table])
            if key is None:
                return None, ()
            places.append(Place(table, key))
        return request, tuple(places)

    def _dynamodb_call(
        self,
        text: str,
        request: Request | None,
        places: tuple[Place, ...],
        effects: tuple[str, ...],
    ) -> Call:
        if request is None:
            return Call(text, everything=True)
        if request.search is not None:
            return Call(text, everything=True, may_be_stale=not request.search.consistent)
        items = frozenset(place.item for place in places)
        if not request.writes:
            stale = any(not touch.consistent for touch in request.touches)
            may_be_stale = stale and request.operation != "TransactGetItems"
            return Call(text, items, may_be_stale=may_be_stale)
        changed = {
            place.item
            for place, touch in zip(places, request.touches, strict=True)
            if touch.action is not Action.CHECK
        }
        also = set(effects) | ({TOKEN + request.token} if request.token is not None else set())
        return Call(
            text,
            items | also,
            frozenset(changed | also),
            is_transaction=request.operation == "TransactWriteItems",
        )


def _sent(asked: WireCall, text: str) -> frozenset[str]:
    """What stands for a message to a FIFO queue or topic; nothing for others."""
    resource = asked.subject.resource or ""
    if not resource.endswith(".fifo"):
        return frozenset()
    named = ",".join(_DEDUPLICATION.findall(text))
    return frozenset({f"{SENT}{resource} {named or text}"})


def request_text(asked: WireCall, redaction: Redaction) -> str:
    """What is asked, the same for equal requests whatever their spelling, without secrets."""
    return redaction.text(_request_text(asked))


def _request_text(asked: WireCall) -> str:
    subject = asked.subject
    if subject.protocol is Protocol.JSON:
        content: Any = _json(asked.body)
        return f"{subject.service}:{subject.operation} {content}"
    if subject.protocol is Protocol.QUERY:
        form = sorted(parse_qsl(asked.body.decode("utf-8", "replace"), keep_blank_values=True))
        return f"{subject.service}:{subject.operation} {urlencode(form)}"
    conditions = {
        name.lower(): value for name, value in asked.headers.items() if name.lower()[:3] == "if-"
    }
    parts = [f"{subject.service}:{asked.method} {asked.target}", _json(asked.body)]
    return " ".join([*parts, json.dumps(conditions, sort_keys=True)] if conditions else parts)


def _json(body: bytes) -> str:
    text = body.decode("utf-8", "backslashreplace")
    try:
        return json.dumps(msgspec.json.decode(body), sort_keys=True, ensure_ascii=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text


_TELLING = re.compile(r"TableName|IndexName|QueueUrl|TopicArn|\w*Expression(AttributeNames)?")
"""Names of members whose values say what is done."""


def outline(text: str) -> str:
    """A request, or an answer, without the values in it: what is asked of which table or resource,
    under which condition, and which members it has. Two runs that do the same may differ in the
    rest."""
    operation, _, content = ("", "", text) if text[:1] in '{["' else text.partition(" ")
    try:
        members = json.loads(content)
    except ValueError:
        return operation
    return f"{operation} {json.dumps(_outlined(members))}"


def _outlined(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: inner if _TELLING.fullmatch(name) else _outlined(inner)
            for name, inner in value.items()
        }
    return [_outlined(inner) for inner in value] if isinstance(value, list) else None


# In this order: what is longer and more particular goes first.
_CHANCE = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (
        re.compile(r"(?<![0-9A-Za-z])1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?(?![0-9A-Za-z])"),
        "<time>",
    ),
    (re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{16,}(?![0-9A-Za-z])"), "<hex>"),
    (re.compile(r"(?<![0-9A-Za-z+/=_-])[0-9A-Za-z+/_-]{27,}={0,2}(?![0-9A-Za-z+/=_-])"), "<text>"),
)


def named_alike(text: str, names: Mapping[str, str]) -> str:
    """A request with what stands for names in their places."""
    for name, place in names.items():
        text = text.replace(name, place)
    return text


def placed(text: str, names: Mapping[str, str] | None = None) -> str:
    """A request with the places of ids, digests and times instead of their values.

    :param names: texts to put in their places first, such as order ids.
    """
    text = named_alike(text, names or {})
    for pattern, place in _CHANCE:
        text = pattern.sub(place, text)
    return text
