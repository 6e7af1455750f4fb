"""JsonText: where the values in a JSON text end. Pure.

What is long is looked at in short steps, so that a thread that does it lets the event loop run: one call of
the ``json`` module's decoder keeps all other threads waiting for seconds if a value has millions of parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from walstore.http.protocol import RefusedError

SHORT_CHARS: Final = 8192
"""Up to this length a text is decoded by one call, unless it is deep."""
MOST_PARTS: Final = 1_000_000
"""Arrays and objects of a long text."""
_MOST_DEPTH: Final = 1000
"""Of arrays and objects in each other."""
_BLANK: Final = r"[ \t\r\n]*+"
_SPACE: Final = re.compile(_BLANK)
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_WORDS: Final = "true|false|null"
_SCALAR: Final = re.compile(f"{_NUMBER}|{_WORDS}")
# A part of a string, of a few hundred thousand characters at most.
_ESCAPE: Final = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_STRING_PART: Final = re.compile(rf'(?:[^"\\\x00-\x1f]{{1,4096}}+|{_ESCAPE}){{1,100}}+')
# Many short members at once: most of a long array or object.
_SHORT: Final = rf'"[^"\\\x00-\x1f]{{0,200}}+(?:{_ESCAPE}[^"\\\x00-\x1f]{{0,50}}+){{0,8}}+"'
_FEW: Final = f"(?:{_SHORT}|{_NUMBER}|{_WORDS})"
_COMMA: Final = f"{_BLANK},{_BLANK}"
_ELEMENTS: Final = re.compile(f"(?:{_FEW}{_COMMA}){{1,200}}+")
_MEMBERS: Final = re.compile(f"(?:{_SHORT}{_BLANK}:{_BLANK}{_FEW}{_COMMA}){{1,100}}+")
_ENDS: Final = {"[": "]", "{": "}"}


def _array(item: str, most: int) -> str:
    return rf"\[{_BLANK}(?:{item}(?:{_COMMA}{item}){{0,{most}}}+)?+{_BLANK}\]"


def _object(item: str, most: int) -> str:
    member = f"{_SHORT}{_BLANK}:{_BLANK}{item}"
    return rf"\{{{_BLANK}(?:{member}(?:{_COMMA}{member}){{0,{most}}}+)?+{_BLANK}\}}"


_INNER: Final = f"(?:{_FEW}|{_array(_FEW, 10)}|{_object(_FEW, 10)})"
# A whole element that is short and flat enough, and the comma behind it: nearly all of them. It has 460 KB at
# most without its blanks, which take some milliseconds.
_ELEMENT: Final = re.compile(
    f"({_FEW}|{_object(_INNER, 30)}|{_array(_INNER, 30)}){_BLANK}(,{_BLANK})?+"
)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers are not converted: their digits are kept as they came, however many there are.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


class JsonText:
    """A text that is taken apart from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        # The json module's own limit on depth is another one on each version of Python.
        may_be_deep = text.count("[") + text.count("{") > _MOST_DEPTH
        self._is_long = len(text) > SHORT_CHARS or may_be_deep
        self._parts = 0

    def after_space(self, at: int) -> int:
        """Return where the white space at a place ends."""
        found = _SPACE.match(self.text, at)
        return at if found is None else found.end()

    def elements(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield where each element of the array that begins at a place begins and ends.

        Returns once the text has ended behind it. Raises as :meth:`value_end`.
        """
        text = self.text
        at = self.after_space(at + 1)
        has_more = not text.startswith("]", at)
        while has_more:
            if found := _ELEMENT.match(text, at):
                yield found.span(1)
                at, has_more = found.end(), bool(found[2])
            else:
                end = self.value_end(at)
                yield at, end
                at = self.after_space(end)
                if has_more := text.startswith(",", at):
                    at = self.after_space(at + 1)
        if not text.startswith("]", at) or self.after_space(at + 1) != len(text):
            raise ValueError(f"the array does not end at byte {at}")

    def value_end(self, at: int) -> int:
        """Return where the value at a place ends. ValueError or RecursionError if there is no whole one.

        RefusedError if the values so far have too many parts.
        """
        if self._is_long:
            return self._long_value_end(at)
        found: tuple[Any, int] = _DECODER.raw_decode(self.text, at)
        return found[1]

    def _long_value_end(self, at: int) -> int:
        """Go through a value with a stack of the ends that are awaited."""
        text = self.text
        awaited: list[str] = []
        while True:
            letter = text[at : at + 1]
            if letter in _ENDS:
                awaited.append(_ENDS[letter])
                self._note_part(len(awaited))
                at = self.after_space(at + 1)
                if not text.startswith(awaited[-1], at):
                    at = self._next_value(at, awaited[-1])
                    continue
            else:
                at = self._plain_end(at)
            # A value has ended, or one that is empty is about to.
            while awaited:
                at = self.after_space(at)
                if text.startswith(",", at):
                    at = self._next_value(self.after_space(at + 1), awaited[-1])
                    break
                if not text.startswith(awaited[-1], at):
                    raise ValueError(f"',' or '{awaited[-1]}' is missing at byte {at}")
                awaited.pop()
                at += 1
            else:
                return at

    def _note_part(self, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise ValueError(f"more than {_MOST_DEPTH} arrays and objects in each other")
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise RefusedError(
                413, f"a JSON body has up to {MOST_PARTS} arrays and objects; send several bodies"
            )

    def _next_value(self, at: int, awaited: str) -> int:
        """Return where the next value in an array or object begins, after all short ones that are there."""
        text = self.text
        while found := (_ELEMENTS if awaited == "]" else _MEMBERS).match(text, at):
            at = found.end()
        if awaited == "]":
            return at
        if not text.startswith('"', at):
            raise ValueError(f"the name of a member is missing at byte {at}")
        at = self.after_space(self._string_end(at))
        if not text.startswith(":", at):
            raise ValueError(f"':' is missing at byte {at}")
        return self.after_space(at + 1)

    def _plain_end(self, at: int) -> int:
        if self.text.startswith('"', at):
            return self._string_end(at)
        found = _SCALAR.match(self.text, at)
        if found is None:
            raise ValueError(f"a value is missing at byte {at}")
        return found.end()

    def _string_end(self, begin: int) -> int:
        at = begin + 1
        while found := _STRING_PART.match(self.text, at):
            at = found.end()
        if not self.text.startswith('"', at):
            raise ValueError(f"the string at byte {begin} does not end, or not as it must")
        return at + 1
