"""AWS's control plane in front of the emulator: every request is named by its action, and a test
may answer it itself, hold it, or look at it before or after the emulator has."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3

from tests.cli import Reply

_XML_ERROR = (
    '<ErrorResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><Error><Type>Sender</Type>'
    "<Code>{code}</Code><Message>{message}</Message></Error><RequestId>1</RequestId>"
    "</ErrorResponse>"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    action: str  # "sqs:CreateQueue"
    forward: Callable[[], Reply] = field(repr=False)

    def forward_it(self) -> Reply:
        """What the emulator says."""
        return self.forward()

    def refused(self, status: int, code: str, message: str = "scripted") -> Reply:
        """An error as this service writes it."""
        service = self.action.partition(":")[0]
        if service in ("iam", "sts"):
            text = _XML_ERROR.format(code=code, message=message)
            return Reply(status, text.encode(), "text/xml")
        body = json.dumps({"__type": code, "message": message}).encode()
        return Reply(status, body, "application/x-amz-json-1.1")

    def denied(self) -> Reply:
        code = "AccessDenied" if self.action.startswith("iam:") else "AccessDeniedException"
        return self.refused(403, code, f"User: x is not authorized to perform: {self.action}")


Answering = Callable[[Asked], Reply]


@contextlib.contextmanager
def control_plane(emulator_url: str, answering: Answering) -> Iterator[str]:
    """An endpoint that asks ``answering`` about every request; its URL."""
    place = urllib.parse.urlsplit(emulator_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        _emulator: http.client.HTTPConnection | None = None  # one for each connection to here

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            action = _action(self.command, self.path, self.headers.get("X-Amz-Target"), body)
            reply = answering(Asked(action, lambda: self._forward(body)))
            with contextlib.suppress(ConnectionError):  # of a tester that was killed
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(reply.body)))
                self.send_header("x-amzn-ErrorType", _error_type(reply))
                self.end_headers()
                self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the server's names

        def _forward(self, body: bytes) -> Reply:
            if self._emulator is None:
                self._emulator = http.client.HTTPConnection(place.hostname or "", place.port)
            names = ("Authorization", "Content-Type", "X-Amz-Target", "X-Amz-Date")
            headers = {name: self.headers[name] for name in names if name in self.headers}
            self._emulator.request(self.command, self.path, body, headers)
            answer = self._emulator.getresponse()
            kind = answer.headers.get("Content-Type", "application/json")
            return Reply(answer.status, answer.read(), kind)

        def finish(self) -> None:
            if self._emulator is not None:
                self._emulator.close()
            super().finish()

        def log_message(self, format: str, *values: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False  # a request that is held

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # of a tester that was killed
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _error_type(reply: Reply) -> str:
    """Where REST services say which error it is."""
    if reply.status < 300 or b'"__type"' not in reply.body:
        return ""
    return str(json.loads(reply.body)["__type"]).rpartition("#")[2]


_TARGETS = {
    "AmazonSQS": "sqs",
    "DynamoDB_20120810": "dynamodb",
    "DynamoDBStreams_20120810": "dynamodb",
    "Logs_20140328": "logs",
    "ResourceGroupsTaggingAPI_20170126": "tag",
}


def _action(method: str, path: str, target: str | None, body: bytes) -> str:
    if target is not None:
        service, _, operation = target.partition(".")
        return f"{_TARGETS[service]}:{operation}"
    plain = urllib.parse.urlsplit(path).path
    if plain == "/":
        operation = urllib.parse.parse_qs(body.decode())["Action"][0]
        return f"{'sts' if operation == 'GetCallerIdentity' else 'iam'}:{operation}"
    for operation, verb, pattern in _lambda_operations():
        if verb == method and pattern.fullmatch(plain):
            return f"lambda:{operation}"
    raise AssertionError(f"what is {method} {path}?")


_operations: list[tuple[str, str, re.Pattern[str]]] = []


def _lambda_operations() -> list[tuple[str, str, re.Pattern[str]]]:
    if not _operations:
        model = boto3.client("lambda", region_name="us-east-1").meta.service_model
        for name in model.operation_names:
            http = model.operation_model(name).http
            uri = http["requestUri"].partition("?")[0].rstrip("/")
            pattern = re.sub(r"\\{[^}]+\\}", "[^/]+", re.escape(uri)) + "/?"
            _operations.append((name, http["method"], re.compile(pattern)))
        # The longest first: /functions/{name}/configuration before anything shorter.
        _operations.sort(key=lambda one: -len(one[2].pattern))
    return _operations
