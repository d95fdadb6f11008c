"""What an AWS request and its reply say about themselves, whatever the service. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from analysis.schema import Decision

HTTP_EFFECTS = "/onceproof-http/"
"""Paths below this one are no AWS service: they stand for a URL that the handler calls."""

MAX_REQUEST_CHARS = 16 * 1024
"""Evidence keeps this much of a request's text."""

# Signature Version 4: Credential=<access key>/<date>/<region>/<service>/aws4_request
_SCOPE = re.compile(r"Credential=[^/,]+/\d{8}/([^/,]+)/([^/,]+)/aws4_request")
_ATTEMPT = re.compile(r"\battempt=(\d+)")
_XML_CODE = re.compile(rb"<Code>([^<]{1,200})</Code>")
# A receipt handle after its name in JSON, in JSON inside a JSON text, in a form and in
# DynamoDB JSON. Handles hold no quote, backslash, ampersand or percent sign of their own
# once decoded; in a form they may be percent-encoded.
_RECEIPT_HANDLE = re.compile(
    r"(receipt_?handle)((?:[\s\"'\\:=]|%22|%3A|\{\\*\"S\\*\")*)([^\s\"'\\&}]+)", re.IGNORECASE
)
_SIGNED_QUERY = re.compile(r"(X-Amz-(?:Credential|Signature|Security-Token))=[^&]*", re.IGNORECASE)
_READS = ("Get", "BatchGet", "TransactGet", "List", "Describe", "Query", "Scan", "GET", "HEAD")
# Members that name the one thing a request is about, in JSON and in forms.
_RESOURCES = (
    "TableName",
    "QueueUrl",
    "QueueName",
    "TopicArn",
    "TargetArn",
    "StreamName",
    "FunctionName",
    "stateMachineArn",
    "SecretId",
    "LogGroupName",
    "logGroupName",
)
# SES version 2 names its operations by path (API reference, "SendEmail", request syntax).
_SES_PATHS = {
    "/v2/email/outbound-emails": "SendEmail",
    "/v2/email/outbound-bulk-emails": "SendBulkEmail",
}


class Protocol(StrEnum):
    """How a request is written, and so its reply."""

    JSON = "json"  # X-Amz-Target names the operation
    QUERY = "query"  # a form; the reply is XML
    REST = "rest"  # method and path name the operation
    HTTP = "http"  # no AWS service


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request asks, of which service."""

    protocol: Protocol
    service: str  # as in the credential scope; "http"; "unknown" when nothing tells
    region: str | None
    operation: str  # "PutItem"; for REST protocols "PUT <first part of the path>"; of HTTP "PUT"
    resource: str | None  # when the request is about exactly one
    attempt: int  # from 1
    sdk_id: str | None  # the same for all attempts of one SDK call

    @property
    def reads(self) -> bool:
        """Whether the operation changes nothing, going by its name."""
        return self.operation.startswith(_READS)


def subject(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Subject:
    """Read a request's headers and, where the headers do not tell, its body.

    :param target: path and query as sent.
    :param body: empty when the body is streamed.
    """
    scope = _SCOPE.search(headers.get("Authorization", ""))
    region, service = scope.groups() if scope else (None, None)
    attempt = _ATTEMPT.search(headers.get("amz-sdk-request", ""))
    path = urlsplit(target).path if target != "/" else target
    json_target = headers.get("X-Amz-Target")
    if path.startswith(HTTP_EFFECTS):
        name = unquote(path.removeprefix(HTTP_EFFECTS).partition("/")[0])
        return Subject(Protocol.HTTP, "http", None, method, name, 1, None)
    if json_target is not None:
        protocol = Protocol.JSON
        prefix, _, operation = json_target.rpartition(".")
        # "DynamoDB_20120810", "AmazonSQS"
        service = service or prefix.partition("_")[0].removeprefix("Amazon").lower()
        resource = _json_resource(body)
    elif headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
        protocol = Protocol.QUERY
        form = {
            name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()
        }
        operation = form.get("Action", f"{method} /")
        resource = form.get("Source") if service == "ses" else _named(form)
    else:
        protocol = Protocol.REST
        first = path.strip("/").partition("/")[0]
        operation = f"{method} {first}"
        resource = first if service == "s3" and first else None
        if service == "ses" and method == "POST":
            operation = _SES_PATHS.get(path, operation)
            resource = _sender(body)
    return Subject(
        protocol,
        service or "unknown",
        region,
        operation,
        resource,
        int(attempt.group(1)) if attempt else 1,
        headers.get("amz-sdk-invocation-id"),
    )


def short_name(resource: str) -> str:
    """The name in an ARN or queue URL; a plain name is given back."""
    if resource.startswith("arn:"):
        return re.split("[:/]", resource)[-1]
    return resource.rpartition("/")[2]


def _named(members: Mapping[str, Any]) -> str | None:
    for name in _RESOURCES:
        value = members.get(name)
        if isinstance(value, str) and value:
            return short_name(value)
    return None


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _json_resource(body: bytes) -> str | None:
    try:
        members = _members.decode(body)
        return _named(
            {name: msgspec.json.decode(members[name]) for name in _RESOURCES if name in members}
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Mail(msgspec.Struct):
    sender: str | None = msgspec.field(name="FromEmailAddress", default=None)


def _sender(body: bytes) -> str | None:
    """Of a mail, which is about its sender's identity."""
    try:
        return msgspec.json.decode(body, type=_Mail).sender
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def request_text(method: str, target: str, body: bytes, size: int | None) -> str:
    """A request as evidence keeps it: bounded, without receipt handles and signatures.

    :param size: length of a body that was streamed, when its sender stated it.
    """
    unsigned = _SIGNED_QUERY.sub(r"\1=(removed)", target)
    head = "" if target == "/" else f"{method} {unsigned}\n"
    if not body:
        return head + (f"({size} bytes, streamed)" if size else "")
    try:
        text = body[: 2 * MAX_REQUEST_CHARS].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return f"{head}({len(body)} bytes, not text)"
        text = body[: error.start].decode()
    if "eceipt" in text:
        text = _RECEIPT_HANDLE.sub(r"\1\2(removed)", text)
    if len(text) > MAX_REQUEST_CHARS or len(body) > 2 * MAX_REQUEST_CHARS:
        text = f"{text[:MAX_REQUEST_CHARS]} ... (cut, {len(body)} bytes in all)"
    return head + text


class _JsonError(msgspec.Struct):
    type: str | None = msgspec.field(name="__type", default=None)
    code: str | None = None


def error_code(status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """The code of an error reply, without namespace; None when the reply is no error."""
    if status < 400:
        return None
    code = headers.get("x-amzn-errortype")
    if code is None:
        if (xml := _XML_CODE.search(body)) is not None:
            return xml.group(1).decode("utf-8", "replace")
        try:
            error = msgspec.json.decode(body, type=_JsonError)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"HTTP {status}"
        code = error.type or error.code or f"HTTP {status}"
    # "com.amazonaws.dynamodb.v20120810#Name" and "Name:http://internal.amazon.com/..."
    return code.rpartition("#")[2].partition(":")[0]


def decision(status: int, *, reads: bool) -> Decision:
    """What a reply tells, going by its status alone.

    A 5xx leaves open whether a write was made ("Error handling with DynamoDB", developer
    guide: it may have succeeded or failed); for a read there is nothing to be unsure of.
    """
    if status < 400:
        return Decision.ACCEPTED
    return Decision.UNKNOWN if status >= 500 and not reads else Decision.FAILED
