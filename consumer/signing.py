"""Signs forwarded requests, for endpoints that check signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest


class _S3Auth(SigV4Auth):  # type: ignore[misc]  # botocore publishes no types
    def _normalize_url_path(self, path: str) -> str:
        # S3 alone signs the path as it stands: "a//b" and "a/../b" are object names.
        return path


class Signer:
    """Signature Version 4 with the run's own credentials.

    :param credentials: as from ``boto3.Session().get_credentials()``; they are asked for
        the current values at every request, so those that expire are renewed.
    """

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def sign(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        service: str,
        region: str,
    ) -> dict[str, str]:
        """The headers with this signature in place of the one they carry.

        The host signed is that of ``url``. Where the headers state the hash of the body
        (``X-Amz-Content-SHA256``), it is taken over and ``body`` is not looked at.
        """
        request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
        auth = _S3Auth if service == "s3" else SigV4Auth
        auth(self._credentials.get_frozen_credentials(), service, region).add_auth(request)
        return dict(request.headers.items())
