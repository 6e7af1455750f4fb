"""LOCATION: a log directory, or a store URL."""

from __future__ import annotations

from pathlib import Path

from walstore.cli.errors import UsageError


def is_url(location: str) -> bool:
    """Return whether a location is a store URL rather than a directory."""
    return "://" in location


def to_directory(location: str, verb: str) -> Path:
    """Return a location as a path; UsageError if it is a URL, for verbs that need a directory."""
    if is_url(location):
        raise UsageError(f"{verb} needs a log directory, not a store URL: {location}")
    if not location:
        raise UsageError("the name of the log directory is empty")
    return Path(location)


def to_url(location: str, verb: str) -> str:
    """Return a location as a store URL; UsageError if it is none, for verbs that need a store."""
    if not is_url(location):
        raise UsageError(
            f"{verb} needs a store URL such as s3://bucket/prefix or file:///directory, "
            f"not {location!r}"
        )
    return location
