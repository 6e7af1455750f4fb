"""Translates botocore's and aiohttp's errors to ours. Pure; the only module that knows their names.

After a put it decides whether the put may have happened. Only an answer in which the server states
that it decided nothing, or a connection that was never made, means "not written". No message repeats
what a credential provider or the server wrote about credentials.
"""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from uploader.stores.errors import ObjectNotFoundError, PreconditionFailedError
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    Outcome,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalError,
)

FAULTS = (
    boto.BotoCoreError,
    boto.ClientError,
    ResponseParserError,
    aiohttp.ClientError,
    OSError,
    ValueError,
)
"""What a call of the client may raise; OSError includes TimeoutError."""

_PRECONDITION = {"PreconditionFailed", "412", "304"}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "429",
}
_WRONG_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "301",
}
_FORBIDDEN = {
    "AccessDenied",
    "AllAccessDisabled",
    "AccountProblem",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "401",
    "403",
}
_REPEATABLE = {
    "RequestTimeout",
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "ServiceUnavailable",
}
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.SSOError,
)
_BAD_SETTINGS = (
    boto.ParamValidationError,
    boto.ValidationError,
    boto.BaseEndpointResolverError,
    boto.InvalidS3AddressingStyleError,
    boto.UnsupportedS3ConfigurationError,
    ValueError,
)


def translate(error: BaseException, *, url: str, key: str, is_put: bool) -> WalError:
    """Return our error for a fault of one request; the caller chains it.

    Args:
        error: One of :data:`FAULTS`.
        url: The store, for the message.
        key: The object asked for, relative to the store; "" for listings.
        is_put: Whether the request would have changed something.
    """
    if isinstance(error, boto.ClientError):
        return _translate_answer(error.response, url=url, key=key, is_put=is_put)
    if isinstance(error, _NO_CREDENTIALS):
        return StorageUnavailableError(
            f"no usable credentials for {url} ({type(error).__name__}); set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give this machine a role",
            retriable=False,
        )
    if isinstance(error, _BAD_SETTINGS):
        return InvalidSettingsError(
            f"the client refuses {url}: {error}; check the bucket's name, region and endpoint_url"
        )
    return _translate_connection(error, url=url, is_put=is_put)


def is_secret(error: BaseException) -> bool:
    """Return whether the text of a fault may reveal credentials."""
    if isinstance(error, boto.ClientError):
        return not _FORBIDDEN.isdisjoint(_codes(error.response))
    return isinstance(error, _NO_CREDENTIALS)


def is_past_end(error: BaseException) -> bool:
    """Return whether the requested range begins at or after the end of the object."""
    return isinstance(error, boto.ClientError) and not {"InvalidRange", "416"}.isdisjoint(
        _codes(error.response)
    )


def _codes(response: Any) -> set[str]:
    """Return the code in the body and the HTTP status, which is all a HEAD has."""
    code = str(response.get("Error", {}).get("Code", ""))
    return {code, str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))}


def _translate_answer(response: Any, *, url: str, key: str, is_put: bool) -> WalError:
    codes = _codes(response)
    said = " ".join(sorted(codes - {""}))
    if codes & _PRECONDITION:
        return PreconditionFailedError(
            f"the object exists already or was changed in {url}", key=key
        )
    if "NoSuchBucket" in codes:
        return LogNotFoundError(f"there is no such bucket: {url}; create it first", location=url)
    if codes & {"NotImplemented", "501"}:
        return UnsupportedStoreError(f"{url} does not implement a request that is needed ({said})")
    if codes & _CONFLICT:
        return StorageUnavailableError(f"{url} was busy with the same object ({said}); try again")
    if codes & _THROTTLED:
        return StorageUnavailableError(f"{url} asks to slow down ({said}); try again")
    if codes & _WRONG_REGION:
        return InvalidSettingsError(
            f"the bucket is in another region ({said}); add ?region=… to {url}"
        )
    if "RequestTimeTooSkewed" in codes:
        return StorageUnavailableError(
            f"{url} refuses this machine's time ({said}); set its clock", retriable=False
        )
    if codes & _FORBIDDEN:
        return StorageUnavailableError(
            f"{url} refuses the credentials ({said}); check them, and that they may get, put, list"
            " and delete objects there",
            retriable=False,
        )
    if codes & {"NoSuchKey", "404"}:
        return ObjectNotFoundError(f"there is no such object in {url}", key=key)
    if codes & _REPEATABLE or any(code.isdigit() and int(code) >= 500 for code in codes):
        return StorageUnavailableError(
            f"{url} failed ({said})", outcome="unknown" if is_put else "not_written"
        )
    return StorageUnavailableError(
        f"{url} refuses the request for {key!r} ({said})", retriable=False
    )


def _translate_connection(error: BaseException, *, url: str, is_put: bool) -> WalError:
    # aiobotocore wraps a reset in mid-request in the same class as a refused connection.
    inner = getattr(error, "kwargs", {}).get("error", error)
    if isinstance(inner, ssl.SSLCertVerificationError | aiohttp.ClientConnectorCertificateError):
        return StorageUnavailableError(
            f"the certificate of {url} cannot be verified; set AWS_CA_BUNDLE", retriable=False
        )
    was_connected = not isinstance(
        inner, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
    )
    outcome: Outcome = "unknown" if is_put and was_connected else "not_written"
    what = "no whole answer came from" if was_connected else "no connection to"
    return StorageUnavailableError(f"{what} {url} ({type(inner).__name__})", outcome=outcome)
