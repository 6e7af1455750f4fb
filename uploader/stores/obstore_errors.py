"""What obstore says of a request that failed, as one of our errors. Pure.

It says it in a text: the request, the server's answer with its status, and how its own error is made.
Nothing of that is repeated: it has the URL of the request, which for Azure may contain a signature.
"""

from __future__ import annotations

import re
from typing import Final

from uploader.stores.answers import PAST_END, refusal
from walstore.errors import Outcome, StorageUnavailableError, UnsupportedStoreError, WalError

_STATUS: Final = re.compile(r"(?:status code|\(code): (\d{3})\b")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_REQUESTED: Final = re.compile(r"Error performing \w+ (\S+) in ")
_NEVER_CONNECTED: Final = "kind: Connect,"
_BEHIND_THE_END: Final = "Wanted range starting at"
_NO_ETAG: Final = "ETag Header missing"


class PastEndError(WalError):
    """A range begins at or behind the end of its object."""


def is_about_credentials(said: str, bucket: str) -> bool:
    """Return whether the request that failed was for credentials: it went elsewhere than to the bucket."""
    requested = _REQUESTED.search(said)
    return requested is not None and bucket not in requested[1]


def translated(said: str, *, url: str, key: str, is_put: bool) -> WalError:
    """Return our error.

    Args:
        said: The text.
        url: The store, for the message.
        key: The object asked for, relative to the store; "" for listings.
        is_put: Whether the request would have changed something.
    """
    codes = {*_STATUS.findall(said), *_CODE.findall(said)}
    if codes & PAST_END or _BEHIND_THE_END in said:
        return PastEndError("the range begins at or behind the end of the object")
    if _NO_ETAG in said:
        return UnsupportedStoreError(
            f"{url} gives its objects no ETag; use another store",
            outcome="unknown" if is_put else "not_written",
        )
    if codes:
        return refusal(codes, url=url, key=key, is_put=is_put)
    was_connected = _NEVER_CONNECTED not in said
    outcome: Outcome = "unknown" if is_put and was_connected else "not_written"
    what = "no whole answer came from" if was_connected else "no connection to"
    return StorageUnavailableError(f"{what} {url}", outcome=outcome)
