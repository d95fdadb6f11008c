"""A simulated AWS endpoint: answers or errors in the services' own shapes, one script an action."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from aiohttp import web

ACCOUNT_ID = "123456789012"
REGION = "eu-west-1"


@dataclass(frozen=True, slots=True)
class Error:
    """An error as the service words it."""

    code: str
    message: str = "said by the test"
    status: int = 400


Answer = Mapping[str, Any] | Error
Script = Callable[[Mapping[str, Any]], Answer] | Answer | list[Answer]
"""What an action answers: always the same, in turn (the last one stays), or worked out."""


@dataclass(slots=True)
class SimulatedAws:
    """What each action answers, and how often it was asked."""

    answers: dict[str, Script] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def answer(self, action: str, request: Mapping[str, Any]) -> Answer:
        self.asked[action] += 1
        self.requests.append((action, request))
        script = self.answers.get(action, Error("NotSimulated", f"{action} has no answer here"))
        if callable(script):
            return script(request)
        if isinstance(script, list):
            return script.pop(0) if len(script) > 1 else script[0]
        return script

    async def handle(self, request: web.Request) -> web.Response:
        service = request.headers["Authorization"].split("/")[3]
        text = await request.text()
        target = request.headers.get("X-Amz-Target")
        if target is not None:
            operation = target.rpartition(".")[2]
            return _json_reply(self.answer(f"{service}:{operation}", json.loads(text or "{}")))
        if service in ("sts", "iam"):
            form = {name: values[0] for name, values in parse_qs(text).items()}
            return _xml_reply(form["Action"], self.answer(f"{service}:{form['Action']}", form))
        path = unquote(request.path).rstrip("/")
        operation = f"{request.method} {path}"
        parameters = {**request.query, **(json.loads(text) if text else {})}
        return _json_reply(self.answer(f"{service}:{operation}", parameters))


def _json_reply(answer: Answer) -> web.Response:
    if isinstance(answer, Error):
        body = {"__type": answer.code, "message": answer.message, "Message": answer.message}
        headers = {"x-amzn-errortype": answer.code, "x-amzn-requestid": "r"}
        return web.Response(
            status=answer.status,
            body=json.dumps(body).encode(),
            headers=headers,
            content_type="application/x-amz-json-1.0",
        )
    return web.Response(body=json.dumps(answer).encode(), content_type="application/x-amz-json-1.0")


def _xml_reply(action: str, answer: Answer) -> web.Response:
    if isinstance(answer, Error):
        text = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{answer.code}</Code>"
            f"<Message>{answer.message}</Message></Error><RequestId>r</RequestId></ErrorResponse>"
        )
        return web.Response(status=answer.status, text=text, content_type="text/xml")
    members = "".join(f"<{name}>{value}</{name}>" for name, value in answer.items())
    text = (
        f"<{action}Response><{action}Result>{members}</{action}Result>"
        f"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{action}Response>"
    )
    return web.Response(text=text, content_type="text/xml")


CALLER = {
    "Account": ACCOUNT_ID,
    "Arn": f"arn:aws:iam::{ACCOUNT_ID}:user/tester",
    "UserId": "AIDATEST",
}


@asynccontextmanager
async def simulated_aws(
    answers: Mapping[str, Script] | None = None,
) -> AsyncIterator[tuple[str, SimulatedAws]]:
    """Its URL on loopback, and what it says. It knows who is calling."""
    aws = SimulatedAws({"sts:GetCallerIdentity": CALLER, **(answers or {})})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", aws.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", aws
    finally:
        await runner.cleanup()
