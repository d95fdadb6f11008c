"""The queue and its dead-letter queue, as the mapping speaks to them."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from analysis.errors import TargetError
from analysis.schema import QueueRole, QueueSample
from consumer.clock import Clock

BATCH_MAX = 10
"""Messages that one call may receive, delete or send (SQS API reference)."""

_LONG_POLL_S = 1
_DEAD_LETTER_HIDDEN_S = 43_200  # the longest visibility timeout: each is seen once
_PATIENCE = 5  # times an AWS call of the mapping may fail in a row
_MOVE_LIMIT_S = 120.0
_ATTRIBUTE_PARTS = ("DataType", "StringValue", "BinaryValue")
_NOT_IN_FLIGHT = frozenset(
    {
        "ReceiptHandleIsInvalid",
        "MessageNotInflight",
        "InvalidParameterValue",  # what AWS says of a handle that has expired
        "AWS.SimpleQueueService.MessageNotInflight",
    }
)


@dataclass(frozen=True, slots=True)
class QueueAddress:
    url: str
    arn: str
    dead_letter_url: str
    region: str
    visibility_timeout_s: int
    max_receive_count: int
    dead_letter_arn: str = ""
    fifo: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """One message, received once."""

    message: dict[str, Any]  # as ReceiveMessage gave it
    delivery_id: int
    message_no: int | None  # None: not one of the plan's
    received_at: int

    @property
    def sqs_message_id(self) -> str:
        return str(self.message["MessageId"])

    @property
    def receipt_handle(self) -> str:
        return str(self.message["ReceiptHandle"])

    @property
    def receive_count(self) -> int:
        return int(self.message.get("Attributes", {}).get("ApproximateReceiveCount", 1))

    @property
    def group(self) -> str | None:
        """Its message group, which a FIFO queue keeps in order."""
        group: str | None = self.message.get("Attributes", {}).get("MessageGroupId")
        return group


class Queue:
    """
    :param sqs: an open aioboto3 SQS client with retries off.
    :raises TargetError: from every method, when the queue failed several times in a row.
    """

    def __init__(self, sqs: Any, address: QueueAddress, clock: Clock) -> None:
        self.address = address
        self._sqs = sqs
        self._clock = clock

    async def receive(self, at_most: int) -> list[dict[str, Any]]:
        """Messages of the queue; waits a moment for the first of them."""
        timeout_s = self.address.visibility_timeout_s
        return await self._receive(self.address.url, at_most, timeout_s)

    async def receive_dead_letters(self) -> list[dict[str, Any]]:
        return await self._receive(self.address.dead_letter_url, BATCH_MAX, _DEAD_LETTER_HIDDEN_S)

    async def _receive(self, url: str, at_most: int, timeout_s: int) -> list[dict[str, Any]]:
        response = await self._patiently(
            self._sqs.receive_message,
            QueueUrl=url,
            MaxNumberOfMessages=at_most,
            VisibilityTimeout=timeout_s,
            WaitTimeSeconds=_LONG_POLL_S,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return list(response.get("Messages", ()))

    async def delete(self, handles: Sequence[str]) -> set[str]:
        """Delete up to ten messages; the receipt handles that could not be."""
        return await self._delete(self.address.url, handles)

    async def delete_dead_letters(self, handles: Sequence[str]) -> set[str]:
        return await self._delete(self.address.dead_letter_url, handles)

    async def _delete(self, url: str, handles: Sequence[str]) -> set[str]:
        if not handles:
            return set()
        entries = [
            {"Id": str(position), "ReceiptHandle": handle}
            for position, handle in enumerate(handles)
        ]
        response = await self._patiently(
            self._sqs.delete_message_batch, QueueUrl=url, Entries=entries
        )
        return {handles[int(entry["Id"])] for entry in response.get("Failed", ())}

    async def hide(self, received: Received, seconds: int) -> bool:
        """Let a message be visible again after that time, counted from now.

        :returns: False when it is not in flight by this receive any more.
        """
        try:
            await self._patiently(
                self._sqs.change_message_visibility,
                _NOT_IN_FLIGHT,
                QueueUrl=self.address.url,
                ReceiptHandle=received.receipt_handle,
                VisibilityTimeout=seconds,
            )
        except ClientError:
            return False
        return True

    async def send_again(self, dead_letter: Received) -> str:
        """Put a dead letter into the queue as a new message with its body and attributes.

        :returns: the new message's id.
        """
        message = dead_letter.message
        arguments: dict[str, Any] = {
            "QueueUrl": self.address.url,
            "MessageBody": message["Body"],
            "MessageAttributes": {
                name: {part: value[part] for part in _ATTRIBUTE_PARTS if part in value}
                for name, value in message.get("MessageAttributes", {}).items()
            },
        }
        if self.address.fifo:
            arguments["MessageGroupId"] = dead_letter.group
            # Its own would still be remembered, and the queue would drop it. This is what a
            # FIFO queue itself gives what it dead-letters (SQS developer guide).
            arguments["MessageDeduplicationId"] = dead_letter.sqs_message_id
        sent = await self._patiently(self._sqs.send_message, **arguments)
        return str(sent["MessageId"])

    async def move_dead_letters(self, dead_letters: Sequence[Received]) -> bool:
        """Have the service move these, which are hidden, back into the queue.

        :returns: False where the endpoint has no StartMessageMoveTask.
        """
        for one in dead_letters:
            await self._patiently(
                self._sqs.change_message_visibility,
                QueueUrl=self.address.dead_letter_url,
                ReceiptHandle=one.receipt_handle,
                VisibilityTimeout=0,
            )
        arn = self.address.dead_letter_arn
        try:
            await self._sqs.start_message_move_task(SourceArn=arn)
        except ClientError:
            return False
        try:
            async with asyncio.timeout(_MOVE_LIMIT_S):
                while await self._is_moving(arn):  # noqa: ASYNC110 - only asking again can tell
                    await asyncio.sleep(0.2)
        except TimeoutError as error:
            raise TargetError(
                f"the dead letters were not moved within {_MOVE_LIMIT_S:g} s of "
                "StartMessageMoveTask. What was recorded can still be judged."
            ) from error
        return True

    async def _is_moving(self, arn: str) -> bool:
        listed = await self._patiently(self._sqs.list_message_move_tasks, SourceArn=arn)
        task = listed["Results"][0]  # the newest
        if task["Status"] in ("FAILED", "CANCELLED"):
            raise TargetError(
                f"StartMessageMoveTask ended as {task['Status']}: {task.get('FailureReason', '')}"
            )
        return bool(task["Status"] == "RUNNING")

    async def sample(self, role: QueueRole) -> QueueSample:
        """A queue's own counters."""
        is_queue = role is QueueRole.QUEUE
        response = await self._patiently(
            self._sqs.get_queue_attributes,
            QueueUrl=self.address.url if is_queue else self.address.dead_letter_url,
            AttributeNames=["All"],
        )
        counters = response.get("Attributes", {})
        return QueueSample(
            at=self._clock.now_ns(),
            queue=role,
            visible=int(counters.get("ApproximateNumberOfMessages", 0)),
            in_flight=int(counters.get("ApproximateNumberOfMessagesNotVisible", 0)),
            delayed=int(counters.get("ApproximateNumberOfMessagesDelayed", 0)),
        )

    async def _patiently(
        self, call: Any, final: Container[str] = (), **arguments: Any
    ) -> dict[str, Any]:
        """An AWS call of the mapping's own, repeated when it fails.

        :param final: codes of errors that are an answer, not a failure of the queue.
        :raises ClientError: with one of these codes.
        """
        for attempt in range(1, _PATIENCE + 1):
            try:
                response: dict[str, Any] = await call(**arguments)
                return response
            except (BotoCoreError, ClientError) as error:
                if isinstance(error, ClientError) and error.response["Error"]["Code"] in final:
                    raise
                if attempt == _PATIENCE:
                    raise TargetError(
                        f"the queue failed {_PATIENCE} times in a row during the run: {error}. "
                        "What was recorded can still be judged."
                    ) from error
                await asyncio.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")
