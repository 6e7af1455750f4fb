"""What an append expects of registers, as values of msgpack. Pure."""

from __future__ import annotations

from typing import Any

from walstore.batches.conditions import Expected, NoneOf, OneOf, RegisterChoice
from walstore.wire.message import ProtocolViolationError


def pack_expected(expect: Expected | None) -> dict[str, Any] | None:
    """Return it with choices as lists: whether the values are excluded, and they."""
    if expect is None:
        return None
    return {
        name: [value.is_excluding, *value.values] if isinstance(value, RegisterChoice) else value
        for name, value in expect.items()
    }


def unpack_expected(packed: Any) -> Any:
    """Return what was packed; the log checks the rest. ProtocolViolationError, TypeError, ValueError."""
    if not isinstance(packed, dict):
        return packed
    return {name: _unpack(value) for name, value in packed.items()}


def _unpack(value: Any) -> Any:
    match value:
        case [bool(is_excluding), *values]:
            return NoneOf(*values) if is_excluding else OneOf(*values)
        case list():
            raise ProtocolViolationError("a choice of values that is none")
    return value
