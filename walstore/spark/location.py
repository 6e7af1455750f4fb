"""Where a log is: a directory of this machine, or a prefix of an object store. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from walstore import InvalidSettingsError


@dataclass(frozen=True, slots=True)
class Location:
    """A location passed to ``load``."""

    text: str
    """A path, or a URL in which ``store.*`` options have become query parameters."""
    is_store: bool
    """Whether it is the URL of an object store."""
    topic: str
    """Name of the log: the last component of the path."""

    def child(self, name: str) -> Location:
        """Return the location of a log below this one: a subdirectory, or a longer prefix."""
        if not self.is_store:
            return Location(os.path.join(self.text, name), is_store=False, topic=_topic(name))  # noqa: PTH118
        bare, mark, query = self.text.partition("?")
        url = f"{bare.rstrip('/')}/{quote(name)}{mark}{query}"
        return Location(url, is_store=True, topic=_topic(name))


def parse_location(path: str, store: Mapping[str, str]) -> Location:
    """Return the location that ``path`` names.

    ``store`` contains the options ``store.*``, keyed by what follows the dot; they become query parameters
    of the URL. Raises InvalidSettingsError for a location that Spark's tasks could not open.
    """
    if "://" not in path:
        path = os.path.abspath(path)  # noqa: PTH100 - as the shell does, links kept
        if store:
            raise InvalidSettingsError(
                "options store.* go with a store URL; a log directory knows where it was shipped to"
            )
        return Location(path, is_store=False, topic=_topic(path))
    if path.startswith("s3a://"):  # Hadoop's name for the same location
        path = "s3" + path.removeprefix("s3a")
    parts = urlsplit(path)
    if parts.scheme == "memory":
        raise InvalidSettingsError(
            "Spark cannot read a memory:// store: it exists only in the process that made it"
        )
    if "@" in parts.netloc:
        raise InvalidSettingsError(
            "a URL cannot carry credentials; they come from the environment of driver and executors"
        )
    named = parse_qsl(parts.query, keep_blank_values=True)
    twice = sorted({name for name, _ in named} & store.keys())
    if twice:
        raise InvalidSettingsError(
            f"give {', '.join(twice)} in the URL or as an option store.*, not both"
        )
    url = path
    if store:
        bare = path.partition("?")[0]
        url = f"{bare}?{urlencode([*named, *store.items()])}"
    return Location(url, is_store=True, topic=_topic(unquote(parts.path)) or parts.netloc)


def _topic(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
