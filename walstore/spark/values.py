"""Values of options: strings in, checked values out. Pure: no I/O, no Spark.

Option names are case-insensitive; Spark passes them in lower case. Every error names the option and its valid
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, overload

from walstore import InvalidSettingsError

STORE_PREFIX: Final = "store."


class Options:
    """The options of one read or write, checked against the known names."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        """Take the given options; InvalidSettingsError if one is not known.

        Those that begin with ``store.`` are always known; see :attr:`store`.
        """
        given = {name.lower(): value for name, value in options.items()}
        self.store = {
            name.removeprefix(STORE_PREFIX): given.pop(name)
            for name in sorted(given)
            if name.startswith(STORE_PREFIX)
        }
        """Parameters of the store's URL, by what follows the dot."""
        unknown = sorted(given.keys() - {name.lower() for name in known})
        if unknown:
            raise InvalidSettingsError(
                f"unknown option {', '.join(unknown)}; known are {', '.join(known)} and {STORE_PREFIX}*"
            )
        self._given = given

    def text(self, name: str) -> str | None:
        """Return the given text, or None."""
        return self._given.get(name.lower())

    @overload
    def number(self, name: str, *, low: int, default: int) -> int: ...

    @overload
    def number(self, name: str, *, low: int) -> int | None: ...

    def number(self, name: str, *, low: int, default: int | None = None) -> int | None:
        """Return a whole number of at least ``low``, or the default."""
        value = self.text(name)
        return default if value is None else number(name, value, low=low)

    def flag(self, name: str, *, yes: str = "true", no: str = "false", default: bool) -> bool:
        """Return whether the value is the first of two words."""
        return self.word(name, (yes, no), default=yes if default else no) == yes

    def word(self, name: str, words: Sequence[str], *, default: str) -> str:
        """Return one of some words, in any case."""
        value = self.text(name)
        word = default if value is None else value.strip().lower()
        if word not in words:
            raise InvalidSettingsError(f"{name} must be {' or '.join(words)}, not {value!r}")
        return word


def number(name: str, value: str, *, low: int) -> int:
    """Return a whole number of at least ``low``."""
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or int(text) < low:
        raise InvalidSettingsError(f"{name} must be a whole number from {low}, not {value!r}")
    return int(text)
