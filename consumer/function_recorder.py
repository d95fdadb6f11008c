"""Records what a deployed Python function does, one JSON object a line, into its own log.

Lambda calls :func:`handler` instead of the function's own, which ``ONCEPROOF_HANDLER`` names and
which runs unchanged. Standard library and botocore only: this one file is put beside any code.

Each line has the member ``onceproof``: ``start`` and ``end`` of an invocation, ``call`` for each
wire attempt when it is sent, ``reply`` when it is answered. Times are nanoseconds since epoch of
this environment's clock. Receipt handles, signatures, headers and what is said to services that
keep secrets are left out, and of services other than DynamoDB all replies but errors and the ids of
what was sent; texts are bounded.

Of a put or delete, and of an update that asks for no values, the old item is asked for
(``ALL_OLD``, which costs nothing) and taken out of what the function sees again.
"""

import importlib
import itertools
import json
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import botocore.handlers

_MOST_CHARACTERS = 16 * 1024  # of a request, a reply or a response
_MOST_MESSAGE = 1_000
_SCOPE = re.compile(r"Credential=[^/,]+/\d{8}/([^/,]+)/([^/,]+)/aws4_request")
_RECEIPT_HANDLE = re.compile(
    r"(receipt_?handle)((?:[\s\"'\\:=]|%22|%3A|\{\\*\"S\\*\")*)([^\s\"'\\&}]+)", re.IGNORECASE
)
_ATTEMPT = re.compile(r"attempt=(\d+)")
_ASKED = "onceproof_asked"
_PRIVATE = frozenset({"cognito-idp", "iam", "kms", "secretsmanager", "ssm", "sts"})
"""Services whose requests may hold what must be in no log."""
_SENDS = (".Publish", ".PublishBatch", ".SendMessage", ".SendMessageBatch")

_environment = uuid.uuid4().hex
_calls = itertools.count(1)
_open: dict[tuple[str, int], int] = {}  # wire attempt -> call that is not answered yet
_request_id: str | None = None  # of the invocation that runs; None while the code is loaded
_is_cold = True


def _write(kind: str, **members: Any) -> None:
    line = json.dumps({"onceproof": kind, "environment": _environment, **members})
    # One write, so that the line stays whole.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _text(body: Any) -> str | None:
    """A body as it may be written; None for one that is no text, or is streamed."""
    if isinstance(body, bytes | bytearray):
        try:
            body = bytes(body).decode()
        except UnicodeDecodeError:
            return None
    if not isinstance(body, str):
        return None
    text = _RECEIPT_HANDLE.sub(r"\1\2(removed)", body) if "eceipt" in body else body
    return text if len(text) <= _MOST_CHARACTERS else None


# --- calls --------------------------------------------------------------------------------


def _ask_for_old_item(model: Any, params: dict[str, Any], **_: Any) -> None:
    """Before a call is signed: let a write tell what it replaced."""
    if model.service_model.service_name != "dynamodb":
        return
    if model.name not in ("PutItem", "UpdateItem", "DeleteItem"):
        return
    try:
        body = json.loads(params["body"])
    except (ValueError, TypeError):
        return
    if "Expected" in body:
        return  # cannot be mixed with what came after it
    asked = []
    if "ReturnValues" not in body or body["ReturnValues"] == "NONE":
        body["ReturnValues"] = "ALL_OLD"
        asked.append("Attributes")
    if "ConditionExpression" in body and "ReturnValuesOnConditionCheckFailure" not in body:
        body["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        asked.append("Item")
    if asked:
        params["body"] = json.dumps(body).encode()
        params["context"][_ASKED] = asked


def _sent(request: Any, **_: Any) -> None:
    """Before each wire attempt."""
    headers = {name: _header(value) for name, value in request.headers.items()}
    scope = _SCOPE.search(headers.get("Authorization", ""))
    region, service = scope.groups() if scope else (None, None)
    found = _ATTEMPT.search(headers.get("amz-sdk-request", ""))
    sdk_id, attempt = headers.get("amz-sdk-invocation-id"), int(found[1]) if found else 1
    call = next(_calls)
    _open[_key(sdk_id, attempt)] = call
    _write(
        "call",
        call=call,
        request_id=_request_id,
        at=time.time_ns(),
        service=service,
        region=region,
        attempt=attempt,
        sdk_id=sdk_id,
        method=request.method,
        path=urlsplit(request.url).path,
        target=headers.get("X-Amz-Target"),
        content_type=headers.get("Content-Type"),
        request=None if service in _PRIVATE else _text(request.body),
    )


def _key(sdk_id: str | None, attempt: int) -> tuple[str, int]:
    """Of a wire attempt, whichever thread or coroutine waits for it. An SDK too old to number
    them has one at a time in a thread."""
    return (sdk_id, attempt) if sdk_id else ("thread", threading.get_ident())


def _header(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _answered(
    response_dict: Mapping[str, Any] | None,
    exception: BaseException | None,
    context: Mapping[str, Any],
    event_name: str,
    **_: Any,
) -> None:
    """After each wire attempt."""
    retries = context.get("retries", {})
    call = _open.pop(_key(retries.get("invocation-id"), retries.get("attempt", 1)), None)
    if call is None:
        return
    if response_dict is None:
        _write("reply", call=call, at=time.time_ns(), failed=type(exception).__name__)
        return
    status, headers = response_dict["status_code"], response_dict["headers"]
    # Of other services an error, and the ids of what was sent: their replies may hold anything.
    told = event_name.startswith("response-received.dynamodb.") or status >= 400
    told = told or event_name.endswith(_SENDS)
    _write(
        "reply",
        call=call,
        at=time.time_ns(),
        status=status,
        error_type=headers.get("x-amzn-errortype"),
        reply=_text(response_dict["body"]) if told else None,
    )


def _hide_old_item(parsed: dict[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    """After a call: what the function did not ask for it does not see."""
    for member in context.get(_ASKED, ()):
        parsed.pop(member, None)


botocore.handlers.BUILTIN_HANDLERS += [
    ("before-call", _ask_for_old_item),
    ("before-send", _sent),
    ("response-received", _answered),
    ("after-call", _hide_old_item),
]


# --- invocations --------------------------------------------------------------------------


def _original() -> Callable[[Any, Any], Any]:
    module, _, function = os.environ["ONCEPROOF_HANDLER"].rpartition(".")
    found: Callable[[Any, Any], Any] = getattr(
        importlib.import_module(module.replace("/", ".")), function
    )
    return found


# After the hooks are in place: clients made while the code is loaded have them too.
_handler = _original()


def handler(event: Any, context: Any) -> Any:
    """Run the function's own handler between two lines."""
    global _request_id, _is_cold  # noqa: PLW0603 - one invocation at a time
    _request_id = context.aws_request_id
    records = event.get("Records", []) if isinstance(event, dict) else []
    _write(
        "start",
        request_id=_request_id,
        at=time.time_ns(),
        cold=_is_cold,
        messages=[
            {
                "id": record.get("messageId"),
                "receives": record.get("attributes", {}).get("ApproximateReceiveCount"),
            }
            for record in records
        ],
    )
    _is_cold = False
    try:
        answer = _handler(event, context)
    except BaseException as error:
        message = str(error)[:_MOST_MESSAGE]
        _end(outcome="raised", error_type=type(error).__name__, error_message=message)
        raise
    try:
        response = json.dumps(answer, default=str)
    except (TypeError, ValueError):
        response = None  # Lambda will say that it cannot be written
    _end(outcome="returned", response=None if response is None else _text(response))
    return answer


def _end(**members: Any) -> None:
    _write("end", request_id=_request_id, at=time.time_ns(), **members)
