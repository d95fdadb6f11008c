"""The command line as a user has it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import msgspec

from analysis.findings import Verdict
from analysis.schema import RunInfo
from analysis.store import load_run, open_evidence
from analysis.verdict import read_verdict
from loadtest.__main__ import main

_DRAWING = "analysis.report.render_plots"
MARK = "ONCEPROOF_TEST"
"""Names a test's own folder in the environment of every process it starts."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Both streams with the line breaks of a narrow terminal taken out."""
        return " ".join((self.out + self.err).split())


def loadtest(*arguments: str | Path, cwd: Path) -> Ended:
    """Run the command in this process, but for the plots: drawing them takes as long as all
    else of a small run. :func:`loadtest_apart` and ``test_report`` draw.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["loadtest", *map(str, arguments)]),
        mock.patch(_DRAWING, return_value=[]),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int), "the command ends with an exit code"
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def started(
    *arguments: str | Path,
    cwd: Path,
    module: str = "loadtest",
    python: str = sys.executable,
    wrapper: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which ``cwd`` marks as this test's."""
    variables = {
        name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ
    }
    keys = {"AWS_ACCESS_KEY_ID": "onceproof", "AWS_SECRET_ACCESS_KEY": "onceproof"}
    with subprocess.Popen(
        [*wrapper, python, "-m", module, *map(str, arguments)],
        cwd=cwd,
        env={**variables, **keys, "AWS_EC2_METADATA_DISABLED": "true", "COLUMNS": "100"}
        | {"HOME": str(cwd), "PYTHONUNBUFFERED": "1", MARK: str(cwd)}
        | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # where a test has failed before its end


def end_of(process: subprocess.Popen[str]) -> Ended:
    """Wait for its end; one that hangs fails the test."""
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


def loadtest_apart(*arguments: str | Path, cwd: Path, **options: Any) -> Ended:
    """Run the command in a process of its own."""
    with started(*arguments, cwd=cwd, **options) as process:
        return end_of(process)


def analysis(run: Path, *arguments: str) -> Ended:
    """``python -m analysis RUN``"""
    return loadtest_apart(run, *arguments, cwd=run.parent, module="analysis")


# --- what a run leaves behind -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """The directory of one run."""

    path: Path

    @property
    def info(self) -> RunInfo:
        return load_run(self.path)

    @property
    def verdict(self) -> Verdict:
        return read_verdict(self.path)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with open_evidence(self.path) as evidence:
            return evidence.rows(sql)

    def findings(self) -> dict[str, int]:
        """Count by kind, of those that were found."""
        return {str(check.kind): check.count for check in self.verdict.checks if check.count}

    def rule(self, name: str) -> str:
        """What was found for one rule of the verdict."""
        return next(rule.actual for rule in self.verdict.rules if rule.name == name)

    def lines(self, table: str) -> list[dict[str, Any]]:
        """The whole lines of a table while it is being written."""
        try:
            text = (self.path / "evidence" / f"{table}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def holds(self, text: str) -> list[Path]:
        """The files that hold this text."""
        files = [path for path in self.path.rglob("*") if path.is_file()]
        return [path for path in files if text.encode() in path.read_bytes()]


def only_run(cwd: Path) -> Run:
    """The one run made in this folder."""
    (found,) = (cwd / "runs").iterdir()
    return Run(found)


def verdict_json(text: str) -> Verdict:
    return msgspec.json.decode(text, type=Verdict)


def processes_of(mark: Path) -> list[int]:
    """Living processes that carry this folder in their environment, arguments or folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and is_running(int(entry.name)):
            with contextlib.suppress(OSError):
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if str(mark).encode() in text:
                    found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def variable_of(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            if entry.startswith(f"{name}="):
                return entry.removeprefix(f"{name}=")
    return None


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what it prints up to this text."""
    assert process.stdout is not None
    said = b""
    # Byte by byte: what follows is left for :func:`end_of`.
    while not said.endswith(text.encode()):
        byte = os.read(process.stdout.fileno(), 1)
        assert byte, f"never said: {text}"
        said += byte
    return said.decode()


def until(condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Wait for an event that nothing announces."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.01)


# --- endpoints --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    content_type: str = "application/x-amz-json-1.0"

    @classmethod
    def error(cls, status: int, code: str) -> Reply:
        body = {"__type": f"com.amazonaws#{code}", "message": "scripted"}
        return cls(status, json.dumps(body).encode())


Answering = Callable[[str, dict[str, Any]], Reply | None]
"""Operation (``PutItem``) and request -> its reply; None closes the connection."""


@contextlib.contextmanager
def endpoint(answering: Answering) -> Iterator[str]:
    """An HTTP endpoint that answers as it is told; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
            reply = answering(operation, json.loads(body or b"{}"))
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def forward(url: str, operation: str, body: dict[str, Any]) -> Reply:
    """Ask the real emulator."""
    is_queue = "Queue" in operation or "Message" in operation
    scope, target = ("sqs", "AmazonSQS") if is_queue else ("dynamodb", "DynamoDB_20120810")
    request = urllib.request.Request(url, data=json.dumps(body).encode())
    request.add_header("X-Amz-Target", f"{target}.{operation}")
    request.add_header("Content-Type", "application/x-amz-json-1.0")
    credential = f"Credential=onceproof/20260101/us-east-1/{scope}/aws4_request"
    request.add_header("Authorization", f"AWS4-HMAC-SHA256 {credential}")
    try:
        with urllib.request.urlopen(request) as answer:
            return Reply(answer.status, answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Reply(refusal.code, refusal.read())


def names_at(url: str) -> str:
    """All queues, tables and buckets of an endpoint."""
    common: dict[str, Any] = {"endpoint_url": url, "region_name": "us-east-1"}
    queues = boto3.client("sqs", **common).list_queues().get("QueueUrls", [])
    tables = boto3.client("dynamodb", **common).list_tables()["TableNames"]
    buckets = [bucket["Name"] for bucket in boto3.client("s3", **common).list_buckets()["Buckets"]]
    return " ".join(queues + tables + buckets)
