"""What each table of the configuration file may hold, one model a table.

Values are taken as they are: no text becomes a number, no number a text. What concerns
more than one table is checked by ``config``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from analysis.item_kinds import ANYTHING, ORDER_ID
from analysis.schema import MessageKind, TableRole
from consumer.scaling import Scaling
from loadtest import orders
from loadtest.orders import Envelope, EnvelopeKind, PoisonKind
from loadtest.plan import Arrangement

_MAX_TEXT = 100_000
"""Characters of one text field; DynamoDB stores items up to 400 KB."""

_MAX_SECONDS = 1e9
"""Thirty years, and what a clock may be ahead."""

_MAX_NUMBER = 10**38
"""DynamoDB keeps 38 digits of a number."""


_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|DSN|API_?KEY|_KEY$|_AUTH$", re.IGNORECASE
)
_SHORTEST_SECRET = 8
"""Characters. Shorter values occur in other places by chance, and would be taken out there."""


def shown(value: object) -> str:
    """A value for a message, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


# TOML has no tuples, paths or enums: these are read from its lists and texts.
_Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(strict=False),
]


class HandlerSettings(Section):
    code: Annotated[Path, Field(strict=False)]
    handler: str = Field(description="module.function, as Lambda names it (--handler)")
    timeout_s: float = Field(3.0, alias="timeout", gt=0, le=900)
    """Lambda's own default and highest value."""
    environment: Mapping[str, str] = Field({}, repr=False)
    """May hold secrets: not for run.json, logs or messages."""
    dependencies: Annotated[Path, Field(strict=False)] | Literal[False] | None = None
    """A virtual environment or a requirements file; None: look for one beside the code."""
    layers: tuple[Annotated[Path, Field(strict=False)], ...] = Field((), strict=False)
    """Folders as Lambda unpacks them, with ``python/`` in them."""

    @field_validator("code")
    @classmethod
    def _is_a_directory(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError(f"no such directory: {value}")
        return value

    @field_validator("dependencies")
    @classmethod
    def _can_be_used(cls, value: Path | Literal[False] | None) -> Path | Literal[False] | None:
        if value and not value.is_file() and not (value / "pyvenv.cfg").is_file():
            raise ValueError(f"is no virtual environment and no requirements file: {value}")
        return value

    @field_validator("layers")
    @classmethod
    def _hold_python(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for layer in value:
            if not (layer / "python").is_dir():
                raise ValueError(f'has no folder "python", as a layer must: {layer}')
        return value

    @property
    def secrets(self) -> dict[str, str]:
        """The variables whose names say that their values must not be kept."""
        return {
            name: value
            for name, value in self.environment.items()
            if _SECRET_NAME.search(name)
            and len(value) >= _SHORTEST_SECRET
            and not re.search(r"\{[\w:.-]+\}", value)
        }

    @field_validator("handler")
    @classmethod
    def _names_a_function(cls, value: str) -> str:
        module, _, function = value.rpartition(".")
        if not module or not function or re.search(r"\s", value):
            raise ValueError(f"must be module.function, as Lambda names it (got {shown(value)})")
        return value


class QueueSettings(Section):
    batching_window_s: int = Field(0, alias="batching_window", ge=0, le=300)
    batch_size: int = Field(1, ge=1, le=10_000)
    visibility_timeout_s: int = Field(4, alias="visibility_timeout", ge=1, le=43_200)
    max_receive_count: int = Field(3, ge=1, le=1000)
    report_batch_item_failures: bool = False
    fifo: bool = False
    deduplication: Literal["stamp", "content"] = "stamp"
    """Of a FIFO queue: an id for each message of the plan, or the body's content, so that it
    drops the copies itself."""
    scaling: Annotated[Scaling, Field(strict=False)] = Scaling.FIXED

    @field_validator("batch_size")
    @classmethod
    def _fits_the_window(cls, value: int, info: ValidationInfo) -> int:
        if value > 10 and info.data.get("batching_window_s") == 0:
            raise ValueError(
                f"must be at most 10, or with a batching_window of 1 s or more (got {value})"
            )
        return value

    @field_validator("fifo")
    @classmethod
    def _has_no_window(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("batching_window_s"):
            raise ValueError("goes without a batching_window: AWS has none for FIFO queues")
        return value

    @field_validator("deduplication")
    @classmethod
    def _is_of_a_fifo_queue(cls, value: str, info: ValidationInfo) -> str:
        if value == "content" and info.data.get("fifo") is False:
            raise ValueError("needs fifo = true: no other queue deduplicates")
        return value


class ItemsSettings(Section):
    """``[[table.items]]``: one kind of item in a table that holds several."""

    role: Annotated[TableRole, Field(strict=False)]
    key: str | None = Field(None, min_length=1)
    sort: str | None = Field(None, min_length=1)
    complete_when: Mapping[str, _Texts] = {}

    @field_validator("role")
    @classmethod
    def _is_not_reference(cls, value: TableRole) -> TableRole:
        if value is TableRole.REFERENCE:
            raise ValueError(
                'must be "orders", "guard" or "other": what must not change is a table of its own'
            )
        return value

    @field_validator("key", "sort")
    @classmethod
    def _is_a_form(cls, value: str | None) -> str | None:
        if value is None:
            return None
        unknown = [name for name in re.findall(r"\{[^{}]*\}", value) if name != ORDER_ID]
        if unknown:
            raise ValueError(
                f"{unknown[0]} is not known here: {ORDER_ID} stands for the order's id, "
                f"{ANYTHING} for any text"
            )
        if value.count(ORDER_ID) > 1:
            raise ValueError(f"has {ORDER_ID} twice (got {shown(value)})")
        return value

    @model_validator(mode="after")
    def _has_a_form(self) -> Self:
        if self.key is None and self.sort is None:
            raise ValueError('needs key or sort, the form of its keys: key = "ORDER#{id}"')
        if self.role is TableRole.ORDERS and ORDER_ID not in f"{self.key} {self.sort}":
            raise ValueError(f"needs {ORDER_ID}, the place of the order's id, in key or sort")
        return self


class TableSettings(Section):
    # The real table's name is longer: it carries the run's id. DynamoDB allows 255 characters.
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=200)
    key: str = Field(min_length=1)
    key_type: Literal["S", "N", "B"] = "S"
    sort: str | None = Field(None, min_length=1)
    sort_type: Literal["S", "N", "B"] = "S"
    role: Annotated[TableRole, Field(strict=False)]
    complete_when: Mapping[str, _Texts] = {}
    items: Annotated[tuple[ItemsSettings, ...], Field(strict=False)] = ()

    @property
    def order_items(self) -> ItemsSettings | None:
        """Which of its items are orders, where it holds several kinds."""
        return next((one for one in self.items if one.role is TableRole.ORDERS), None)


class ResultSettings(Section):
    processed: str | None = Field(None, min_length=1)
    duplicate: str | None = Field(None, min_length=1)


def _rate(value: object) -> float | None:
    if value == "max":
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise ValueError(f'must be "max" or a number of messages a second (got {shown(value)})')
    return float(value)


class LoadSettings(Section):
    orders: int = Field(200, ge=1)
    copies: int = Field(5, ge=1)
    conflicts: float = Field(ge=0, le=1)
    poison: float = Field(0.02, ge=0, le=1)
    rate_per_s: Annotated[float | None, BeforeValidator(_rate)] = Field(None, alias="rate")
    arrangement: Annotated[Arrangement, Field(strict=False)] = Arrangement.BURST
    concurrency: int = Field(8, ge=1, le=1000)
    seed: int = Field(1, ge=0, lt=2**63)
    drain_limit_s: float = Field(60.0, alias="drain_limit", gt=0)
    """How long after the last send everything must have settled. Unless given, a minute, and
    what a drain of 10 messages a second and all deliveries of a failing message take."""


def _seconds(value: object) -> tuple[float, float] | None:
    match value:
        case int() | float() as fixed if not _has_bool([fixed]):
            low = high = float(fixed)
        case [int() | float() as lowest, int() | float() as highest] if not _has_bool(value):
            low, high = float(lowest), float(highest)
        case _:
            raise ValueError(
                f"must be a number of seconds or [lowest, highest] (got {shown(value)})"
            )
    if not 0 <= low <= high < _MAX_SECONDS:
        raise ValueError(f"must be 0 or more, the lowest first (got {shown(value)})")
    return low, high


class FaultSection(Section):
    """``[faults]``'s rule of one name."""

    rate: float = Field(1.0, ge=0, le=1)
    option: str | None = Field(None, min_length=1)
    lasting: bool = False
    seconds: Annotated[tuple[float, float] | None, BeforeValidator(_seconds)] = None
    service: str | None = Field(None, min_length=1)
    operation: str | None = Field(None, min_length=1)
    resource: str | None = Field(None, min_length=1)
    call: int | None = Field(None, ge=1)
    message: int | None = Field(None, ge=1)
    copy_no: int | None = Field(None, alias="copy", ge=1)
    kind: Annotated[MessageKind | None, Field(strict=False)] = None
    receive: int | None = Field(None, ge=1)
    every: int | None = Field(None, ge=1)


class EffectSection(Section):
    """``[[effect]]``: calls that count as one side effect."""

    call: str
    resource: str | None = Field(None, min_length=1)
    key: str = Field(min_length=1)


class ExpectSettings(Section):
    contended_orders: float = Field(0.1, ge=0, le=1)
    send_lag_s: float = Field(1.0, alias="send_lag", gt=0)
    poison: Literal["dead-letter", "drop"] = "dead-letter"


def _flat(value: object) -> object:
    """Tables in tables as one, their names joined: TOML reads ``a.b = "x"`` so."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, object] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            below = _flat(inner)
            assert isinstance(below, dict)
            flat |= {f"{name}.{deeper}": one for deeper, one in below.items()}
        else:
            flat[name] = inner
    return flat


def _attribute_name(value: object) -> str | None:
    if value is False:
        return None
    if not isinstance(value, str) or not value:
        raise ValueError(
            "must be the name of an attribute, or false where the item does not have it "
            f"(got {shown(value)})"
        )
    return value


class AttributeSection(Section):
    """``[order.attributes]``: one message attribute."""

    type: str
    value: str = Field(min_length=1)

    @field_validator("type")
    @classmethod
    def _is_a_type(cls, value: str) -> str:
        if not re.fullmatch(r"(String|Number|Binary)(\.[A-Za-z0-9_.-]{1,240})?", value):
            raise ValueError(
                "must be String, Number or Binary, perhaps with a label as in Number.int "
                f"(got {shown(value)})"
            )
        return value


def _attribute(value: Any) -> object:
    match value:
        case str():
            return {"type": "String", "value": value}
        case int() | float() if not isinstance(value, bool):
            return {"type": "Number", "value": str(value)}
        case dict():
            number = value.get("value")
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            return value | {"value": str(number)} if is_number else value
    raise ValueError(
        'must be a text, a number, or { type = "String" | "Number" | "Binary", value = "..." } '
        f"(got {shown(value)})"
    )


class EnvelopeSection(Section):
    """``[order.envelope]``: what a service puts around the body. Each kind has its options."""

    kind: EnvelopeKind
    topic: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]+$", max_length=256)
    subject: str | None = Field(None, min_length=1, max_length=100)
    source: str | None = Field(None, min_length=1, max_length=256)
    detail_type: str | None = Field(None, min_length=1, max_length=128)
    object_key: str | None = Field(None, min_length=1, max_length=512)

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, value: object) -> EnvelopeKind:
        if value not in list(EnvelopeKind):
            known = ", ".join(f'"{kind}"' for kind in EnvelopeKind)
            raise ValueError(f"must be one of {known} (got {shown(value)})")
        return EnvelopeKind(str(value))

    @model_validator(mode="after")
    def _has_its_own_options(self) -> Self:
        options = {
            EnvelopeKind.SNS: ("topic", "subject"),
            EnvelopeKind.EVENTBRIDGE: ("source", "detail_type"),
            EnvelopeKind.S3: ("object_key",),
        }[self.kind]
        for name in sorted(self.model_fields_set - {"kind", *options}):
            raise ValueError(f"{name} is none of {self.kind}'s settings: {', '.join(options)}")
        unknown = [
            found
            for found in re.findall(r"\{[^{}]*\}", self.object_key or "")
            if found not in ("{id}", "{n}")
        ]
        if unknown:
            raise ValueError(
                f"object_key: {unknown[0]} is not known here: {{id}} is the order's id, {{n}} the "
                "number of its content"
            )
        return self

    def envelope(self) -> Envelope:
        given = {name: getattr(self, name) for name in self.model_fields_set - {"kind"}}
        return Envelope(self.kind, **given)


def _envelope(value: object) -> object:
    match value:
        case str():
            return {"kind": value}
        case dict():
            return value
    raise ValueError(
        f'must be "sns", "s3", "eventbridge" or a table with kind (got {shown(value)})'
    )


_Item = Annotated[
    Mapping[str, Annotated[str | None, BeforeValidator(_attribute_name)]],
    BeforeValidator(_flat),
]


class PlanOrderSection(Section):
    """``[order]`` where a function makes the messages."""

    plan: str
    key: str = Field("id", min_length=1)
    item: _Item = {}

    @field_validator("plan")
    @classmethod
    def _names_a_function(cls, value: str) -> str:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", value):
            raise ValueError(
                "must be module:function, a function in a file beside this one "
                f"(got {shown(value)})"
            )
        return value


class AwsSettings(Section):
    """``[aws]``: what a run may do in an account."""

    owned: _Texts = ()
    """Names of functions, queues and tables that this tool did not make and may use."""
    max_messages: int = Field(10_000, ge=1)
    max_seconds: float = Field(1800.0, gt=0, lt=_MAX_SECONDS)
    """From the first send until no more is waited for."""
    max_usd: float = Field(1.0, gt=0)


class OrderSection(Section):
    """``[order]`` without its generators."""

    key: str = Field(min_length=1)
    body: str
    conflict: _Texts = ()
    item: _Item = {}
    near_ids: float = Field(0.0, ge=0, le=1)
    spellings: bool = False
    poison: Annotated[
        tuple[Annotated[PoisonKind, Field(strict=False)], ...], Field(strict=False, min_length=1)
    ] = tuple(PoisonKind)
    attributes: Mapping[str, Annotated[AttributeSection, BeforeValidator(_attribute)]] = {}
    envelope: Annotated[EnvelopeSection | None, BeforeValidator(_envelope)] = None


class FieldSection(Section):
    """``[order]``'s generator of one field: exactly one of the four."""

    integer: orders.NumberRange | None = None
    decimal: orders.NumberRange | None = None
    choice: orders.Choice | None = None
    text: orders.Text | None = None
    optional: float = Field(0.0, ge=0, lt=1)

    @field_validator("integer", mode="plain")
    @classmethod
    def _integer(cls, value: object) -> orders.NumberRange:
        match value:
            case [int() as lo, int() as hi] if not _has_bool(value):
                return _number_range(lo, hi, 0, value)
        raise ValueError(f"must be [lowest, highest], two whole numbers (got {shown(value)})")

    @field_validator("decimal", mode="plain")
    @classmethod
    def _decimal(cls, value: object) -> orders.NumberRange:
        match value:
            case [int() | float() as lo, int() | float() as hi, int() as places] if (
                not _has_bool(value) and places >= 0 and abs(lo) < math.inf and abs(hi) < math.inf
            ):
                # The shortest text of a float is the number as it stands in the file.
                low, high = (Fraction(str(bound)) * 10 ** min(places, 38) for bound in (lo, hi))
                if low.denominator != 1 or high.denominator != 1:
                    raise ValueError(f"both bounds need at most {places} decimal places")
                return _number_range(int(low), int(high), places, value)
        raise ValueError(f"must be [lowest, highest, decimal places] (got {shown(value)})")

    @field_validator("choice", mode="plain")
    @classmethod
    def _choice(cls, value: object) -> orders.Choice:
        if isinstance(value, list) and value:
            texts = all(isinstance(entry, str) for entry in value)
            booleans = all(isinstance(entry, bool) for entry in value)
            numbers = not _has_bool(value) and all(
                isinstance(entry, int | float) and abs(entry) < _MAX_NUMBER for entry in value
            )
            if texts or booleans or numbers:
                return orders.Choice(tuple(value))
        raise ValueError("must be a list of texts, of numbers or of booleans, not mixed")

    @field_validator("text", mode="plain")
    @classmethod
    def _text(cls, value: object) -> orders.Text:
        match value:
            case [int() as shortest, int() as longest] if (
                not _has_bool(value) and 0 <= shortest <= longest <= _MAX_TEXT
            ):
                return orders.Text(shortest, longest)
        raise ValueError(
            f"must be [shortest, longest], two lengths up to {_MAX_TEXT} (got {shown(value)})"
        )

    @model_validator(mode="after")
    def _one_generator(self) -> Self:
        if sum(generator is not None for generator in self._generators()) != 1:
            raise ValueError("needs exactly one of integer, decimal, choice and text")
        return self

    def _generators(self) -> tuple[orders.NumberRange | orders.Choice | orders.Text | None, ...]:
        return self.integer, self.decimal, self.choice, self.text

    def field(self) -> orders.Field:
        (generator,) = (entry for entry in self._generators() if entry is not None)
        return orders.Field(generator, self.optional)


def _has_bool(values: Sequence[object]) -> bool:
    return any(isinstance(value, bool) for value in values)


def _number_range(lo: int, hi: int, places: int, value: object) -> orders.NumberRange:
    if lo > hi:
        raise ValueError(f"the lowest must not be above the highest (got {shown(value)})")
    if max(abs(lo), abs(hi)) + 1 >= _MAX_NUMBER or places > 38:
        raise ValueError(f"DynamoDB keeps 38 digits of a number (got {shown(value)})")
    return orders.NumberRange(lo, hi, places)
