"""The AWS account that a command works in, and every error that it can answer, in one place.

All calls go through :meth:`Account.call`: it repeats what AWS throttled, a counted and bounded
number of times, and turns whatever botocore raises into one sentence that names the action,
the cause and the cure. SDK retries are off, so that a count of calls is a count of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aioboto3
from aiobotocore.config import AioConfig
from botocore import xform_name
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
)
from botocore.exceptions import ConnectionError as UnreachableError

from analysis.errors import TargetError, UsageError
from loadtest import __version__

_ATTEMPTS = 6
_BACKOFF_S = 0.25
"""Before the second attempt, and twice as long before each further one: about 8 s in all.
Lambda's control plane allows 15 requests a second (developer guide, "Lambda quotas")."""
_ANSWER_TIMEOUT_S = 60.0
_CONNECTIONS = 32
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_THROTTLED = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottledException",
        "TooManyRequestsException",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_FORBIDDEN = frozenset(
    {"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}
)
_NOT_VALID = frozenset(
    {
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_GONE = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchEntity",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
    }
)
_READS = ("BatchGet", "Describe", "Filter", "Get", "List", "Query")
"""Operations that may be repeated even when it is not known whether they were carried out."""

# Where the permission is not called like the operation (service authorization reference).
_PERMISSIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "lambda:Invoke": "lambda:InvokeFunction",
}
_PREFIXES = {"dynamodbstreams": "dynamodb"}

T = TypeVar("T")


class RefusedError(TargetError):
    """AWS answered a call with an error. ``code`` is its error code, ``action`` the permission
    that the call needs (``lambda:GetFunction``)."""

    def __init__(self, text: str, *, code: str, action: str) -> None:
        super().__init__(text)
        self.code = code
        self.action = action


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose resources these are."""

    account_id: str
    caller_arn: str
    region: str
    endpoint_url: str | None  # None: AWS itself

    def __str__(self) -> str:
        where = "" if self.endpoint_url is None else f", at {self.endpoint_url}"
        return f"account {self.account_id}, region {self.region}{where}"


class Account:
    """One account in one region, as an asynchronous context manager; ``identity`` says which.

    :raises UsageError: there is no such profile, or no region is known.
    :raises TargetError: from every method, when AWS cannot be reached, refuses or fails, and
        when what answers is not AWS.
    """

    identity: Identity
    throttled: Counter[str]
    """Action -> how often AWS asked to slow down."""
    called: Counter[str]
    """Action -> requests made by :meth:`call`, repeats included: most of them are billed."""

    def __init__(
        self,
        *,
        profile: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        :param profile: of the AWS configuration files; None takes the usual sources.
        :param endpoint_url: something that has AWS's APIs; None is what AWS_ENDPOINT_URL says,
            else AWS itself.
        """
        self._profile = profile
        self._region = region
        # As the SDKs take it; who is asked for leave must see where it goes.
        endpoint_url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL") or None
        self._endpoint_url = endpoint_url
        self.sleep = sleep
        """Waits so many seconds."""
        try:
            host = None if endpoint_url is None else urlsplit(endpoint_url).hostname
        except ValueError as error:  # brackets that do not match
            raise _no_endpoint(endpoint_url) from error
        self.is_local = host in _LOOPBACK
        self._where = endpoint_url or "AWS"
        self._stack = contextlib.AsyncExitStack()
        self._clients: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self.throttled = Counter()
        self.called = Counter()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        try:
            session = aioboto3.Session(profile_name=self._profile, region_name=self._region)
        except ProfileNotFound as error:
            raise UsageError(
                f"--profile: {error}. Look at ~/.aws/config for the names that there are."
            ) from error
        keys = {}
        if self.is_local and await self._no_credentials(session):
            # Emulators take any.
            keys = {"aws_access_key_id": "onceproof", "aws_secret_access_key": "onceproof"}
        region = session.region_name or ("us-east-1" if self.is_local else None)
        if region is None:
            raise UsageError(
                "--region: no region is known. Name one, or set AWS_REGION or the profile's region."
            )
        self._client = partial(
            session.client,
            region_name=region,
            endpoint_url=self._endpoint_url,
            config=AioConfig(
                retries={"total_max_attempts": 1, "mode": "standard"},
                user_agent=f"onceproof/{__version__}",
                max_pool_connections=_CONNECTIONS,
                connect_timeout=5,
                read_timeout=_ANSWER_TIMEOUT_S,
                # A proxy of this machine cannot reach its loopback.
                proxies={} if self.is_local else None,
            ),
            **keys,
        )
        found = await self.call("sts", "GetCallerIdentity")
        account_id, arn = str(found.get("Account")), str(found.get("Arn"))
        if not re.fullmatch(r"\d{12}", account_id):
            raise TargetError(
                f"{self._where} does not say whose account this is, so it is not AWS. Name an "
                "endpoint that has AWS's APIs with --endpoint-url, or leave it out."
            )
        self.identity = Identity(account_id, arn, region, self._endpoint_url)

    async def _no_credentials(self, session: Any) -> bool:
        try:
            return await session.get_credentials() is None
        except BotoCoreError:
            return False  # a call will tell it in its own words

    async def client(self, service: str) -> Any:
        """The open aioboto3 client of a service ("sqs", "lambda", "dynamodb",
        "dynamodbstreams", "logs", "iam", "sts", "cloudwatch"), made when first needed. It
        retries nothing; :meth:`call` does, and is the door for all but the sending itself."""
        async with self._opening:
            if service not in self._clients:
                with self._told(service, "its client"):
                    try:
                        client = await self._stack.enter_async_context(self._client(service))
                    except InvalidRegionError as error:
                        raise UsageError(f"--region: {error}") from error
                    except ValueError as error:
                        raise _no_endpoint(self._endpoint_url) from error
                self._clients[service] = client
            return self._clients[service]

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One API call, such as ``call("lambda", "GetFunction", FunctionName="f")``; its answer.

        What is throttled is repeated with growing pauses. What may or may not have been carried
        out (no answer, HTTP 5xx) is repeated only when it reads.

        :raises RefusedError: AWS answered with an error.
        :raises TargetError: it could not be asked.
        """
        client = await self.client(service)
        action = f"{_PREFIXES.get(service, service)}:{operation}"
        for attempt in range(1, _ATTEMPTS + 1):
            self.called[action] += 1
            try:
                with self._told(service, action):
                    answer: dict[str, Any] = await getattr(client, xform_name(operation))(
                        **parameters
                    )
                    return answer
            except TargetError as error:
                if attempt == _ATTEMPTS or not self._may_repeat(operation, error.__cause__):
                    raise
                if isinstance(error, RefusedError) and _is_throttle(error.code):
                    self.throttled[action] += 1
            await self.sleep(_BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    async def find(self, service: str, operation: str, **parameters: Any) -> dict[str, Any] | None:
        """As :meth:`call`, and None when AWS says that what was asked for does not exist.

        This is the proof that something is gone: any other error is raised.
        """
        try:
            return await self.call(service, operation, **parameters)
        except RefusedError as error:
            if error.code in _GONE:
                return None
            raise

    async def wait(
        self,
        what: str,
        ask: Callable[[], Awaitable[T | None]],
        *,
        limit_s: float,
        every_s: float = 1.0,
    ) -> T:
        """Ask again and again, until the answer is not None; that answer.

        :param what: what is waited for, for the error: "the mapping is still Creating".
        :raises TargetError: it was still None after ``limit_s``.
        """
        for _ in range(max(1, round(limit_s / every_s))):
            answer = await ask()
            if answer is not None:
                return answer
            await self.sleep(every_s)
        raise TargetError(f"{what} after {limit_s:g} s.")

    # --- what went wrong, in words ---

    def _may_repeat(self, operation: str, cause: BaseException | None) -> bool:
        if isinstance(cause, ClientError):
            if _is_throttle(_code(cause)):
                return True
            return _status(cause) >= 500 and operation.startswith(_READS)
        if isinstance(cause, UnreachableError) and self.is_local:
            return False  # nobody is there
        return isinstance(cause, (UnreachableError, HTTPClientError)) and operation.startswith(
            _READS
        )

    @contextlib.contextmanager
    def _told(self, service: str, action: str) -> Any:
        try:
            yield
        except ClientError as error:
            raise self._refused(action, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise TargetError(
                f"no AWS credentials were found ({error}). Name a profile with --profile, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            ) from error
        except ParamValidationError as error:
            raise UsageError(f"{action} cannot be asked: {error}") from error
        except NoRegionError as error:
            raise UsageError(f"--region: {error}") from error
        except ReadTimeoutError as error:
            raise TargetError(
                f"{self._where} did not answer {action} within {_ANSWER_TIMEOUT_S:g} s. Try again; "
                f"look at the status page of {service} if it stays so."
            ) from error
        except (UnreachableError, HTTPClientError) as error:
            raise TargetError(
                f"{self._where} could not be reached for {action}: {error}. Look at the network, "
                "at --region, and at --endpoint-url where one is named."
            ) from error
        except BotoCoreError as error:
            if type(error).__name__ in _SIGN_IN:
                again = "" if self._profile is None else f" --profile {self._profile}"
                raise TargetError(
                    f"the AWS credentials could not be had: {error}. Sign in again (aws sso "
                    f"login{again}), then repeat the command."
                ) from error
            raise TargetError(
                f"{self._where} answered {action} with something that is not AWS: {error}. Name an "
                "endpoint that has AWS's APIs with --endpoint-url, or leave it out."
            ) from error

    def _refused(self, action: str, error: ClientError) -> RefusedError:
        code, said = _code(error), error.response.get("Error", {}).get("Message", "")
        if code in _EXPIRED:
            text = (
                f"the AWS session token has expired ({action}: {code}). Sign in again, or set "
                "fresh credentials, then repeat the command."
            )
        elif code in _FORBIDDEN:
            text = (
                f"AWS refuses {action}: {said or code}. Allow {_permission(action, said)} to "
                f"{self._caller()}, or use another --profile."
            )
        elif code in _NOT_VALID:
            text = (
                f"{self._where} does not accept the credentials ({action}: {code}: {said}). Check "
                "--profile, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, the "
                "region and this machine's clock."
            )
        elif _is_throttle(code):
            text = (
                f"AWS still throttled {action} after {_ATTEMPTS} attempts ({code}: {said}). Wait "
                "a minute, or end what else uses the account's quota, then repeat the command."
            )
        elif _status(error) >= 500:
            text = f"{self._where} failed with HTTP {_status(error)} at {action} ({code}: {said})."
        else:
            text = f"{self._where} refuses {action}: {code}: {said}"
        return RefusedError(text, code=code, action=_permission(action, said))

    def _caller(self) -> str:
        identity = getattr(self, "identity", None)
        return identity.caller_arn if identity is not None else "who is calling"


_SIGN_IN = frozenset(
    {
        "CredentialRetrievalError",
        "SSOError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)


def _no_endpoint(url: str | None) -> UsageError:
    return UsageError(f"--endpoint-url: {url!r} is no endpoint; write it as http://127.0.0.1:4566")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_throttle(code: str) -> bool:
    return code.rpartition(".")[2] in _THROTTLED


def _permission(action: str, said: str) -> str:
    """The permission that is missing: AWS mostly names it, with the resource."""
    named = re.search(r"not authorized to perform: (\S+)(?: on resource: (\S+))?", said)
    if named is None:
        return _PERMISSIONS.get(action, action)
    resource = "" if named[2] is None else f" on {named[2].rstrip('.')}"
    return f"{named[1]}{resource}"
