"""Every way in which AWS can refuse ends in one sentence with a cause and a cure."""

from __future__ import annotations

import socket

import pytest

from analysis.errors import TargetError, UsageError
from loadtest.aws.account import Account, RefusedError
from tests.aws_endpoint import ACCOUNT_ID, REGION, Error, Script, simulated_aws

_GET = "lambda:GET /2015-03-31/functions/orders"
_ASK = {"FunctionName": "orders"}


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class _Pauses(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


async def _refusal(script: Script) -> RefusedError:
    async with (
        simulated_aws({_GET: script}) as (url, _),
        Account(endpoint_url=url, region=REGION, sleep=_Pauses()) as account,
    ):
        with pytest.raises(RefusedError) as caught:
            await account.call("lambda", "GetFunction", **_ASK)
    return caught.value


async def test_says_whose_account_it_is() -> None:
    async with simulated_aws() as (url, _), Account(endpoint_url=url, region=REGION) as account:
        assert str(account.identity) == f"account {ACCOUNT_ID}, region {REGION}, at {url}"


async def test_the_sdks_own_variable_for_an_endpoint_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with simulated_aws() as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        async with Account(region=REGION) as account:
            assert account.identity.endpoint_url == url


async def test_a_missing_permission_is_named_with_who_needs_it() -> None:
    said = (
        f"User: arn:aws:iam::{ACCOUNT_ID}:user/tester is not authorized to perform: "
        "lambda:GetFunction on resource: arn:aws:lambda:eu-west-1:1:function:orders because no "
        "identity-based policy allows it"
    )
    error = await _refusal(Error("AccessDeniedException", said, 403))
    assert error.exit_code == 4
    assert (
        "Allow lambda:GetFunction on arn:aws:lambda:eu-west-1:1:function:orders to "
        f"arn:aws:iam::{ACCOUNT_ID}:user/tester" in str(error)
    )


async def test_a_permission_that_is_called_otherwise_than_its_operation() -> None:
    script = {"sqs:DeleteMessageBatch": Error("AccessDenied", "Access denied", 403)}
    async with (
        simulated_aws(script) as (url, _),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        with pytest.raises(RefusedError, match=r"Allow sqs:DeleteMessage to arn"):
            await account.call("sqs", "DeleteMessageBatch", QueueUrl=url, Entries=[])


async def test_an_expired_token_asks_to_sign_in_again() -> None:
    error = await _refusal(Error("ExpiredTokenException", "The security token is expired", 403))
    assert "session token has expired" in str(error)
    assert "Sign in again" in str(error)


async def test_credentials_that_are_not_accepted() -> None:
    answers: dict[str, Script] = {
        "sts:GetCallerIdentity": Error("InvalidClientTokenId", "The token is invalid", 403)
    }
    async with simulated_aws(answers) as (url, _):
        with pytest.raises(TargetError, match="does not accept the credentials"):
            await Account(endpoint_url=url, region=REGION).__aenter__()


async def test_what_is_throttled_is_repeated_and_counted() -> None:
    slow_down = Error("TooManyRequestsException", "Rate exceeded", 429)
    pauses = _Pauses()
    async with (
        simulated_aws({_GET: [slow_down, slow_down, {"Configuration": {}}]}) as (url, aws),
        Account(endpoint_url=url, region=REGION, sleep=pauses) as account,
    ):
        assert "Configuration" in await account.call("lambda", "GetFunction", **_ASK)
        assert account.throttled == {"lambda:GetFunction": 2}
        assert account.called["lambda:GetFunction"] == aws.asked[_GET] == 3
        assert pauses == [0.25, 0.5]


async def test_throttling_without_end_is_an_error() -> None:
    error = await _refusal(Error("ThrottlingException", "Rate exceeded"))
    assert "still throttled lambda:GetFunction after 6 attempts" in str(error)


async def test_a_failed_read_is_repeated_and_a_failed_write_is_not() -> None:
    broken = Error("ServiceException", "oh", 500)
    put = "lambda:POST /2015-03-31/event-source-mappings"
    async with (
        simulated_aws({_GET: [broken, {}], put: broken}) as (url, aws),
        Account(endpoint_url=url, region=REGION, sleep=_Pauses()) as account,
    ):
        await account.call("lambda", "GetFunction", **_ASK)
        with pytest.raises(TargetError, match="failed with HTTP 500"):
            await account.call("lambda", "CreateEventSourceMapping", **_ASK)
        assert aws.asked[_GET] == 2
        assert aws.asked[put] == 1


async def test_only_does_not_exist_is_proof_that_it_is_gone() -> None:
    answers: dict[str, Script] = {
        _GET: [Error("ResourceNotFoundException", status=404), Error("AccessDenied", status=403)]
    }
    async with (
        simulated_aws(answers) as (url, _),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        assert await account.find("lambda", "GetFunction", **_ASK) is None
        with pytest.raises(RefusedError):
            await account.find("lambda", "GetFunction", **_ASK)


async def test_waiting_has_an_end() -> None:
    pauses = _Pauses()

    async def never() -> None:
        return None

    async with (
        simulated_aws() as (url, _),
        Account(endpoint_url=url, region=REGION, sleep=pauses) as account,
    ):
        with pytest.raises(TargetError, match="the mapping is still Creating after 10 s"):
            await account.wait("the mapping is still Creating", never, limit_s=10, every_s=2)
    assert pauses == [2.0] * 5


async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TargetError, match=f"127.0.0.1:{port} could not be reached for sts:"):
        await Account(endpoint_url=f"http://127.0.0.1:{port}", region=REGION).__aenter__()


async def test_what_answers_is_not_aws() -> None:
    async with simulated_aws({"sts:GetCallerIdentity": {}}) as (url, _):
        with pytest.raises(TargetError, match="so it is not AWS"):
            await Account(endpoint_url=url, region=REGION).__aenter__()


async def test_a_profile_that_is_not_there_and_no_region() -> None:
    with pytest.raises(UsageError, match=r"--profile: .*nobody"):
        await Account(profile="nobody").__aenter__()
    with pytest.raises(UsageError, match="--region: no region is known"):
        await Account().__aenter__()


async def test_no_credentials_for_aws_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(TargetError, match="no AWS credentials were found"):
        await Account(region=REGION).__aenter__()
