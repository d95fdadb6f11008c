"""Documents of SAM and CloudFormation: their resources, and what their texts come to. Pure.

Everything scalar is the text that the file has, as CloudFormation takes it: ``1.10`` stays
``1.10``. What only a deployment knows is :class:`~loadtest.found.Unknown`, with the reason.

Facts without a note are from the CloudFormation template reference and the SAM specification.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from analysis.errors import UsageError
from loadtest.found import Number, Unknown

MAX_TEMPLATE_BYTES = 1_048_576
"""CloudFormation's own limit (its user guide, "CloudFormation quotas": 1 MB from S3)."""

_MAX_DEPTH = 40
"""Intrinsic functions within each other. Deeper than anybody writes: it refers to itself."""
_MAX_STEPS = 100_000
"""Intrinsic functions looked at in all. Aliases can make a small file grow without end."""


class _Loader(yaml.SafeLoader):
    """YAML with ``!Ref`` and its like, every plain scalar a text."""


# Of the words and numbers that YAML knows, merge keys are the one to keep.
_Loader.yaml_implicit_resolvers = {"<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]}


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    """``!GetAtt Queue.Arn`` -> ``{"Fn::GetAtt": "Queue.Arn"}``"""
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _short_form)


def read_document(text: str, label: str) -> dict[str, Any]:
    """The tables of a JSON or YAML file, scalars as their text.

    :raises UsageError: it is neither, or no table.
    """
    try:
        if text.lstrip().startswith("{") and label.endswith((".json", ".template")):
            document = json.loads(text, parse_int=str, parse_float=str)
        else:
            document = yaml.load(text, _Loader)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}: is not valid JSON: {error.msg}"
        raise UsageError(f"{label}, {line}") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        tab = "; YAML indents with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
        raise UsageError(f"{label}{line}: is not valid YAML: {error.problem}{tab}") from error
    except RecursionError as error:
        raise UsageError(f"{label}: is nested too deeply to be a template") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{label}: is neither YAML nor JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{label}: is no template: it has no Resources")
    return document


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    template: Template
    logical_id: str
    type: str
    properties: Mapping[str, Any]
    metadata: Mapping[str, Any]


class Template:
    """One document. References are followed when they are asked for."""

    def __init__(self, document: Mapping[str, Any], label: str) -> None:
        self.label = label
        self._parameters = as_dict(document.get("Parameters"))
        self._mappings = as_dict(document.get("Mappings"))
        self._conditions = as_dict(document.get("Conditions"))
        self._outputs = as_dict(document.get("Outputs"))
        self._globals = as_dict(as_dict(document.get("Globals")).get("Function"))
        self._steps = 0
        self.siblings: Sequence[Template] = (self,)
        """The templates whose exports it may import."""
        self.resources: dict[str, Resource] = {}
        for name, entry in as_dict(document.get("Resources")).items():
            # "Fn::ForEach" is a list here; what it makes is not known without carrying it out.
            if isinstance(entry, dict) and isinstance(kind := entry.get("Type"), str):
                properties = as_dict(entry.get("Properties"))
                if kind == "AWS::Serverless::Function":
                    properties = _merged(self._globals, properties)
                made = entry.get("Condition")
                if made is None or self._holds({"Condition": made}) is not False:
                    metadata = as_dict(entry.get("Metadata"))
                    self.resources[name] = Resource(self, name, kind, properties, metadata)

    # Values. A node is what the file has; a value is a Text, or a dict or list whose own
    # nodes are still to be looked at, or None for what is not there.

    def text(self, node: object) -> Text:
        """:raises UsageError: the template refers to itself without end."""
        value = self.value(node)
        if isinstance(value, dict | list):
            return (Unknown("...", "a text is expected, and it has parts"),)
        return () if value is None else value

    def value(self, node: object, depth: int = 0) -> Text | dict[str, Any] | list[Any] | None:
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise UsageError(f"{self.label}: refers to itself without end: {_start_of(node)}")
        match node:
            case None:
                return None
            case dict() if len(node) == 1 and (function := _function_in(node)):
                return self._call(function, node[function], depth + 1)
            case dict() | list():
                return node
            case bool():
                return (str(node).lower(),)
            case str() if "{{resolve:" in node:
                return (Unknown(node, f"{node[:60]} is looked up when the stack is deployed"),)
        return (str(node),)

    def _call(
        self, function: str, argument: Any, depth: int
    ) -> Text | dict[str, Any] | list[Any] | None:
        match function, argument:
            case "Ref", str(name):
                return self._ref(name)
            case "Fn::GetAtt", str(dotted):
                return self._attribute(*_split_attribute(dotted))
            case "Fn::GetAtt", [str(name), attribute]:
                return self._attribute(name, render(self._inner(attribute, depth)))
            case "Fn::Sub", str(template):
                return self._sub(template, {}, depth)
            case "Fn::Sub", [str(template), dict(variables)]:
                return self._sub(template, variables, depth)
            case "Fn::Join", [str(separator), items]:
                texts = self._items(items, depth)
                if texts is not None:
                    joined: list[Piece] = []
                    for number, text in enumerate(texts):
                        joined += [separator, *text] if number else text
                    return _compact(joined)
            case "Fn::Select", [index, items]:
                texts, at = self._items(items, depth), render(self._inner(index, depth))
                if texts is not None and at.isdecimal() and int(at) < len(texts):
                    return texts[int(at)]
            case "Fn::FindInMap", [name, first, second, *_]:
                path = [render(self._inner(key, depth)) for key in (name, first, second)]
                found: Any = self._mappings
                for key in path:
                    found = as_dict(found).get(key)
                if found is not None:
                    return self.value(found, depth)
            case "Fn::If", [str(condition), then, otherwise]:
                holds = self._holds({"Condition": condition}, depth)
                if holds is not None:
                    return self.value(then if holds else otherwise, depth)
                why = f"the condition {condition} is decided when the stack is deployed"
                return (Unknown(f"!If {condition}", why),)
            case "Fn::ImportValue", name:
                return self._imported(render(self._inner(name, depth)), depth)
            case "Fn::Unresolved", str(variable):
                return (Unknown(variable, f"{variable} is looked up when the stack is deployed"),)
        name = function.removeprefix("Fn::")
        return (Unknown(f"!{name}", f"!{name} is worked out when the stack is deployed"),)

    def _inner(self, node: object, depth: int) -> Text:
        value = self.value(node, depth)
        if isinstance(value, dict | list):
            return (Unknown("...", "a text is expected, and it has parts"),)
        return () if value is None else value

    def _items(self, node: object, depth: int) -> list[Text] | None:
        """The texts of a list, of ``Fn::Split``, or of a parameter that is one."""
        if isinstance(node, dict) and isinstance(split := node.get("Fn::Split"), list):
            if len(split) == 2 and isinstance(split[0], str) and split[0]:
                whole = self._inner(split[1], depth)
                if all(isinstance(piece, str) for piece in whole):
                    return [(part,) for part in "".join(map(str, whole)).split(split[0])]
            return None
        value = self.value(node, depth)
        match value:
            case list():
                return [self._inner(entry, depth) for entry in value]
            case (str(text),):
                return [(part.strip(),) for part in text.split(",")]
        return None

    def _ref(self, name: str) -> Text | None:
        if name == "AWS::NoValue":
            return None
        if name in self._parameters:
            parameter = as_dict(self._parameters[name])
            default = parameter.get("Default")
            if str(parameter.get("NoEcho", "")).lower() == "true":
                why = f"the parameter {name} is a secret"
            elif str(parameter.get("Type", "")).startswith("AWS::SSM"):
                why = f"the parameter {name} is looked up when the stack is deployed"
            elif default is None or isinstance(default, dict | list):
                why = f"the parameter {name} has no default"
            else:
                return self.text(default)
            return (Unknown(f"${{{name}}}", why),)
        # SAM: Function.Alias and Function.Version are what AutoPublishAlias makes.
        resource = self.resources.get(name) or self.resources.get(name.partition(".")[0])
        if resource is not None:
            return (Part(resource, ""),)
        if name.startswith("AWS::"):
            why = f"{name} is of the deployment"
        else:
            why = f"nothing in the template is called {name}"
        return (Unknown(f"${{{name}}}", why),)

    def _attribute(self, name: str, attribute: str) -> Text:
        resource = self.resources.get(name)
        if resource is not None and attribute:
            return (Part(resource, attribute),)
        return (Unknown(f"${{{name}.{attribute}}}", f"nothing in the template is called {name}"),)

    def _sub(self, template: str, variables: Mapping[str, Any], depth: int) -> Text:
        pieces: list[Piece] = []
        end = 0
        for match in re.finditer(r"\$\{(!?)([^}]*)\}", template):
            pieces.append(template[end : match.start()])
            end = match.end()
            name = match[2].strip()
            if match[1]:
                pieces.append(f"${{{name}}}")
            elif name in variables:
                pieces += self._inner(variables[name], depth)
            elif "." in name and name.partition(".")[0] in self.resources:
                pieces += self._attribute(*_split_attribute(name))
            else:
                pieces += self._ref(name) or ()
        return _compact([*pieces, template[end:]])

    def _imported(self, name: str, depth: int) -> Text | None:
        for template in self.siblings:
            for output in template._outputs.values():
                export = as_dict(as_dict(output).get("Export")).get("Name")
                if export is not None and render(template._inner(export, depth)) == name:
                    return template._inner(as_dict(output).get("Value"), depth)
        why = f"no template here exports {name}"
        return (Unknown(f"!ImportValue {name}", why),)

    def _holds(self, node: object, depth: int = 0) -> bool | None:
        """A condition by the parameters' defaults; None where they do not decide it."""
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise UsageError(f"{self.label}: Conditions refer to each other without end")
        match node:
            case {"Condition": str(name)}:
                found = self._conditions.get(name)
                return None if found is None else self._holds(found, depth + 1)
            case {"Fn::Equals": [one, other]}:
                left, right = self._inner(one, depth), self._inner(other, depth)
                if any(isinstance(piece, Unknown) for piece in (*left, *right)):
                    return None
                return render(left) == render(right)
            case {"Fn::Not": [inner]}:
                holds = self._holds(inner, depth + 1)
                return None if holds is None else not holds
            case {"Fn::And": list(parts)}:
                return _all(self._holds(part, depth + 1) for part in parts)
            case {"Fn::Or": list(parts)}:
                none = _all(_not(self._holds(part, depth + 1)) for part in parts)
                return _not(none)
        return None

    # Properties of a resource

    def table(self, node: object) -> dict[str, Any]:
        value = self.value(node)
        return value if isinstance(value, dict) else {}

    def entries(self, node: object) -> list[Any]:
        value = self.value(node)
        return value if isinstance(value, list) else []

    def number(self, node: object) -> Number:
        match self.value(node):
            case None | ():
                return None
            case (str(text),) if re.fullmatch(r"\s*\d{1,9}\s*", text):
                return int(text)
            case (Unknown() as unknown,):
                return unknown
            case other:
                return Unknown(_start_of(other), f"{_start_of(other)} is no whole number")

    def is_true(self, node: object) -> bool:
        return render(self.text(node)).lower() in ("true", "yes", "on", "1")


@dataclass(frozen=True, slots=True)
class Part:
    """A resource in place of a text; its ``Ref`` where ``attribute`` is empty."""

    resource: Resource
    attribute: str


Piece = str | Part | Unknown
Text = tuple[Piece, ...]


def render(text: Iterable[Piece]) -> str:
    """As ``!Sub`` would write it; equal texts of one template are the same text."""
    shown = []
    for piece in text:
        match piece:
            case str():
                shown.append(piece)
            case Unknown():
                shown.append(piece.shown)
            case Part(resource, attribute):
                dotted = f".{attribute}" if attribute else ""
                shown.append(f"${{{resource.logical_id}{dotted}}}")
    return "".join(shown)


def _compact(pieces: Iterable[Piece]) -> Text:
    """The same with neighbouring texts put together."""
    compact: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and compact and isinstance(last := compact[-1], str):
            compact[-1] = last + piece
        elif piece != "":
            compact.append(piece)
    return tuple(compact) or ("",)


def _function_in(entries: Mapping[str, Any]) -> str | None:
    (name,) = entries
    return name if name == "Ref" or str(name).startswith("Fn::") else None


def _split_attribute(dotted: str) -> tuple[str, str]:
    name, _, attribute = dotted.partition(".")
    return name, attribute


def _all(holds: Iterable[bool | None]) -> bool | None:
    known = list(holds)
    if False in known:
        return False
    return None if None in known else True


def _not(holds: bool | None) -> bool | None:
    return None if holds is None else not holds


def as_dict(node: object) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """SAM's Globals under a function's own properties: maps are merged, the rest replaced."""
    merged = dict(common)
    for name, value in own.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = _merged(merged[name], value)
        else:
            merged[name] = value
    return merged


def _start_of(node: object) -> str:
    if isinstance(node, tuple):
        return render(node)[:40]
    return ", ".join(map(str, node))[:40] if isinstance(node, dict | list) else str(node)[:40]
