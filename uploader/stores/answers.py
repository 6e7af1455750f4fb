"""What an object store's refusal means: its error codes and HTTP status as one of our errors.

Pure. The codes are S3's, which Google's XML interface shares, and Azure's. After a put an error's ``outcome``
says whether it may have happened: only an answer in which the server states that it decided nothing means
"not written".
"""

from __future__ import annotations

from typing import Final

from uploader.stores.port import ObjectNotFoundError, PreconditionFailedError
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalError,
)

_PRECONDITION: Final = {
    "PreconditionFailed",
    "ConditionNotMet",
    "BlobAlreadyExists",
    "412",
    "304",
}
_NO_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound"}
_CONFLICT: Final = {"ConditionalRequestConflict", "OperationAborted", "409"}
_THROTTLED: Final = {
    "SlowDown",
    "ServerBusy",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "429",
}
_WRONG_REGION: Final = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "301",
}
FORBIDDEN: Final = {
    "AccessDenied",
    "AllAccessDisabled",
    "AccountProblem",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "401",
    "403",
}
_REPEATABLE: Final = {
    "RequestTimeout",
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "OperationTimedOut",
    "ServiceUnavailable",
}
PAST_END: Final = {"InvalidRange", "416"}
"""The requested range begins at or after the end of the object."""


def refusal(codes: set[str], *, url: str, key: str, is_put: bool) -> WalError:
    """Return our error for an answer other than success.

    Args:
        codes: The code in the body, if there is one, and the HTTP status.
        url: The store, for the message.
        key: The object asked for, relative to the store; "" for listings.
        is_put: Whether the request would have changed something.
    """
    said = " ".join(sorted(codes - {""}))
    if codes & _PRECONDITION:
        return PreconditionFailedError(
            f"the object exists already or was changed in {url}", key=key
        )
    if codes & _NO_BUCKET:
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
    if codes & FORBIDDEN:
        return StorageUnavailableError(
            f"{url} refuses the credentials ({said}); check them, and that they may get, put, list"
            " and delete objects there",
            retriable=False,
        )
    if codes & {"NoSuchKey", "BlobNotFound", "404"}:
        return ObjectNotFoundError(f"there is no such object in {url}", key=key)
    if codes & _REPEATABLE or any(code.isdigit() and int(code) >= 500 for code in codes):
        return StorageUnavailableError(
            f"{url} failed ({said})", outcome="unknown" if is_put else "not_written"
        )
    return StorageUnavailableError(
        f"{url} refuses the request for {key!r} ({said})", retriable=False
    )
