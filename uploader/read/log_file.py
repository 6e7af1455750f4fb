"""Files of a stored log for other engines: where each fragment is, and which records it has. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from walstore.errors import InvalidSettingsError

_BUCKETS: Final = frozenset(("s3", "gs", "az"))


@dataclass(frozen=True, slots=True)
class LogFile:
    """A published fragment of a log, a Parquet file; made by :meth:`uploader.CloudLog.files`."""

    url: str
    """Where it is, as engines name files: ``s3://bucket/prefix/log/…`` or ``file:///directory/log/…``,
    without the options of the log's URL, and with the signs of the path as they are."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last record."""
    size_bytes: int
    """Length of the file."""

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.limit - self.start


def file_prefix(
    url: str,
    *,
    reader: str = "another engine",
    schemes: Collection[str] = frozenset(("file", *_BUCKETS)),
) -> str:
    """Return where a log's objects are, as engines name files; InvalidSettingsError if they cannot.

    ``reader`` begins the error, and ``schemes`` are those of the locations that it reads.
    """
    parts = urlsplit(url)
    path = unquote(parts.path).rstrip("/")
    if parts.scheme not in schemes:
        known = " or ".join(f"{scheme}://" for scheme in sorted(schemes, reverse=True))
        raise InvalidSettingsError(
            f"{reader} refers to files at {known} URLs, not to objects at {parts.scheme or 'a path'}:"
        )
    if any(sign in path for sign in "?#%"):
        raise InvalidSettingsError(
            f"{reader} cannot refer to files whose path has one of the signs ? # %"
        )
    return f"{parts.scheme}://{parts.netloc if parts.scheme in _BUCKETS else ''}{path}"
