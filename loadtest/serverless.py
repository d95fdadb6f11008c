"""A ``serverless.yml`` as the SAM template that says the same. Pure.

Variables are followed within the file (``self``, ``param``) and to the defaults of what the
command line or the environment would give (``opt``, ``env``); every other one stays for its
author. Facts are from the Serverless Framework's documentation, "Variables" and "AWS
Lambda Functions".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from analysis.errors import UsageError

_DEFAULT_TIMEOUT_S = "6"
_MAX_DEPTH = 40
_MAX_STEPS = 100_000

_INNERMOST = re.compile(r"\$\{([^{}]*)\}")
_SOURCE = re.compile(r"(self|opt|env|param|sls):(.*)", re.DOTALL)
_KNOWN_SOURCE = re.compile(r"[a-zA-Z][\w-]*(\([^)]*\))?:(?!:)")
_MARK = re.compile("\0(\\d+)\0")
_ALTERNATIVE = re.compile(r"""\s*((?:'[^']*'|"[^"]*"|[^,'"])+)""")


def is_serverless(document: Mapping[str, Any]) -> bool:
    return "provider" in document and ("functions" in document or "service" in document)


def as_template(document: Mapping[str, Any], label: str) -> dict[str, Any]:
    """
    :raises UsageError: its variables refer to each other without end.
    """
    variables = _Variables(document, label)
    provider = _dict(variables.resolved(document.get("provider")))
    template: dict[str, Any] = {"Resources": {}, "Outputs": {}}
    for part in _parts(variables.resolved(document.get("resources"))):
        template["Resources"] |= _dict(part.get("Resources"))
        template["Outputs"] |= _dict(part.get("Outputs"))
        template["Conditions"] = _dict(part.get("Conditions")) | template.get("Conditions", {})
    for part in _parts(variables.resolved(document.get("functions"))):
        for name, function in part.items():
            # A resource may have the same name: they are called otherwise when deployed.
            key = name if name not in template["Resources"] else f"{name}LambdaFunction"
            template["Resources"][key] = _function(_dict(function), provider)
    return template


def _function(own: Mapping[str, Any], provider: Mapping[str, Any]) -> dict[str, Any]:
    events = own.get("events")
    image = {"ImageUri": own["image"]} if "image" in own else None
    return {
        "Type": "AWS::Serverless::Function",
        "Properties": {
            "Handler": own.get("handler"),
            "Runtime": own.get("runtime", provider.get("runtime")),
            "Timeout": own.get("timeout", provider.get("timeout", _DEFAULT_TIMEOUT_S)),
            "CodeUri": image or own.get("module", "."),
            "Environment": {
                "Variables": _dict(provider.get("environment")) | _dict(own.get("environment"))
            },
            "Events": {
                str(number): {"Type": "SQS", "Properties": _event(entry["sqs"])}
                for number, entry in enumerate(events if isinstance(events, list) else [])
                if isinstance(entry, dict) and "sqs" in entry
            },
        },
    }


def _event(node: Any) -> dict[str, Any]:
    if not isinstance(node, dict) or "arn" not in node:
        return {"Queue": node}
    answer = node.get("functionResponseType")
    event = {
        "Queue": node["arn"],
        "BatchSize": node.get("batchSize"),
        "MaximumBatchingWindowInSeconds": node.get("maximumBatchingWindow"),
        "FunctionResponseTypes": [answer] if answer else [],
        "ScalingConfig": {"MaximumConcurrency": node.get("maximumConcurrency")},
    }
    if "filterPatterns" in node:
        event["FilterCriteria"] = {"Filters": node["filterPatterns"]}
    return event


def _parts(node: Any) -> list[dict[str, Any]]:
    """``resources`` and ``functions`` may be one table or a list of them."""
    return [_dict(part) for part in (node if isinstance(node, list) else [node])]


def _dict(node: Any) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}


class _Variables:
    def __init__(self, document: Mapping[str, Any], label: str) -> None:
        self._document = document
        self._label = label
        self._steps = 0

    def resolved(self, node: Any, depth: int = 0) -> Any:
        """The node with its variables followed. One that cannot be is
        ``{"Fn::Unresolved": "${...}"}``, joined to the text around it."""
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise UsageError(f"{self._label}: its variables refer to each other without end")
        match node:
            case dict():
                return {name: self.resolved(entry, depth + 1) for name, entry in node.items()}
            case list():
                return [self.resolved(entry, depth + 1) for entry in node]
            case str() if "${" in node:
                return self._filled(node, depth)
        return node

    def _filled(self, text: str, depth: int) -> Any:
        # What is known becomes text at once, so that it can be part of the name of another
        # variable; everything else leaves a mark until the text is put together.
        marks: list[Any] = []
        text = text.replace("\0", "")
        while (match := _INNERMOST.search(text)) is not None:
            value = self._variable(match[1], marks, depth)
            if not isinstance(value, str):
                marks.append(value)
                value = f"\0{len(marks) - 1}\0"
            text = text[: match.start()] + value + text[match.end() :]
        pieces = [
            marks[int(piece)] if number % 2 else piece
            for number, piece in enumerate(_MARK.split(text))
        ]
        pieces = [_without_mark(piece) for piece in pieces]
        if all(isinstance(piece, str) for piece in pieces):
            return "".join(pieces)
        pieces = [piece for piece in pieces if piece != ""]
        return pieces[0] if len(pieces) == 1 else {"Fn::Join": ["", pieces]}

    def _variable(self, content: str, marks: list[Any], depth: int) -> Any:
        written = _MARK.sub(lambda mark: _shown(marks[int(mark[1])]), content)
        if not _KNOWN_SOURCE.match(content.strip()):
            return {"literal": f"${{{written}}}"}  # ${AWS::Region}, ${Queue.Arn}: CloudFormation's
        for alternative in (match[1].strip() for match in _ALTERNATIVE.finditer(content)):
            found = self._source(alternative, marks)
            if found is not None:
                return self.resolved(found, depth + 1)
        return {"Fn::Unresolved": f"${{{written}}}"}

    def _source(self, alternative: str, marks: list[Any]) -> Any:
        """What one of a variable's alternatives gives; None for nothing."""
        whole = _MARK.fullmatch(alternative)
        if whole is not None:  # a variable as the default of another
            value = marks[int(whole[1])]
            return None if isinstance(value, dict) and "Fn::Unresolved" in value else value
        if _MARK.search(alternative):
            return None
        if alternative[:1] in ("'", '"'):
            return alternative[1:-1]
        match = _SOURCE.fullmatch(alternative)
        if match is None:
            # true, 10: but a source that is not followed is nothing.
            return None if ":" in alternative or "(" in alternative else alternative
        source, address = match.groups()
        match source, address:
            case "self", _:
                return self._at(address)
            case "sls", "stage":
                return self._at("provider.stage") or "dev"
            case "param", _:
                found = self._at(f"params.default.{address}")
                return found.get("value", found) if isinstance(found, dict) else found
        return None

    def _at(self, address: str) -> Any:
        node: Any = self._document
        for name in filter(None, address.split(".")):
            if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                node = _dict(node).get(name)
        return node


def _without_mark(piece: Any) -> Any:
    """A variable of CloudFormation's is text here."""
    is_literal = isinstance(piece, dict) and piece.keys() == {"literal"}
    return piece["literal"] if is_literal else piece


def _shown(mark: Any) -> str:
    if isinstance(mark, dict):
        return str(mark.get("Fn::Unresolved", mark.get("literal", "...")))
    return "..."
