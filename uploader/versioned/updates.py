"""Updates as Arrow tables: what callers give, what is stored, and what they add up to. Pure.

A stored table has the columns of ``CollectionSchema.stored`` and is sorted by ``CollectionSchema.order``,
then by time. Of one key, later updates come after earlier ones. That also holds for tables of one
collection behind each other, in the order of their intervals, whatever ``since`` their times were advanced
to.

``_h`` is the hash of the row, see ``row_hash``. Other programs need not know how it is made. They keep it,
and check :func:`digest`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from uploader.versioned.row_hash import hash_rows
from uploader.versioned.schema import (
    DELETED,
    DIFF,
    HASH,
    TIME,
    CollectionSchema,
    is_wider,
    parquet_type,
)
from uploader.versioned.values import cast
from walstore.errors import CorruptionError, InvalidSettingsError, LimitExceededError

_MODULUS: Final = 1 << 64
_INDEX: Final = "_i"
_U64: Final = pa.uint64()
_SAMPLE_ROWS: Final = 4096
_SAFE_SUM: Final = 2.0**62


def conform(
    table: pa.Table | pa.RecordBatch, schema: CollectionSchema, *, lower: int, upper: int
) -> pa.Table:
    """Return a caller's updates as a stored table, consolidated and sorted.

    ``_t`` is ``lower`` if it is missing, ``_d`` 1, ``_deleted`` false, and a nullable column null. Of two
    rows with the same key and time in an ``upsert`` collection the last one counts.

    InvalidSettingsError for columns that the schema does not have, missing or null values where there must be
    one, values that do not fit, and times outside ``[lower, upper)``. TypeError for anything but a table.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise TypeError(
            f"updates must be a pyarrow Table or RecordBatch, not {type(table).__name__}"
        )
    _check_columns(table, schema)
    columns = {field.name: _column(table, field) for field in schema.columns}
    times = _own(table, TIME, _U64, default=lower)
    if table.num_rows:
        least, most = pc.min_max(times).values()
        if least.as_py() < lower or most.as_py() >= upper:
            raise InvalidSettingsError(
                f"{TIME} must be in [{lower}, {upper}), not {least.as_py()} to {most.as_py()}"
            )
    if schema.kind == "diff":
        effect = _own(table, DIFF, pa.int64(), default=1)
        removed = None
    else:
        effect = _own(table, DELETED, pa.bool_(), default=False)
        removed = effect if pc.any(effect).as_py() else None
    if removed is not None:
        columns = {
            name: column
            if name in schema.key
            else pc.if_else(removed, pa.scalar(None, column.type), column)
            for name, column in columns.items()
        }
    _check_nulls(columns, schema, removed)
    hashed = hash_rows(columns, table.num_rows, removed)
    rows = pa.Table.from_arrays([*columns.values(), times, effect, hashed], schema=schema.stored)
    try:
        return _consolidated(rows, schema)
    except LimitExceededError as error:
        raise InvalidSettingsError(f"{error}; nothing was written") from None


def _check_columns(table: pa.Table, schema: CollectionSchema) -> None:
    known = {*schema.columns.names, TIME, schema.effect}
    names = table.column_names
    for name in names:
        if name not in known:
            raise InvalidSettingsError(
                f"the collection has no column {name!r}; add it with evolve(), or leave it out"
            )
        if names.count(name) > 1:
            raise InvalidSettingsError(f"the updates have the column {name!r} twice")
    for field in schema.columns:
        if field.name in names or field.nullable:
            continue
        if schema.kind == "diff" or field.name in schema.key or DELETED not in names:
            raise InvalidSettingsError(f"the updates have no column {field.name!r}")


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    """Return a column in the collection's type, floats in their one form for each value."""
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    found = cast(_whole(table.column(field.name)), field.type, field.name)
    if not kinds.is_floating(field.type):
        return check_storable(found, field)
    found = pc.add(found, pa.scalar(0.0, field.type))  # no negative zero
    return pc.if_else(pc.is_nan(found), pa.scalar(math.nan, field.type), found)


def check_storable(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column; InvalidSettingsError if its type or Parquet has no place for one of its values."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidSettingsError(
            f"the column {field.name!r} has values that are no {field.type}: {error}"
        ) from None
    stored = parquet_type(field.type)
    if stored.equals(field.type):
        return column
    try:
        is_exact = pc.cast(pc.cast(column, stored), field.type).equals(column)
    except pa.ArrowInvalid:
        is_exact = False
    if not is_exact:
        raise InvalidSettingsError(
            f"the column {field.name!r} has values of {field.type} that {stored} does not hold: "
            "dates are whole days, and files have no seconds but milliseconds"
        )
    return column


def _own(table: pa.Table, name: str, kind: pa.DataType, *, default: int | bool) -> pa.Array:
    if name not in table.column_names:
        return pa.repeat(pa.scalar(default, kind), table.num_rows)
    found = cast(_whole(table.column(name)), kind, name)
    if found.null_count:
        raise InvalidSettingsError(f"the column {name!r} must not be null")
    return found


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, also an empty one."""
    if column.num_chunks == 1:
        return column.chunk(0)  # combine_chunks() would copy it
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
    return found


def _check_nulls(
    columns: dict[str, pa.Array], schema: CollectionSchema, removed: pa.Array | None
) -> None:
    for field in schema.columns:
        column = columns[field.name]
        if field.name in schema.key and schema.kind == "upsert":
            is_null = column.null_count > 0
        elif field.nullable:
            continue
        elif removed is None:
            is_null = column.null_count > 0
        else:
            is_null = bool(pc.any(pc.and_(pc.is_null(column), pc.invert(removed))).as_py())
        if is_null:
            raise InvalidSettingsError(f"the column {field.name!r} must not be null")


def digest(table: pa.Table) -> int:
    """Return the sum of the rows' hashes modulo 2**64; each times its ``_d`` in a ``diff`` collection.

    In a ``diff`` collection neither consolidation nor the advancing of times changes it.
    """
    total = pc.sum(_weighted_hashes(table)).as_py()
    return int(total or 0) % _MODULUS


def digests(table: pa.Table, limits: pa.Array) -> list[int]:
    """Return the :func:`digest` of each part of a table; ``limits`` has where each begins, and the end."""
    reached = pc.cumulative_sum(_weighted_hashes(table)).combine_chunks()  # modulo 2**64
    sums = pa.concat_arrays([pa.array([0], _U64), reached]).take(limits)
    found: list[int] = pc.subtract(sums[1:], sums[:-1]).to_pylist()
    return found


def _weighted_hashes(table: pa.Table) -> pa.ChunkedArray:
    hashes = table.column(HASH)
    if DIFF in table.column_names:
        hashes = pc.multiply(hashes, table.column(DIFF).combine_chunks().view(_U64))
    return hashes


def consolidate(
    tables: Sequence[pa.Table], schema: CollectionSchema, *, since: int, is_oldest: bool
) -> pa.Table:
    """Return the updates of stored tables as one, with the times up to ``since`` advanced to it.

    ``diff``: the counts of equal rows at one time are added up, and rows without a count vanish.
    ``upsert``: of the updates of a key at one time the last one stays, which after the advancing is one for
    all times up to ``since``; if ``is_oldest``, removals up to ``since`` vanish: there is nothing before
    that they remove.

    CorruptionError if the digest of a ``diff`` collection would change, LimitExceededError if a count is
    more than 64 bits hold.
    """
    table = pa.concat_tables([schema.stored.empty_table(), *tables])
    before = digest(table)
    advanced = pc.max_element_wise(table.column(TIME), pa.scalar(since, _U64))
    table = _replaced(table, TIME, advanced)
    table = _consolidated(table, schema)
    if schema.kind == "diff":
        if digest(table) != before:
            raise CorruptionError(
                "the digest of the updates changed in a compaction",
                path="a merged batch",
                expected=before,
                found=digest(table),
            )
    elif is_oldest:
        gone = pc.and_(
            table.column(DELETED), pc.less_equal(table.column(TIME), pa.scalar(since, _U64))
        )
        table = _filtered(table, pc.invert(gone))
    return table


def between(table: pa.Table, start: int, limit: int) -> pa.Table:
    """Return the updates at times ``t`` with ``start <= t < limit``."""
    if not table.num_rows:
        return table
    times = table.column(TIME)
    least, most = (bound.as_py() for bound in pc.min_max(times).values())
    if start <= least and most < limit:
        return table
    later = pc.greater_equal(times, pa.scalar(start, _U64))
    return table.filter(pc.and_(later, pc.less(times, pa.scalar(limit, _U64))))


def are_equal(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two stored tables of one schema have the same updates; NaN equals itself."""
    return bool(_bits(one).equals(_bits(other)))


def _bits(table: pa.Table) -> pa.Table:
    """Return a table with the bits of its floats, which have one form for each value."""
    for index, field in enumerate(table.schema):
        if kinds.is_floating(field.type):
            kind = pa.uint32() if kinds.is_float32(field.type) else _U64
            bits = [chunk.view(kind) for chunk in table.column(index).chunks]
            table = table.set_column(index, field.name, pa.chunked_array(bits, kind))
    return table


def upgrade(table: pa.Table, schema: CollectionSchema, *, path: str) -> pa.Table:
    """Return a stored table of an older schema in this one; the columns that it does not have are null.

    CorruptionError naming ``path`` if it is not of an older schema.
    """
    stored = schema.stored
    if table.schema.equals(stored):
        return table
    unknown = [name for name in table.column_names if name not in stored.names]
    missing = [field.name for field in stored if field.name not in table.column_names]
    narrower = [
        name
        for name in table.column_names
        if name not in unknown and not _fits(table.schema.field(name).type, stored.field(name).type)
    ]
    if unknown or narrower or any(not stored.field(name).nullable for name in missing):
        raise CorruptionError(
            "a batch has other columns than its collection",
            path=path,
            expected=str(stored),
            found=str(table.schema),
        )
    try:
        columns = [
            pa.nulls(table.num_rows, field.type)
            if field.name in missing
            else pc.cast(table.column(field.name), field.type)
            for field in stored
        ]
        found = pa.Table.from_arrays(columns, schema=stored)
        found.validate()
        if any(not field.nullable and found.column(field.name).null_count for field in stored):
            raise CorruptionError("a batch has nulls in a column without nulls", path=path)
    except pa.ArrowException as error:
        raise CorruptionError(
            f"a batch has columns of other types than its collection ({error})", path=path
        ) from error
    return found


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column of a batch can be one of its collection."""
    return is_wider(found, wanted) or found.equals(parquet_type(wanted))


def snapshot(tables: Sequence[pa.Table], schema: CollectionSchema, *, as_of: int) -> pa.Table:
    """Return the content at ``as_of`` that stored tables add up to, sorted by key.

    ``diff``: the columns and the count ``_d``. ``upsert``: the columns of the live keys.
    """
    table = between(pa.concat_tables([schema.stored.empty_table(), *tables]), 0, as_of + 1)
    table = _consolidated(table.drop_columns([TIME, HASH]), schema)
    if schema.kind == "diff":
        return table
    live = _filtered(table.select(schema.columns.names), pc.invert(table.column(DELETED)))
    return pa.Table.from_arrays(live.columns, schema=schema.columns)


def content_columns(schema: CollectionSchema) -> pa.Schema:
    """Return the columns of :func:`snapshot`."""
    return (
        schema.columns
        if schema.kind == "upsert"
        else schema.columns.append(schema.updates.field(DIFF))
    )


def as_updates(content: pa.Table, schema: CollectionSchema, *, at: int) -> pa.Table:
    """Return a snapshot as updates at one time, as callers see them."""
    rows = content.num_rows
    effect = (
        content.column(DIFF)
        if schema.kind == "diff"
        else pa.repeat(pa.scalar(value=False, type=pa.bool_()), rows)
    )
    columns = [content.column(name) for name in schema.columns.names]
    times = pa.repeat(pa.scalar(at, _U64), rows)
    return pa.Table.from_arrays([*columns, times, effect], schema=_visible(schema))


def in_time_order(tables: Sequence[pa.Table], schema: CollectionSchema, *, start: int) -> pa.Table:
    """Return the updates from ``start`` on, as callers see them, sorted by time and then by key."""
    table = pa.concat_tables(
        [schema.stored.empty_table(), *(between(one, start, _MODULUS - 1) for one in tables)]
    )
    ordered = table.drop_columns([HASH]).take(_sorted(table, [TIME, *schema.order]))
    return ordered.cast(_visible(schema))


def _visible(schema: CollectionSchema) -> pa.Schema:
    """Return the columns of updates that callers see; what a removal leaves out may be null."""
    return pa.schema([field for field in schema.stored if field.name != HASH])


def _consolidated(table: pa.Table, schema: CollectionSchema) -> pa.Table:
    """Add up, or keep the last of, the updates of one row or key at one time; sort.

    A table without times has those of one time; one without hashes stays without them.
    """
    by = _order(table, schema)
    tied = _ties(table, by)
    if (
        tied is None
        or pc.any(tied).as_py()
        or (schema.kind == "diff" and pc.any(pc.equal(table.column(DIFF), 0)).as_py())
    ):
        add_up = _added_up if schema.kind == "diff" else _last_of_each
        table = add_up(table, by, None if tied is None else _ends(tied))
    return table


def _order(table: pa.Table, schema: CollectionSchema) -> list[str]:
    return [name for name in (*schema.order, TIME) if name in table.column_names]


def _ties(table: pa.Table, by: Sequence[str]) -> pa.ChunkedArray | None:
    """Return for each row but the last whether it equals the next one in these columns; None if unsorted.

    To compare each row with the next one takes far less than to sort or to group. None where it is not easy
    to tell, as of NaN. Nulls come last, and are equal to each other.
    """
    tied = pa.chunked_array([pa.repeat(pa.scalar(value=True), max(table.num_rows - 1, 0))])
    for name in by:
        column = table.column(name)
        this, following = column[:-1], column[1:]
        try:
            equal = _are_equal(this, following)
            differ = pc.and_not(tied, equal)
            # Texts take far longer than numbers, and few columns differ where those before them do not.
            if (
                pc.any(differ).as_py()
                and pc.any(pc.and_not(differ, _less(this, following))).as_py()
            ):
                return None
        except pa.ArrowNotImplementedError:
            return None
        tied = pc.and_(tied, equal)
        if not pc.any(tied).as_py():
            break
    return tied


def _are_equal(this: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each pair of values whether they are equal; nulls are equal to each other."""
    equal = pc.equal(this, other)
    if not this.null_count and not other.null_count:
        return equal
    both = pc.and_(pc.is_null(this), pc.is_null(other))
    return pc.or_(pc.fill_null(equal, fill_value=False), both)


def _less(this: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each pair of values whether the first one is less; null is the greatest."""
    less = pc.less(this, other)
    if not this.null_count and not other.null_count:
        return less
    before_null = pc.and_not(pc.is_null(other), pc.is_null(this))
    return pc.or_(pc.fill_null(less, fill_value=False), before_null)


def _added_up(table: pa.Table, by: Sequence[str], is_last: pa.ChunkedArray | None) -> pa.Table:
    """Return the sum of each row's counts at each time, sorted, without those that are 0.

    ``is_last``: of sorted updates, whether the next one is of another row or time.

    LimitExceededError if one is more than 64 bits hold; sums on the way there may be.
    """
    counts = pc.cast(table.column(DIFF), pa.float64(), safe=False)
    is_large = (pc.sum(pc.abs(counts)).as_py() or 0.0) >= _SAFE_SUM
    if is_last is None:
        if not is_large and _repeats(table, by):
            others = [name for name in table.column_names if name != DIFF]
            sums = table.group_by(others).aggregate([(DIFF, "sum")])
            sums = sums.rename_columns([*others, DIFF])
            table = sums.select(table.column_names).cast(table.schema)
        table = table.take(_sorted(table, by))
        is_last = _ends_of_runs(table.select(by))
    if table.num_rows:
        if is_large:
            _check_sums(table, is_last)
        counts = _sums_of_runs(table.column(DIFF), is_last)
        table = _replaced(table.filter(is_last), DIFF, counts)
    return _filtered(table, pc.not_equal(table.column(DIFF), pa.scalar(0, pa.int64())))


def _check_sums(table: pa.Table, is_last: pa.ChunkedArray) -> None:
    """LimitExceededError if a row's counts add up to more than 64 bits hold."""
    halves = [
        _sums_of_runs(half, is_last)
        for half in (
            pc.shift_right(table.column(DIFF), 32),
            pc.bit_wise_and(table.column(DIFF), 0xFFFFFFFF),
        )
    ]
    high = pc.add(halves[0], pc.shift_right(halves[1], 32))
    least, most = (bound.as_py() for bound in pc.min_max(high).values())
    if least < -(1 << 31) or most >= 1 << 31:
        raise LimitExceededError(
            f"the counts in {DIFF} of a row add up to more than 64 bits hold; what is stored is whole, and "
            "can be read again once updates with the opposite count are appended",
            limit=(1 << 63) - 1,
        )


def _sums_of_runs(numbers: pa.ChunkedArray, is_last: pa.ChunkedArray) -> pa.Array:
    """Return the sum of each run, modulo 2**64: sums and differences wrap around."""
    reached = pc.cumulative_sum(numbers).filter(is_last).combine_chunks()
    return pc.subtract(reached, pa.concat_arrays([pa.array([0], pa.int64()), reached[:-1]]))


def _last_of_each(table: pa.Table, by: Sequence[str], is_last: pa.ChunkedArray | None) -> pa.Table:
    """Return the last update of each key at each time, sorted: sorting leaves equal ones in their order.

    ``is_last``: of sorted updates, whether the next one is of another key or time.
    """
    if is_last is None:
        if _repeats(table, by):
            numbered = table.select(by).append_column(_INDEX, _numbers(table.num_rows))
            last = numbered.group_by(by).aggregate([(_INDEX, "max")])
            table = table.take(last.column(f"{_INDEX}_max").combine_chunks())
        table = table.take(_sorted(table, by))
        is_last = _ends_of_runs(table.select(by))
    return _filtered(table, is_last) if table.num_rows else table


def _repeats(table: pa.Table, by: Sequence[str]) -> bool:
    """Return whether most rows of a sample are equal to others: then to group is far faster than to sort."""
    if table.num_rows <= _SAMPLE_ROWS:
        return False
    places = pc.multiply(_numbers(_SAMPLE_ROWS), pa.scalar(table.num_rows // _SAMPLE_ROWS))
    sample = table.select(by).take(places)
    return bool(sample.group_by(by).aggregate([]).num_rows < _SAMPLE_ROWS // 2)


def _ends_of_runs(table: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether the next one differs; true for the last. Nulls are equal to each other."""
    is_same: pa.ChunkedArray = pa.chunked_array(
        [pa.repeat(pa.scalar(value=True), max(table.num_rows - 1, 0))]
    )
    for column in _bits(table).columns:
        is_same = pc.and_(is_same, _are_equal(column[:-1], column[1:]))
    return _ends(is_same)


def _ends(tied: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each row whether the next one differs; true for the last."""
    return pa.chunked_array([*pc.invert(tied).chunks, pa.array([True])])


def _numbers(count: int) -> pa.Array:
    """Return 0 to ``count - 1``."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int64()))


def _sorted(table: pa.Table, by: Sequence[str]) -> pa.Array:
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by])


def _filtered(table: pa.Table, stays: pa.ChunkedArray) -> pa.Table:
    """Return the rows that stay; without a copy if all do."""
    return table if pc.all(stays).as_py() else table.filter(stays)


def _replaced(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), column)
