"""A minimal Lambda runtime client, where AWS's own (awslambdaric) has no wheel.

Standard library only; run by :mod:`consumer.bootstrap` inside the environment's process.
Follows the Runtime API of the Lambda developer guide ("Using the Lambda runtime API") and
gives the handler the context attributes and the error shape that awslambdaric gives.
"""

import http.client
import importlib
import json
import os
import sys
import time
import traceback
from decimal import Decimal
from typing import Any, NamedTuple

_BASE = "/2018-06-01/runtime"


class Context:
    """The second argument of a handler."""

    def __init__(self, headers: Any) -> None:
        self.aws_request_id = headers["Lambda-Runtime-Aws-Request-Id"]
        self.invoked_function_arn = headers["Lambda-Runtime-Invoked-Function-Arn"]
        self._deadline_ms = int(headers["Lambda-Runtime-Deadline-Ms"])
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.identity = None
        self.client_context = None
        self.tenant_id = None

    def get_remaining_time_in_millis(self) -> int:
        return max(0, self._deadline_ms - int(time.time() * 1000))

    def log(self, message: object) -> None:
        sys.stdout.write(str(message))


def _json_default(value: object) -> object:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _RuntimeApi:
    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

    def next(self) -> tuple[Any, bytes]:
        self._connection.request("GET", f"{_BASE}/invocation/next")
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            sys.exit(f"Runtime API answered {answer.status} to next")
        return answer.headers, body

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        self._connection.request("POST", _BASE + path, body, headers)
        self._connection.getresponse().read()

    def post_error(self, path: str, error_type: str, body: bytes) -> None:
        self.post(path, body, {"Lambda-Runtime-Function-Error-Type": error_type})


def load(name: str) -> Any:
    """The handler of this name.

    :raises ImportFailedError: naming Lambda's error type for what is wrong.
    """
    module_name, _, function_name = name.rpartition(".")
    try:
        module = importlib.import_module(module_name.replace("/", "."))
    except SyntaxError as error:
        raise ImportFailedError("Runtime.UserCodeSyntaxError", str(error)) from error
    except ImportError as error:
        message = f"Unable to import module '{module_name}': {error}"
        raise ImportFailedError("Runtime.ImportModuleError", message) from error
    except Exception as error:
        raise ImportFailedError(type(error).__name__, str(error)) from error
    if not hasattr(module, function_name):
        message = f"Handler '{function_name}' missing on module '{module_name}'"
        raise ImportFailedError("Runtime.HandlerNotFound", message)
    return getattr(module, function_name)


class ImportFailedError(Exception):
    """The handler cannot be imported.

    Its cause, where there is one, has the traceback.
    """

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type

    def body(self) -> bytes:
        """As the Runtime API wants it told."""
        cause = self.__cause__
        foreign = cause is not None and not isinstance(cause, ImportError | SyntaxError)
        return _error_body(self.error_type, cause if foreign and cause else self, "")


class Answer(NamedTuple):
    """What became of an invocation."""

    body: bytes
    error_type: str | None = None  # None: the handler returned
    content_type: str = "application/json"


def invoke(handler: Any, event: bytes, context: Context) -> Answer:
    """Run the handler once."""
    try:
        answer = handler(json.loads(event), context)
    except Exception as error:
        name = type(error).__name__
        return Answer(_error_body(name, error, context.aws_request_id), name)
    if isinstance(answer, bytes):
        return Answer(answer, content_type="application/unknown")
    try:
        return Answer(json.dumps(answer, default=_json_default).encode())
    except (TypeError, ValueError) as error:
        wrapped = ValueError(f"Unable to marshal response: {error}")
        name = "Runtime.MarshalError"
        return Answer(_error_body(name, wrapped, context.aws_request_id), name)


def _error_body(error_type: str, error: BaseException, request_id: str) -> bytes:
    """The error's shape; it is printed, too."""
    print(f"[ERROR] {error_type}: {error}", flush=True)
    traceback.print_exception(error, file=sys.stdout)
    shape = {
        "errorMessage": str(error),
        "errorType": error_type,
        "requestId": request_id,
        "stackTrace": traceback.format_tb(error.__traceback__),
    }
    return json.dumps(shape).encode()


def _one_invocation(api: _RuntimeApi, handler: Any) -> None:
    headers, event = api.next()
    context = Context(headers)
    path = f"/invocation/{context.aws_request_id}"
    answer = invoke(handler, event, context)
    if answer.error_type is not None:
        api.post_error(f"{path}/error", answer.error_type, answer.body)
    else:
        api.post(f"{path}/response", answer.body, {"Content-Type": answer.content_type})


def main(handler_name: str) -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    api = _RuntimeApi()
    try:
        handler = load(handler_name)
    except ImportFailedError as error:
        api.post_error("/init/error", error.error_type, error.body())
        sys.exit(1)
    while True:
        _one_invocation(api, handler)


if __name__ == "__main__":
    main(sys.argv[1])
