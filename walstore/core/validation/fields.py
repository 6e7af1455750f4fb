"""Fields of settings: the meaning, range and check of each field, declared once. Pure.

A settings class lists its fields as ``name: int = whole(default, "What it means.", low=1)``. Type checkers
see the plain type and a default; :func:`check_fields` checks the values, and :func:`described` adds the
fields to the class's docstring, where ``help()`` shows them.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from walstore.errors import InvalidSettingsError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
MOST_WHOLE: Final = (1 << 63) - 1
MOST_SECONDS: Final = 10**12
"""Maximum values of fields without a bound of their own: above them arithmetic fails elsewhere."""
CENTURY_SECONDS: Final = 100 * 365 * 86_400
"""Maximum time from now of values stored as dates: no date of a later century has to be shown."""
_MOST_SHOWN: Final = 10**1000  # Python refuses to print some longer numbers

_FRACTIONS: Final = ("seconds", "number")
_NO_NUMBERS: Final = ("flag", "object")
_NUMBERS: Final = {
    "bytes": "a whole number of bytes",
    "seconds": "a number of seconds",
    "number": "a number",
}

_T = TypeVar("_T")
_S = TypeVar("_S")
_C = TypeVar("_C", bound=type)


@dataclass(frozen=True, slots=True)
class Rule:
    """The meaning of a field, and its allowed values."""

    meaning: str
    kind: str
    """``"bytes"``, ``"seconds"``, ``"number"`` for another number that need not be whole, ``"flag"`` for
    True or False, ``"object"`` for one of the class :attr:`holds`, or ``""`` for a count."""
    low: float = 0
    high: float | None = None
    above: bool = False
    """Whether ``low`` itself is refused."""
    below: bool = False
    """Whether ``high`` itself is refused."""
    words: tuple[str, ...] = ()
    """Allowed words; with ``high`` None and no kind, the only allowed values."""
    optional: bool = False
    """Whether None is allowed."""
    holds: type | None = None
    """Class of the values, if they are objects, which check themselves."""

    def check(self, name: str, value: object) -> object:
        """Return a value in its plain type; InvalidSettingsError naming the field if it is not allowed."""
        if value is None and self.optional:
            return None
        if self.kind in _NO_NUMBERS:
            if isinstance(value, self.holds or bool):
                return value
        elif isinstance(value, str):
            word = str.__str__(value)
            if word in self.words:
                return word
        elif self._is_number(value):
            number = self._plain(value)
            if number is not None and self._is_inside(number):
                return number
        huge = isinstance(value, int) and abs(value) > _MOST_SHOWN
        shown = "a number of more than 1000 digits" if huge else repr(value)
        raise InvalidSettingsError(f"{name} must be {self.range}, not {shown}")

    @property
    def range(self) -> str:
        """The allowed values, for messages."""
        found = [repr(word) for word in self.words]
        if self.kind == "flag":
            found = ["True", "False"]
        elif self.holds is not None:
            found.append(f"an object of the class {self.holds.__name__}")
        elif not self.words or self.kind:
            found.append(self._number_range())
        if self.optional:
            found.append("None")
        *before, last = found
        if not before:
            return last
        comma = "," if self.kind and self.kind not in _NO_NUMBERS else ""
        return f"{', '.join(before)}{comma} or {last}"

    def _number_range(self) -> str:
        what = _NUMBERS.get(self.kind, "a whole number")
        low, high = show(self.low, self.kind), self.high
        if self.above:
            bounds = f"more than {low}"
            if high is not None:
                most = show(high, self.kind)
                bounds += f", less than {most}" if self.below else f", {most} at most"
        elif high is None:
            bounds = f"{low} or more"
        else:
            bounds = f"from {low} to {show(high, self.kind)}"
        return f"{what}, {bounds}"

    def _is_number(self, value: object) -> bool:
        if isinstance(value, bool) or (self.words and not self.kind):
            return False
        return isinstance(value, int | float if self.kind in _FRACTIONS else int)

    def _plain(self, value: Any) -> float | None:
        """Return a number in its built-in type; None if it is not finite."""
        if isinstance(value, int):
            return int.__index__(value)  # and 10**400 is not inside
        number = float.__float__(value)
        return number if math.isfinite(number) else None

    def _is_inside(self, number: float) -> bool:
        most = MOST_SECONDS if self.kind in _FRACTIONS else MOST_WHOLE
        high = most if self.high is None else self.high
        return (
            self.low <= number <= high
            and not (self.above and number == self.low)
            and not (self.below and number == high)
        )


def whole(default: int, meaning: str, *, low: int = 0, high: int | None = None) -> int:
    """Return the field of a whole number."""
    return _field(default, Rule(meaning, "", low, high))


def size(default: int, meaning: str, *, low: int = 0, high: int | None = None) -> int:
    """Return the field of a number of bytes."""
    return _field(default, Rule(meaning, "bytes", low, high))


def seconds(
    default: float,
    meaning: str,
    *,
    low: float = 0,
    high: float | None = None,
    above: bool = False,
) -> float:
    """Return the field of a time span; ``above`` refuses ``low`` itself."""
    return _field(default, Rule(meaning, "seconds", low, high, above=above))


def number(default: float, meaning: str, **bounds: Any) -> float:
    """Return the field of a finite number that need not be whole; bounds as of :class:`Rule`."""
    return _field(default, Rule(meaning, "number", **bounds))


def flag(meaning: str, *, default: bool) -> bool:
    """Return the field of True or False."""
    return _field(default, Rule(meaning, "flag"))


def nested(kind: type[_S], meaning: str) -> _S:
    """Return the field of an object of another settings class, by default with its defaults."""
    metadata = {"rule": Rule(meaning, "object", holds=kind)}
    found: _S = dataclasses.field(default_factory=kind, metadata=metadata)
    return found


def optional_seconds(meaning: str) -> float | None:
    """Return the field of a time span that is more than 0, or None, which is the default."""
    return _field(None, Rule(meaning, "seconds", above=True, optional=True))


def optional_size(meaning: str, *, low: int = 0) -> int | None:
    """Return the field of a number of bytes, or None, which is the default."""
    return _field(None, Rule(meaning, "bytes", low, optional=True))


def choice(default: Any, rule: Rule) -> Any:
    """Return a field with a rule of its own."""
    return _field(default, rule)


def check_fields(settings: Any) -> None:
    """Check every field that has a rule and store its value in its plain type; InvalidSettingsError."""
    for field in dataclasses.fields(settings):
        rule = rule_of(field)
        if rule is not None:
            value = rule.check(field.name, getattr(settings, field.name))
            object.__setattr__(settings, field.name, value)


def rule_of(field: dataclasses.Field[Any]) -> Rule | None:
    """Return the rule of a field of a settings class, if it has one."""
    rule: Rule | None = field.metadata.get("rule")
    return rule


def described(cls: _C) -> _C:
    """Add the fields to the docstring of a settings class."""
    lines = [inspect.getdoc(cls) or "", "", "Fields:"]
    for field in dataclasses.fields(cls):
        rule = rule_of(field)
        if rule is not None:
            facts = f"{rule.range}. Default: {default_of(field)}."
            facts = facts[0].upper() + facts[1:]
            lines += ["", f"{field.name}:", _wrapped(rule.meaning), _wrapped(facts)]
    cls.__doc__ = "\n".join(lines)
    return cls


def default_of(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field that has a rule, as text."""
    rule = rule_of(field)
    if rule is None or rule.holds is not None:
        return "its own defaults"
    return show(field.default, rule.kind)


def show(value: object, kind: str) -> str:
    """Return a value of a field as text: ``"64 MiB"``."""
    if kind == "bytes" and isinstance(value, int) and value:
        for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if not value % unit:
                return f"{value // unit} {name}"
    if isinstance(value, str):
        return repr(str.__str__(value))
    return str(value)


def _field(default: _T, rule: Rule) -> _T:
    found: _T = dataclasses.field(default=default, metadata={"rule": rule})
    return found


def _wrapped(text: str) -> str:
    text = " ".join(text.split())
    return textwrap.fill(text, 92, initial_indent="    ", subsequent_indent="    ")
