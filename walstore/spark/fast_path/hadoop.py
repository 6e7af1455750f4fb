"""A store in Hadoop's names and settings, and the error if the JVM cannot read it. Pure.

Credentials are not passed: the JVM finds its own, by Hadoop's default chain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from walstore import WalError


class FastPathError(WalError):
    """The JVM cannot read this log by itself; ``fast_path="auto"`` reads it with Python instead."""


_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
"""Spark treats these in a path as a pattern unless a backslash precedes them."""
_DEFAULT_REGION: Final = "us-east-1"
"""Most servers other than Amazon's ignore it, but requests must be signed for some region."""


@dataclass(frozen=True, slots=True)
class HadoopStore:
    """A log's store as Hadoop names it."""

    scheme: str
    """``file`` or ``s3a``."""
    base: str
    """Prefix of an object's key, with a slash at its end."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Hadoop settings for reading this bucket only."""

    def path(self, key: str) -> str:
        """Return the path of an object, with the characters of patterns escaped."""
        return _GLOB.sub(r"\\\1", self.base + key)


def hadoop_store(url: str, environment: Mapping[str, str]) -> HadoopStore:
    """Return a store in Hadoop's names, from its URL.

    ``environment`` may name the S3 server and the region if the URL does not, as for the Python client
    (``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_DEFAULT_REGION``).
    """
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/")
    prefix = f"{path}/" if path else ""
    if parts.scheme == "file":
        return HadoopStore("file", f"file:/{prefix}")
    given = dict(parse_qsl(parts.query))
    named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    endpoint = given.get("endpoint_url") or _first(environment, named)
    region = given.get("region") or _first(environment, ("AWS_REGION", "AWS_DEFAULT_REGION"))
    options: dict[str, str] = {}
    if endpoint:
        options["endpoint"] = endpoint
        options["path.style.access"] = "true"
        options["connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
        region = region or _DEFAULT_REGION
    if region:
        options["endpoint.region"] = region
    bucket = parts.netloc
    return HadoopStore(
        "s3a",
        f"s3a://{bucket}/{prefix}",
        {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in options.items()},
    )


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)
