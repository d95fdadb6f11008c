"""What is wrong with what a user asked for: one line each, with its place, cause and cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadtest.sections import Section, shown

Model = TypeVar("Model", bound=Section)


class Problems:
    """Collects lines. Everything that is wrong is told at once."""

    def __init__(
        self,
        label: str = "",
        prefix: str = "",
        flags: frozenset[str] = frozenset(),
        lines: list[str] | None = None,
    ) -> None:
        """
        :param label: the file as the user knows it; empty where there is none.
        :param prefix: before every key of the file: ``tool.loadtest.``.
        :param flags: keys that were given as flags, not by the file.
        :param lines: where to add to; None starts a list of its own.
        """
        self.lines = [] if lines is None else lines
        self._label = label
        self._prefix = prefix
        self._flags = flags

    def add(self, key: str, text: str) -> None:
        """:param key: dotted, as in the file: ``load.orders``, ``table[0].name``."""
        if key in self._flags:
            place = _flag(key)
        elif self._label:
            place = f"{self._label}: {self._prefix}{key}"
        else:
            place = key
        self.lines.append(f"{place}: {text}")


def _flag(key: str) -> str:
    return "--" + key.rpartition(".")[2].replace("_", "-")


def parse_section(model: type[Model], data: object, at: str, problems: Problems) -> Model | None:
    """The section, or None when it is wrong.

    :param at: its dotted key.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = at
            for part in detail["loc"]:
                key += f"[{part}]" if isinstance(part, int) else f".{part}"
            problems.add(key, _sentence(detail, model))
        return None


def names_of(model: type[Section]) -> list[str]:
    """The settings of a section, as a file spells them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def unknown(name: str, known: Iterable[str]) -> str:
    return f"is not a known setting{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _sentence(detail: ErrorDetails, model: type[Section]) -> str:
    """One validation error in our words."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            about = model.model_fields.get(str(detail["loc"][-1]))
            what = about.description if about else None
            return f"is missing: {what}" if what else "is missing"
        case "extra_forbidden":
            return unknown(str(detail["loc"][-1]), names_of(model))
        case "value_error":
            return str(context["error"])
        case "greater_than_equal":
            text = f"must be at least {context['ge']:g}"
        case "greater_than":
            text = f"must be above {context['gt']:g}"
        case "less_than_equal":
            text = f"must be at most {context['le']:g}"
        case "less_than":
            text = f"must be below {context['lt']:g}"
        case "literal_error" | "enum":
            text = f"must be {context['expected']}"
        case "int_type":
            text = "must be a whole number"
        case "float_type":
            text = "must be a number"
        case "finite_number":
            text = "must be a finite number"
        case "bool_type":
            text = "must be true or false"
        case "string_type" | "path_type":
            text = "must be text"
        case "string_too_short":
            text = "must not be empty"
        case "string_too_long":
            text = f"must be at most {context['max_length']} characters long"
        case "string_pattern_mismatch":
            text = "may hold only letters, digits, _, - and ."
        case "tuple_type":
            text = "must be a list"
        case "too_short":
            text = "must not be empty"
        case "dict_type" | "model_type":
            text = "must be a table"
        case _:
            text = detail["msg"]
    if detail["loc"][:1] == ("environment",):
        return text  # its value may be a secret
    return f"{text} (got {shown(detail['input'])})"
