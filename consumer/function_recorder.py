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

Beside it may lie a fault plan, as ``loadtest/aws/function_faults.py`` writes it. Faults strike
invocations that begin with a message of the plan's run and no others; each that is carried out
writes a line ``fault``, and ``places`` names the rules that could have struck.
"""

import hashlib
import importlib
import io
import itertools
import json
import os
import re
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.handlers
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

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

_CRASH_EXIT = 1

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


def _sent(request: Any, event_name: str, **_: Any) -> Any:
    """Before each wire attempt; a reply, where a fault stands in for the sending."""
    headers = {name: _header(value) for name, value in request.headers.items()}
    scope = _SCOPE.search(headers.get("Authorization", ""))
    region, service = scope.groups() if scope else (None, None)
    found = _ATTEMPT.search(headers.get("amz-sdk-request", ""))
    sdk_id, attempt = headers.get("amz-sdk-invocation-id"), int(found[1]) if found else 1
    call = next(_calls)
    _open[_key(sdk_id, attempt)] = call
    path = urlsplit(request.url).path
    strike: tuple[Any, int] | None = None
    places: list[int] = []
    # Sent by another library than botocore's own, it takes no answer from here.
    if _first_message is not None and type(request) is AWSPreparedRequest:
        operations = (event_name.rpartition(".")[2], f"{request.method} {_first_part(path)}")
        strike, places = _strike_call(sdk_id, service, operations)
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
        path=path,
        target=headers.get("X-Amz-Target"),
        content_type=headers.get("Content-Type"),
        request=None if service in _PRIVATE else _text(request.body),
        places=places,
    )
    return None if strike is None else _meet(strike, request, call, service, operations)


def _first_part(path: str) -> str:
    return path.strip("/").partition("/")[0]


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
    told = event_name.startswith("response-received.dynamodb.") or event_name.endswith(_SENDS)
    reply = _reply(
        response_dict["status_code"], response_dict["headers"], response_dict["body"], told
    )
    _write("reply", call=call, at=time.time_ns(), **reply)


def _reply(status: int, headers: Mapping[str, str], body: Any, told: bool) -> dict[str, Any]:
    """What is written of a reply.

    :param told: it is DynamoDB's, or has the ids of what was sent. Of others an error only: they
        may hold anything.
    """
    return {
        "status": status,
        "error_type": headers.get("x-amzn-errortype"),
        "reply": _text(body) if told or status >= 400 else None,
    }


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


# --- faults -------------------------------------------------------------------------------


def _plan() -> dict[str, Any]:
    try:
        text = Path(__file__).with_name("onceproof_faults.json").read_text()
    except FileNotFoundError:
        return {"rules": []}
    plan: dict[str, Any] = json.loads(text)
    for rule in plan["rules"]:
        if rule["messages"] is not None:
            rule["messages"] = frozenset(rule["messages"])
    return plan


_faults = _plan()
_lock = threading.Lock()
_first_message: int | None = None  # of the invocation's batch, if it is of the plan's run
_receive: int | None = None
_numbers: dict[str, int] = {}  # call of the SDK -> its number in the invocation
_struck: dict[tuple[str, int], bool] = {}  # call of the SDK and rule


def _begin(records: list[Any]) -> None:
    global _first_message, _receive  # noqa: PLW0603 - one invocation at a time
    _numbers.clear()
    _struck.clear()
    _first_message = _receive = None
    if not records or not _faults["rules"]:
        return
    first = records[0]
    stamp = first.get("messageAttributes", {}).get(_faults["stamp"], {}).get("stringValue", "")
    run_id, _, number = stamp.rpartition(":")
    if run_id == _faults["run_id"] and number.isdigit():
        _first_message = int(number)
        _receive = int(first["attributes"]["ApproximateReceiveCount"])


def _matches(
    rule: Mapping[str, Any],
    where: str,
    call: int | None = None,
    service: str | None = None,
    operations: tuple[str, ...] = (),
) -> bool:
    return bool(
        rule["where"] == where
        and (rule["messages"] is None or _first_message in rule["messages"])
        and rule["receive"] in (None, _receive)
        and rule["call"] in (None, call)
        and rule["service"] in (None, service)
        and (rule["operation"] is None or rule["operation"] in operations)
    )


def _draw(rule: Mapping[str, Any], what: str, call: int | None) -> float:
    """As ``FaultRule`` in ``consumer/faults.py`` draws, so the same seed decides the same."""
    identity = (_faults["seed"], rule["number"], what, _first_message, _receive, call)
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _strikes(rule: Mapping[str, Any], call: int | None) -> bool:
    return bool(rule["rate"] >= 1 or _draw(rule, "strikes", call) < rule["rate"])


def _strike_call(
    sdk_id: str | None, service: str | None, operations: tuple[str, ...]
) -> tuple[tuple[Any, int] | None, list[int]]:
    """The rule that strikes this attempt with the number of its call, and the rules that could.

    Only the first attempt of a call meets a fault, unless the rule is lasting.
    """
    places = []
    with _lock:
        name = sdk_id or f"unnamed {len(_numbers) + 1}"
        number = _numbers.setdefault(name, len(_numbers) + 1)
        for rule in _faults["rules"]:
            if not _matches(rule, "call", number, service, operations):
                continue
            met = (name, rule["number"])
            if met in _struck:
                strikes = rule["lasting"] and _struck[met]
            else:
                places.append(rule["number"])
                strikes = _struck[met] = _strikes(rule, number)
            if strikes:
                return (rule, number), places
    return None, places


def _meet(
    strike: tuple[Any, int],
    request: AWSPreparedRequest,
    call: int,
    service: str | None,
    operations: tuple[str, ...],
) -> AWSResponse | None:
    """Carry a fault out in place of the sending; the reply, if the function gets one.

    :raises ConnectionClosedError: as where the connection was closed; the SDK tries again.
    :raises HTTPClientError: the request really could not be sent; then no fault was met.
    """
    rule, number = strike
    name, seconds, answer, reply = rule["name"], 0.0, None, {}
    if rule["applies"]:
        # Connections of the client's own are not to be had here.
        answer = URLLib3Session(proxies=get_environ_proxies(request.url)).send(request)
        told = service == "dynamodb" or f".{operations[0]}".endswith(_SENDS)
        body = None if request.stream_output else answer.content
        reply = _reply(answer.status_code, answer.headers, body, told)
    if name == "slow":
        share = _draw(rule, "seconds", number)
        share = share**4.3 if rule["option"] == "tail" else share
        seconds = rule["low"] + (rule["high"] - rule["low"]) * share
    _fired(rule, number, call=call, seconds=seconds, **reply)
    if name.startswith("crash-"):
        os._exit(_CRASH_EXIT)
    if name.startswith("lost-"):
        raise ConnectionClosedError(endpoint_url=request.url)
    if name == "slow":
        time.sleep(seconds)
        return answer
    return _error(rule, request, service or "", operations[0])


def _fired(rule: Mapping[str, Any], number: int | None, **members: Any) -> None:
    _write(
        "fault",
        request_id=_request_id,
        at=time.time_ns(),
        rule=rule["number"],
        name=rule["name"],
        message=_first_message,
        receive=_receive,
        number=number,
        **members,
    )


class _Body(io.BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


def _error(
    rule: Mapping[str, Any], request: AWSPreparedRequest, service: str, operation: str
) -> AWSResponse:
    """The service's own words, as the plan has them."""
    if "X-Amz-Target" in request.headers:
        protocol = "json"
    else:
        content_type = _header(request.headers.get("Content-Type", ""))
        protocol = "query" if content_type.startswith("application/x-www-form") else "rest"
    errors = rule["errors"]
    error = errors.get(f"{service} {protocol}") or errors[f" {protocol}"]
    body, headers = error["body"], dict(error["headers"])
    names = _faults["placeholders"]
    request_id = str(uuid.uuid4())
    for name, real in zip(names, (request_id, service, operation), strict=True):
        body = body.replace(name, real)
        headers = {key: value.replace(name, real) for key, value in headers.items()}
    content = body.encode()
    if "x-amz-crc32" in headers:
        headers["x-amz-crc32"] = str(zlib.crc32(content))
    return AWSResponse(request.url, error["status"], headers, _Body(content))


def _strike_answer() -> list[int]:
    """When the work is done: crash, or the rules that could have struck."""
    places = []
    for rule in _faults["rules"] if _first_message is not None else ():
        if _matches(rule, "invocation"):
            places.append(rule["number"])
            if _strikes(rule, None):
                _fired(rule, None, places=places)
                os._exit(_CRASH_EXIT)
    return places


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
    _begin(records)
    try:
        answer = _handler(event, context)
    except BaseException as error:
        places = _strike_answer()
        message = str(error)[:_MOST_MESSAGE]
        _end(places, outcome="raised", error_type=type(error).__name__, error_message=message)
        raise
    places = _strike_answer()
    try:
        response = json.dumps(answer, default=str)
    except (TypeError, ValueError):
        response = None  # Lambda will say that it cannot be written
    _end(places, outcome="returned", response=None if response is None else _text(response))
    return answer


def _end(places: list[int], **members: Any) -> None:
    _write("end", request_id=_request_id, at=time.time_ns(), places=places, **members)
