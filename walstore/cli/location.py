"""LOCATION: a log directory, or a store URL."""

from __future__ import annotations

from pathlib import Path

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
