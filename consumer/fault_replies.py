"""Error replies as the services themselves write them. Pure.

Shapes: the error sections of each service's API reference. DynamoDB and SQS answer JSON
1.0 (SQS with the code of its older protocol in ``x-amzn-query-error``), SNS and the first
SES answer XML, S3 its own XML, REST services JSON with ``x-amzn-errortype``. Status and
code are those by which SDKs tell what to try again: botocore's legacy mode takes
``RequestThrottled`` only with 403, and DynamoDB's throttling only with 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from consumer.aws_wire import Protocol, Subject
from consumer.dynamodb_wire import crc32


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A reply to send in place of the service's own."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Error:
    status: int
    code: str
    message: str


_NAMESPACES = {
    "dynamodb": "com.amazonaws.dynamodb.v20120810#",
    "sqs": "com.amazonaws.sqs#",
}
_COMMON_NAMESPACE = "com.amazon.coral.service#"
_COMMON = ("AccessDeniedException", "InternalFailure", "ServiceUnavailable")
_XML_NAMESPACES = {
    "sns": "http://sns.amazonaws.com/doc/2010-03-31/",
    "ses": "http://ses.amazonaws.com/doc/2010-12-01/",
    "sqs": "http://queue.amazonaws.com/doc/2012-11-05/",
}
_JSON_1_0 = ("dynamodb", "sqs", "states")

_RATE = "Rate exceeded"


def throttled(subject: Subject, request_id: str) -> ErrorReply:
    """The service refuses for its rate; every retry mode of an SDK tries again."""
    match subject:
        case Subject(service="http"):
            error = _Error(429, "TooManyRequests", _RATE)
        case Subject(service="dynamodb"):
            error = _Error(
                400,
                "ProvisionedThroughputExceededException",
                "The level of configured provisioned throughput for the table was exceeded. "
                "Consider increasing your provisioning level with the UpdateTable API.",
            )
        case Subject(service="sqs"):
            error = _Error(403, "RequestThrottled", "Request is throttled.")
        case Subject(service="s3"):
            error = _Error(503, "SlowDown", "Please reduce your request rate.")
        case Subject(protocol=Protocol.QUERY):
            error = _Error(400, "Throttling", _RATE)
        case Subject(protocol=Protocol.REST, service="ses" | "lambda"):
            error = _Error(429, "TooManyRequestsException", _RATE)
        case _:
            error = _Error(400, "ThrottlingException", _RATE)
    return _reply(subject, error, request_id)


def server_error(subject: Subject, request_id: str, *, unavailable: bool) -> ErrorReply:
    """HTTP 500, or 503 for a service that is not there."""
    if unavailable:
        error = _Error(503, "ServiceUnavailable", "Service is unable to handle request.")
    else:
        code = {"dynamodb": "InternalServerError", "s3": "InternalError", "sns": "InternalError"}
        message = "We encountered an internal error. Please try again."
        error = _Error(500, code.get(subject.service, "InternalFailure"), message)
    return _reply(subject, error, request_id)


def access_denied(subject: Subject, request_id: str) -> ErrorReply:
    """The handler's role lacks a permission."""
    action = f"{subject.service}:{subject.operation}"
    message = (
        "User: arn:aws:sts::000000000000:assumed-role/handler is not authorized to perform: "
        f"{action} because no identity-based policy allows the {action} action"
    )
    match subject:
        case Subject(service="http"):
            error = _Error(403, "Forbidden", "Forbidden")
        case Subject(service="sns"):
            error = _Error(403, "AuthorizationError", message)
        case Subject(service="sqs" | "s3") | Subject(protocol=Protocol.QUERY):
            error = _Error(403, "AccessDenied", message)
        case Subject(protocol=Protocol.REST):
            error = _Error(403, "AccessDeniedException", message)
        case _:
            error = _Error(400, "AccessDeniedException", message)
    return _reply(subject, error, request_id)


def transaction_conflict(subject: Subject, request_id: str) -> ErrorReply:
    """A single write meets an item that a transaction holds."""
    error = _Error(400, "TransactionConflictException", _REASONS["TransactionConflict"])
    return _reply(subject, error, request_id)


def transaction_in_progress(subject: Subject, request_id: str) -> ErrorReply:
    """A transaction is asked for again, with its token, before it is over."""
    error = _Error(
        400,
        "TransactionInProgressException",
        "Transaction with the given client request token is already in progress",
    )
    return _reply(subject, error, request_id)


# DynamoDB API reference, TransactWriteItems: codes and messages of cancellation reasons.
_REASONS = {
    "TransactionConflict": "Transaction is ongoing for the item",
    "ThrottlingError": "Throughput exceeds the current capacity of your table or index.",
    "ProvisionedThroughputExceeded": (
        "The level of configured provisioned throughput for the table was exceeded. Consider "
        "increasing your provisioning level with the UpdateTable API."
    ),
    "ItemCollectionSizeLimitExceeded": "Collection size exceeded.",
    "ValidationError": "One or more parameter values were invalid.",
}


def transaction_cancelled(
    subject: Subject, request_id: str, codes: Sequence[str | None]
) -> ErrorReply:
    """A transaction is cancelled.

    :param codes: the reason of each of its actions; None for those that were in order.
    """
    reasons = [
        {"Code": code, "Message": _REASONS[code]} if code else {"Code": "None"} for code in codes
    ]
    listed = ", ".join(reason["Code"] for reason in reasons)
    error = _Error(
        400,
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{listed}]",
    )
    return _reply(subject, error, request_id, CancellationReasons=reasons)


def cancelled_by_first(subject: Subject, request_id: str, reason: str, actions: int) -> ErrorReply:
    """A transaction of so many actions is cancelled for what the first one met."""
    return transaction_cancelled(subject, request_id, [reason, *[None] * (actions - 1)])


_CAPITAL_MESSAGE = (
    "TransactionCanceledException",
    "TransactionInProgressException",
    "AccessDeniedException",
)


def _reply(subject: Subject, error: _Error, request_id: str, **members: Any) -> ErrorReply:
    match subject:
        case Subject(protocol=Protocol.HTTP):
            return ErrorReply(
                error.status,
                {"Content-Type": "application/json"},
                msgspec.json.encode({"error": error.message}),
            )
        case Subject(protocol=Protocol.QUERY):
            return _query_xml(subject, error, request_id)
        case Subject(service="s3"):
            return _s3_xml(error, request_id)
        case Subject(protocol=Protocol.REST):
            return ErrorReply(
                error.status,
                {
                    "Content-Type": "application/json",
                    "x-amzn-ErrorType": error.code,
                    "x-amzn-RequestId": request_id,
                },
                msgspec.json.encode({"message": error.message}),
            )
    return _json(subject, error, request_id, members)


def _json(
    subject: Subject, error: _Error, request_id: str, members: Mapping[str, Any]
) -> ErrorReply:
    namespace = _NAMESPACES.get(subject.service, "")
    if namespace and error.code in _COMMON:
        namespace = _COMMON_NAMESPACE
    message = "Message" if error.code in _CAPITAL_MESSAGE else "message"
    body = msgspec.json.encode(
        {"__type": namespace + error.code, **members, message: error.message}
    )
    version = "1.0" if subject.service in _JSON_1_0 else "1.1"
    headers = {
        "Content-Type": f"application/x-amz-json-{version}",
        "x-amzn-RequestId": request_id,
    }
    if subject.service == "sqs":
        headers["x-amzn-query-error"] = f"{error.code};{_side(error)}"
    if subject.service == "dynamodb":
        headers["x-amz-crc32"] = crc32(body)
    return ErrorReply(error.status, headers, body)


def _query_xml(subject: Subject, error: _Error, request_id: str) -> ErrorReply:
    namespace = _XML_NAMESPACES.get(subject.service)
    opening = f'<ErrorResponse xmlns="{namespace}">' if namespace else "<ErrorResponse>"
    body = (
        f"{opening}<Error><Type>{_side(error)}</Type><Code>{error.code}</Code>"
        f"<Message>{escape(error.message)}</Message></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    headers = {"Content-Type": "text/xml", "x-amzn-RequestId": request_id}
    return ErrorReply(error.status, headers, body.encode())


def _s3_xml(error: _Error, request_id: str) -> ErrorReply:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
        f"<RequestId>{request_id}</RequestId><HostId>{request_id}</HostId></Error>"
    )
    headers = {"Content-Type": "application/xml", "x-amz-request-id": request_id}
    return ErrorReply(error.status, headers, body.encode())


def _side(error: _Error) -> str:
    return "Receiver" if error.status >= 500 else "Sender"
