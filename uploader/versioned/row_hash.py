"""The hash of a row: the same on every machine and in every version of the schema. Pure.

A null contributes nothing, and the hash of a value does not depend on the width of its type. The hashes are
stored, so they never change: of texts and bytes BLAKE2b with 8 bytes, of all others their bits, spread and
added up.
"""

from __future__ import annotations

import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

_U64: Final = pa.uint64()
_NOTHING: Final = pa.scalar(0, _U64)
_INCREMENT: Final = pa.scalar(0x9E3779B97F4A7C15, _U64)
_STEPS: Final = tuple(
    (pa.scalar(shift, _U64), pa.scalar(factor, _U64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
)
_LAST_SHIFT: Final = pa.scalar(31, _U64)
MIXED_ROWS: Final = 1 << 15
"""Rows that are mixed at once: what they take fits into the processor's cache."""
ENCODED_ROWS: Final = 1 << 18
"""Texts of which each different one is hashed once."""


def hash_rows(columns: dict[str, pa.Array], rows: int, removed: pa.Array | None) -> pa.Array:
    """Return the hash of each of ``rows`` rows; of a removal, that of its key and the fact.

    Many rows are hashed on as many threads as Arrow uses.
    """
    named = [(_number_of(name.encode()), column) for name, column in columns.items()]
    if removed is not None and not pc.any(removed).as_py():
        removed = None

    def part(start: int) -> pa.Array:
        count = min(ENCODED_ROWS, rows - start)
        inputs = [(seed, column.slice(start, count)) for seed, column in named]
        return _hash_some(inputs, count, None if removed is None else removed.slice(start, count))

    starts = range(0, rows, ENCODED_ROWS)
    if len(starts) <= 1:
        return part(0)
    with ThreadPoolExecutor(min(pa.cpu_count(), len(starts)), "walstore-hash") as threads:
        return pa.concat_arrays(list(threads.map(part, starts)))


def _hash_some(
    columns: list[tuple[pa.Scalar, pa.Array]], rows: int, removed: pa.Array | None
) -> pa.Array:
    inputs = [
        (seed, _to_u64(column), pc.is_valid(column) if column.null_count else None)
        for seed, column in columns
    ]
    fact = _number_of(b"_deleted")
    parts = []
    for start in range(0, rows, MIXED_ROWS):
        total = pa.repeat(_NOTHING, min(MIXED_ROWS, rows - start))
        for seed, numbers, valid in inputs:
            mixed = _mix(pc.bit_wise_xor(_mix(numbers.slice(start, MIXED_ROWS)), seed))
            if valid is not None:
                mixed = pc.if_else(valid.slice(start, MIXED_ROWS), mixed, _NOTHING)
            total = pc.add(total, mixed)
        if removed is not None:
            is_removed = removed.slice(start, MIXED_ROWS)
            total = pc.add(total, pc.if_else(is_removed, fact, _NOTHING))
        parts.append(_mix(total))
    return pa.concat_arrays(parts) if parts else pa.array([], _U64)


def _mix(values: pa.Array) -> pa.Array:
    """Spread each number over 64 bits: the output function of splitmix64 (Steele, Lea, Flood 2014)."""
    values = pc.add(values, _INCREMENT)
    for shift, factor in _STEPS:
        values = pc.multiply(_xor(values, pc.shift_right(values, shift)), factor)
    return _xor(values, pc.shift_right(values, _LAST_SHIFT))


def _xor(one: pa.Array, other: pa.Array) -> pa.Array:
    """Return the exclusive or of numbers without nulls: as flags, of which Arrow takes a word at a time."""
    found = pc.xor(_flags(one), _flags(other))
    return pa.Array.from_buffers(
        _U64, len(one), [None, found.buffers()[1]], offset=found.offset // 64
    )


def _flags(numbers: pa.Array) -> pa.Array:
    """Return the bits of numbers."""
    return pa.Array.from_buffers(
        pa.bool_(),
        64 * len(numbers),
        [None, numbers.buffers()[1]],
        offset=64 * numbers.offset,
    )


def _to_u64(column: pa.Array) -> pa.Array:
    """Return a number for each value, the same for equal values of a wider type; any number for nulls."""
    kind = column.type
    if kinds.is_floating(kind):
        return _filled(pc.cast(column, pa.float64()).view(_U64))
    if kinds.is_boolean(kind):
        return _filled(pc.cast(column, _U64))
    if kinds.is_integer(kind):
        whole = column if kinds.is_uint64(kind) else pc.cast(column, pa.int64())
        return _filled(whole.view(_U64))
    if kinds.is_temporal(kind):
        narrow = kinds.is_date32(kind) or kinds.is_time32(kind)
        whole = pc.cast(column, pa.int32()) if narrow else column
        return _filled(pc.cast(whole, pa.int64()).view(_U64))
    if kinds.is_decimal(kind):
        column = pc.cast(column, pa.string())
    is_large = kinds.is_large_string(kind) or kinds.is_large_binary(kind)
    return _hash_values(pc.cast(column, pa.large_binary() if is_large else pa.binary()))


def _hash_values(values: pa.Array) -> pa.Array:
    """Return the hashes of byte strings, each different one hashed once."""
    found = values.dictionary_encode()
    empty = blake2b(digest_size=8)
    digests = bytearray()
    # A copy of an empty state takes half the time of a new one.
    for value in found.dictionary.to_pylist():
        state = empty.copy()
        state.update(value)
        digests += state.digest()
    distinct = pa.Array.from_buffers(_U64, len(found.dictionary), [None, _numbers(digests)])
    return _filled(distinct.take(found.indices))


def _numbers(digests: bytearray) -> pa.Buffer:
    """Return digests as numbers of this machine: each digest is one in little-endian order."""
    numbers = array("Q", digests)
    if sys.byteorder == "big":
        numbers.byteswap()
    return pa.py_buffer(numbers)


def _number_of(text: bytes) -> pa.Scalar:
    return _hash_values(pa.array([text], pa.binary()))[0]


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, _NOTHING) if column.null_count else column
