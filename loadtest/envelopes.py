"""What services put around an order on its way into the queue. Pure.

The shapes are those of the services' guides: "Fanout to Amazon SQS queues" of the SNS
developer guide (a subscription without raw delivery), "Event message structure" of the S3 user
guide, and "Event structure" of the EventBridge user guide. Each message is a publish, an upload
or an event of its own, as from a producer that tried again: its ids are its own, its order is
not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

from loadtest.orders import Envelope, EnvelopeKind, MessageAttribute, PoisonKind

BUCKET = "{bucket}"
"""In a plan: the bucket's name, which is known only when it was made."""

_ACCOUNT, _REGION = "000000000000", "us-east-1"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""What a plan takes for its first moment: with the clock's, no plan could be made again."""


OUTER_POISON = (
    PoisonKind.BAD_JSON,
    PoisonKind.MISSING_FIELD,
    PoisonKind.EMPTY_OBJECT,
    PoisonKind.ARRAY,
    PoisonKind.NULL,
)
"""Ways to spoil the envelope itself."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One message before it is wrapped."""

    text: str
    message_no: int
    order_key: str
    seed: int | str
    offset_ns: int = 0
    variant: int = 1  # which of its order's different contents
    attributes: Sequence[MessageAttribute] = ()
    spoiled: PoisonKind | None = None  # how its envelope is


@dataclass(frozen=True, slots=True)
class Wrapped:
    body: str
    object_key: str | None = None  # what must be in the bucket


def wrapped(envelope: Envelope, letter: Letter) -> Wrapped:
    match envelope.kind:
        case EnvelopeKind.SNS:
            return Wrapped(_spoiled(_notification(envelope, letter), letter, "Message"))
        case EnvelopeKind.EVENTBRIDGE:
            return Wrapped(_event(envelope, letter))
    key = object_key(envelope, letter.order_key, letter.variant)
    upload = _upload(key, letter)
    # Without records it would be like the s3:TestEvent that S3 sends when notifications are
    # set up, which a handler rightly lets pass: the record itself is what is spoiled.
    (record,) = upload["Records"]
    if letter.spoiled is PoisonKind.MISSING_FIELD:
        del record["s3"]["object"]
        return Wrapped(json.dumps(upload, ensure_ascii=False), key)
    if letter.spoiled is PoisonKind.EMPTY_OBJECT:
        return Wrapped('{"Records": [{}]}', key)
    return Wrapped(_spoiled(upload, letter), key)


def object_key(envelope: Envelope, order_key: str, variant: int) -> str:
    return envelope.object_key.replace("{id}", order_key).replace("{n}", str(variant))


def _notification(envelope: Envelope, letter: Letter) -> dict[str, Any]:
    arn = f"arn:aws:sns:{_REGION}:{_ACCOUNT}:{envelope.topic}"
    notification = {
        "Type": "Notification",
        "MessageId": envelope_id(letter),
        "TopicArn": arn,
        "Subject": envelope.subject,
        "Message": letter.text,
        "Timestamp": _time(letter),
        "SignatureVersion": "1",
        "Signature": base64.b64encode(hashlib.sha256(letter.text.encode()).digest()).decode(),
        "SigningCertURL": f"https://sns.{_REGION}.amazonaws.com/SimpleNotificationService-0.pem",
        "UnsubscribeURL": f"https://sns.{_REGION}.amazonaws.com/?Action=Unsubscribe"
        f"&SubscriptionArn={arn}:{envelope_id(letter, 'subscription')}",
        "MessageAttributes": {
            one.name: {"Type": one.type, "Value": _attribute_text(one.value)}
            for one in letter.attributes
        },
    }
    if envelope.subject is None:
        del notification["Subject"]
    if not letter.attributes:
        del notification["MessageAttributes"]
    return notification


def _attribute_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else base64.b64encode(value).decode()


def _event(envelope: Envelope, letter: Letter) -> str:
    """An event; its detail stands as it is written, also where it is no JSON."""
    event = {
        "version": "0",
        "id": envelope_id(letter),
        "detail-type": envelope.detail_type,
        "source": envelope.source,
        "account": _ACCOUNT,
        "time": _time(letter, "seconds"),
        "region": _REGION,
        "resources": [],
    }
    if letter.spoiled is not None:
        return _spoiled(event | {"detail": {}}, letter, "detail")
    return f'{json.dumps(event, ensure_ascii=False)[:-1]}, "detail": {letter.text}}}'


def _upload(key: str, letter: Letter) -> dict[str, Any]:
    content = letter.text.encode()
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": _REGION,
        "eventTime": _time(letter),
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "AWS:ONCEPROOF"},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {
            "x-amz-request-id": envelope_id(letter).replace("-", "")[:16].upper(),
            "x-amz-id-2": envelope_id(letter, "host"),
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "onceproof",
            "bucket": {
                "name": BUCKET,
                "ownerIdentity": {"principalId": "ONCEPROOF"},
                "arn": f"arn:aws:s3:::{BUCKET}",
            },
            "object": {
                "key": quote_plus(key, safe="/"),
                "size": len(content),
                "eTag": hashlib.md5(content, usedforsecurity=False).hexdigest(),
                "sequencer": f"{letter.message_no:018X}",
            },
        },
    }
    return {"Records": [record]}


def _spoiled(envelope: dict[str, Any], letter: Letter, payload: str | None = None) -> str:
    """The envelope as text, spoiled as the letter wants it.

    :param payload: the member without which there is no order in it, to be left out.
    """
    text = json.dumps(envelope, ensure_ascii=False)
    match letter.spoiled:
        case PoisonKind.BAD_JSON:
            return text[:-1]
        case PoisonKind.MISSING_FIELD:
            left = {name: value for name, value in envelope.items() if name != payload}
            return json.dumps(left, ensure_ascii=False)
        case PoisonKind.EMPTY_OBJECT:
            return "{}"
        case PoisonKind.ARRAY:
            return f"[{text}]"
        case PoisonKind.NULL:
            return "null"
    return text


def envelope_id(letter: Letter, of: str = "message") -> str:
    """The id that a service gives what it delivers."""
    digest = hashlib.sha256(f"{letter.seed}:{letter.message_no}:{of}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def _time(letter: Letter, unit: str = "milliseconds") -> str:
    moment = _BEGIN + timedelta(microseconds=letter.offset_ns // 1000)
    return moment.isoformat(timespec=unit).replace("+00:00", "Z")
