"""LOCATION: a log directory, or a store URL."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from walstore.cli.errors import UsageError

_SCHEMES = ("s3", "s3a", "file", "memory")


def is_url(location: str) -> bool:
    """Return whether a location is a store URL rather than a directory."""
    return "://" in location


def to_directory(location: str, verb: str) -> Path:
    """Return a location as a path; UsageError if it is a URL or was meant as something else."""
    if is_url(location):
        raise UsageError(f"{verb} needs a log directory, not a store URL: {location}")
    if not location:
        raise UsageError("the name of the log directory is empty")
    if location.startswith("~"):
        raise UsageError(
            f"{location} was not expanded by the shell: write the path out, or ./{location} for a "
            "directory of that name"
        )
    scheme = location.partition(":")[0]
    if scheme != location and scheme in _SCHEMES:
        raise UsageError(
            f"a store URL begins with {scheme}://; write ./{location} for a directory of that name"
        )
    return Path(location)


def to_url(location: str, verb: str) -> str:
    """Return a location as a store URL; UsageError if it is none, for verbs that need a store."""
    if not is_url(location):
        raise UsageError(
            f"{verb} needs a store URL such as s3://bucket/prefix or file:///directory, "
            f"not {location!r}"
        )
    if location.startswith("memory:"):
        raise UsageError(
            f"a memory:// store is gone when this command ends; {verb} needs s3:// or file:///"
        )
    return location


def own_directory(directory: Path | None, verb: str) -> Path:
    """Return an empty directory for what a verb makes: the given one, created, or a temporary one.

    UsageError if something is in it.
    """
    if directory is None:
        return Path(tempfile.mkdtemp(prefix=f"walstore-{verb}-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; the {verb} needs a directory of its own")
    return directory.resolve()


def fresh_prefix(url: str, verb: str) -> str:
    """Return a store URL with a last component that no other run uses."""
    name = f"{verb}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))
