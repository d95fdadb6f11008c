"""Runs a plan function in a process of its own; run as a script, with the standard library alone.

Read from stdin: one JSON object with ``directory`` (its modules are found there first),
``module``, ``function`` and ``arguments``. Written to stdout: a JSON object a line for each
message, then ``{"end": count}``; or ``{"error": text}`` when the function failed, the text with
the frames of its own code.
"""

import base64
import importlib
import json
import os
import sys
import traceback
from decimal import Decimal
from typing import Any, TextIO


def main() -> None:
    asked = json.load(sys.stdin)
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints is no message
    sys.path.insert(0, asked["directory"])
    try:
        tell_messages(asked, told)
    except BaseException as error:  # also sys.exit
        told.write(json.dumps({"error": words_of(error)}) + "\n")
    told.flush()


def tell_messages(asked: dict[str, Any], told: TextIO) -> None:
    function = getattr(importlib.import_module(asked["module"]), asked["function"])
    number = 0
    for number, message in enumerate(function(**asked["arguments"]), 1):
        if not isinstance(message, dict):
            raise TypeError(f"message {number} is not a dict but {type(message).__name__}")
        body = message.get("body")
        if not isinstance(body, str) and body is not None:
            body = json.dumps(body, ensure_ascii=False, default=plain)
        told.write(json.dumps({**message, "body": body}, default=plain) + "\n")
    told.write(json.dumps({"end": number}) + "\n")


def plain(value: object) -> Any:
    """What JSON has no word for."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"a message holds {value!r}, which is not JSON")


def words_of(error: BaseException) -> str:
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(
        [
            frame
            for frame in told.stack
            if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
        ]
    )
    return "".join(told.format())


if __name__ == "__main__":
    main()
