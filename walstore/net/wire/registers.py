"""Registers and what an append expects of them, as values of msgpack. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from walstore.core.batches.conditions import (
    AppendConditions,
    Expected,
    NoneOf,
    OneOf,
    RegisterChoice,
    check_name,
    check_sequence,
    make_conditions,
)
from walstore.net.wire.message import ProtocolViolationError

_PART_BYTES: Final = 32 << 10
"""Of registers in one message, but for the last of them: an answer that is short in any case."""


def next_registers(rest: Iterator[tuple[str, str]]) -> tuple[dict[str, str], bool]:
    """Take as many registers as fit in one message, and return whether more may follow."""
    part: dict[str, str] = {}
    size_bytes = 0
    for name, value in rest:
        part[name] = value
        size_bytes += len(name.encode()) + len(value.encode())
        if size_bytes >= _PART_BYTES:
            return part, True
    return part, False


def short_registers(registers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the registers for an answer; None if they are too large for one that is short in any case."""
    found, has_more = next_registers(iter(registers.items()))
    return None if has_more else found


def pack_conditions(conditions: AppendConditions) -> list[Any]:
    """Return the conditions of a group or transaction. That a register is a fence does not travel."""
    return [
        conditions.expect_offset,
        _pack_expected(conditions.expect),
        conditions.update,
        conditions.producer,
        conditions.sequence,
        conditions.is_repeated,
    ]


def unpack_conditions(packed: object) -> AppendConditions:
    """Return what was packed, checked; ProtocolViolationError, TypeError, ValueError."""
    match packed:
        case [expect_offset, expect, update, producer, sequence, is_repeated]:
            pass
        case _:
            raise ProtocolViolationError("conditions that are none")
    conditions = make_conditions(expect_offset, _unpack_expected(expect), update)
    if producer is not None:
        conditions.producer = check_name(producer, "producer")
        conditions.is_repeated = is_repeated is True
        conditions.sequence = check_sequence(sequence, repeated=conditions.is_repeated)
    return conditions


def _pack_expected(expect: Expected | None) -> dict[str, Any] | None:
    """Return it with choices as lists: whether the values are excluded, and they."""
    if expect is None:
        return None
    return {
        name: [value.is_excluding, *value.values] if isinstance(value, RegisterChoice) else value
        for name, value in expect.items()
    }


def _unpack_expected(packed: Any) -> Any:
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
