"""Arguments: checks callers' arguments at once and converts them to plain values. Pure.

The code behind the public methods relies on exact types: a subclass of ``str``, ``bytes`` or ``int``
may override comparison, hashing or conversion, and text with a lone surrogate has no UTF-8 form. So
each value is copied to the built-in type here, in the caller's own call, and framing on the writer's
thread cannot fail because of it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from walstore.core.format.packed import MOST_TIMESTAMP_US
from walstore.errors import InvalidSettingsError
from walstore.records import to_timestamp_us

MAX_TIMESTAMP_US: Final = MOST_TIMESTAMP_US
"""Latest time of a record, in microseconds since 1970 UTC."""
_URL: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://|(?i:s3[an]?|gs|gcs|abfss?|az|https?|file|memory):/"
)
_S = TypeVar("_S")
_NO_DIRECTORY: Final = (
    "{call} takes a directory on this machine, not the URL {text!r}. A log in object storage is read with "
    "uploader.CloudLog.open(url) and written with uploader.CloudWriter.open(url); a local log is shipped "
    "there with Wal.open(directory, tier=uploader.CloudTier(url))"
)


def as_text(value: object, what: str) -> str:
    """Return ``value`` as a plain str that UTF-8 can encode; TypeError or ValueError naming ``what``."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must not contain lone surrogates, which have no UTF-8 form: {text!r} has one at "
            f"character {error.start}"
        ) from None
    return text


def as_texts(values: object, what: str) -> tuple[str, ...]:
    """Return several texts; TypeError naming ``what`` for a single one, whose letters nobody means."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list of str, such as ['a', 'b'], not {values!r:.80}")
    return tuple(as_text(value, what) for value in values)


def as_token(value: object) -> str:
    """Return a token as a plain str that UTF-8 can encode; TypeError or InvalidSettingsError, without it."""
    if not isinstance(value, str):
        raise TypeError(f"a token must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        text = "a token must not contain lone surrogates, which have no UTF-8 form"
        raise InvalidSettingsError(text) from None
    return str.__str__(value)


def as_bytes(value: object, what: str) -> bytes:
    """Return ``value`` as plain immutable bytes; TypeError naming ``what`` if it is not bytes-like."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(memoryview(value))
    raise TypeError(f"{what} must be bytes, not {type(value).__name__}; encode it first")


def as_bool(value: object, what: str) -> bool:
    """Return ``value`` if it is True or False; TypeError naming ``what`` for anything else, also for 1."""
    if isinstance(value, bool):
        return value
    raise TypeError(f"{what} must be True or False, not {type(value).__name__}")


def as_int(value: object, what: str) -> int:
    """Return ``value`` as a plain int; TypeError naming ``what`` for anything else, also for a bool."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    return int.__index__(value)


def as_count(value: object, what: str, *, low: int = 1, high: int | None = None) -> int:
    """Return ``value`` as a plain int; TypeError as :func:`as_int`, InvalidSettingsError if out of range."""
    count = as_int(value, what)
    if count < low or (high is not None and count > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise InvalidSettingsError(f"{what} must be {bounds}, not {_shown(count)}")
    return count


def as_settings(value: _S | None, kind: type[_S], what: str = "settings") -> _S:
    """Return a settings object of class ``kind``, the default one for None; TypeError otherwise."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {kind.__name__} or None, not {type(value).__name__}")
    return value


def as_seconds(value: object, what: str) -> float:
    """Return ``value`` as a finite plain number; TypeError or InvalidSettingsError naming ``what``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    try:
        seconds = float.__float__(value) if isinstance(value, float) else float(as_int(value, what))
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise InvalidSettingsError(
            f"{what} must be a finite number of seconds, not {_shown(value)}"
        )
    return seconds


def as_moment_us(value: int | datetime, what: str = "a time") -> int:
    """Return a time as microseconds since 1970 UTC; an int is returned as it is, a datetime must be
    aware."""
    if type(value) is int:
        return value
    if isinstance(value, datetime):
        return to_timestamp_us(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{what} must be an aware datetime or an int of microseconds since 1970 UTC, "
            f"not {type(value).__name__}"
        )
    return int.__index__(value)


def as_mapping(value: object, what: str) -> Mapping[object, object]:
    """Return ``value`` if it is a mapping; TypeError naming ``what`` and its parts if not."""
    if isinstance(value, Mapping):
        return value
    raise TypeError(f"{what}, not {type(value).__name__}")


def as_directory(path: object, call: str) -> Path:
    """Return the directory given by a caller of ``call``.

    TypeError unless it is a str or a path of str. InvalidSettingsError for the empty name; for a URL,
    which would become a directory of that name; and for a leading ``~``, which is not expanded here: no
    other call on files expands it, so the two would mean different places.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{call} takes a str or a path, not {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{call} takes a str or a path of str, not of {type(text).__name__}")
    text = str.__str__(text)
    if not text:
        raise InvalidSettingsError(f"{call} needs a directory; '.' is the current one, '' is none")
    if _URL.match(text):
        hint = ". For a local directory leave out 'file://'" if text[:5].lower() == "file:" else ""
        raise InvalidSettingsError(_NO_DIRECTORY.format(call=call, text=text) + hint)
    if text.startswith("~"):
        raise InvalidSettingsError(
            f"{call} does not expand {text!r}: pass os.path.expanduser(path), or an absolute path if the "
            "name really begins with '~'"
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidSettingsError(f"{call}: no file can have the name {text!r}") from None
    if "\0" in text:
        raise InvalidSettingsError(f"{call}: a path has no NUL character, unlike {text!r}")
    return Path(text)


def _shown(value: float) -> str:
    """Return a number for a message; Python refuses to print very long ones."""
    if isinstance(value, int) and abs(value) >= 10**100:
        return "a number of more than 100 digits"
    return repr(value)


class TimestampCheck:
    """Checks the times that callers give their records: at most so far from now."""

    def __init__(self, now_us: Callable[[], int], lead_seconds: float) -> None:
        self._now_us = now_us
        self._lead_us = int(lead_seconds * 1e6)

    def __call__(self, moment: int | datetime) -> int:
        """Return a checked time, as :func:`as_moment_us`; TypeError or ValueError."""
        timestamp_us = as_moment_us(moment, "timestamp_us")
        latest = min(self._now_us() + self._lead_us, MAX_TIMESTAMP_US)
        if not 0 <= timestamp_us <= latest:
            raise ValueError(
                f"timestamp_us {timestamp_us} is not between 0 and {latest}, which is "
                "max_timestamp_lead_seconds from now; is it in microseconds?"
            )
        return timestamp_us
