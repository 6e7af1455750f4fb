"""Fragments: one immutable object in, records out. Pure, but slow: for executor threads.

Owns what a fragment means: which records it contains, their setsum, and whether it is the one that its
manifest entry names. Readers get the first fault as an error; :func:`check_fragment` finds all of them.
``fragment_file.py`` describes how a fragment is stored, ``fragment_builder.py`` makes one.

The length in an entry determines how much to request, and reveals a torn object at once. It does not identify
the records: wal3's copy of a log keeps the entries and rewrites the objects, with other lengths. So an
object of another length is accepted if the hashes of all its records match the entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.findings import RESTORE, Finding, Severity, of_error
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_file
from uploader.fragments.fragment_builder import setsum_of_column
from uploader.fragments.fragment_file import Content
from walstore.core.batches.arrow import SCHEMA
from walstore.core.batches.batch import Batch, SelectedBatch
from walstore.errors import CorruptionError, FormatVersionError
from walstore.records import NO_HEADERS


def decode_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """Return the records of the object that ``entry`` names.

    CorruptionError unless its offsets are those of the entry, its length or else its setsum too, and all that
    :func:`uploader.fragments.fragment_file.read` checks. See :func:`verify_fragment`.
    """
    if has_length(data, entry):
        return _batch(_read(data, entry))
    return verify_fragment(data, entry)


def decode_columns(
    data: bytes | bytearray, entry: Fragment, names: Collection[str]
) -> FragmentBatch:
    """As :func:`decode_fragment`, with only the columns ``names`` of ``arrow.SCHEMA`` and offsets.

    The others are null, times the fragment's; their stored bytes are not checked.
    CorruptionError if the length is not that of the entry.
    """
    if not has_length(data, entry):
        raise _differs("length", entry, entry.num_bytes, len(data))
    return _batch(_read(data, entry, only=names))


def verify_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """As :func:`decode_fragment`, and hash every record: CorruptionError if the setsum differs."""
    try:
        content = _read(data, entry)
    except CorruptionError as error:
        if has_length(data, entry):
            raise
        raise _differs("length", entry, entry.num_bytes, len(data)) from error
    _same("setsum", entry, entry.setsum, _setsum(content))
    return _batch(content)


def has_length(data: bytes | bytearray, entry: Fragment) -> bool:
    """Return whether an object is as long as its entry says."""
    return len(data) == entry.num_bytes


def inspect_fragment(data: bytes, path: str) -> Fragment:
    """Return the manifest entry for the object found at ``path``, from nothing but its bytes.

    CorruptionError if it is no fragment, or ``path`` no key of one.
    """
    try:
        seq_no = layout.parse_fragment_path(path)
    except ValueError as error:
        raise CorruptionError("not the key of a fragment", path=path) from error
    content = fragment_file.read(data, path=path)
    return Fragment(
        path,
        seq_no,
        content.start,
        content.limit,
        len(data),
        _setsum(content),
        is_ours=fragment_file.is_ours(data, path=path),
    )


def fragment_closings(data: bytes, *, path: str = "fragment") -> tuple[int, frozenset[str]] | None:
    """Return how many closings of streams a fragment's maker knew, and which streams it has records of.

    None if its footer does not say: it is not bound to them. CorruptionError if it is no fragment.
    """
    known = fragment_file.closings(data, path=path)
    if known is None:
        return None
    names = fragment_file.read(data, path=path, only={"stream"}).records.column("stream").unique()
    return known, frozenset(name for name in names.to_pylist() if name is not None)


def _read(
    data: bytes | bytearray, entry: Fragment, *, only: Collection[str] | None = None
) -> Content:
    content = fragment_file.read(data, path=entry.path, only=only)
    _same("first offset", entry, entry.start, content.start)
    _same("limit", entry, entry.limit, content.limit)
    return content


def _same(what: str, entry: Fragment, expected: object, found: object) -> None:
    if found != expected:
        raise _differs(what, entry, expected, found)


def _differs(what: str, entry: Fragment, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"a fragment's {what} is {found}, but the manifest says {expected}",
        path=entry.path,
        expected=expected,
        found=found,
    )


def _batch(content: Content) -> FragmentBatch:
    return FragmentBatch(content.records, start=content.start)


def _setsum(content: Content) -> Setsum:
    values = content.records.column("value")
    return setsum_of_column(values, content.start, content.timestamp_us)


_OTHER_LENGTH: Final = (
    "nothing is lost; reading it takes a request more, and sizes that are shown are wrong; "
    "fork the log to mend it"
)
_REWRITE: Final = "nothing is lost, but searches go wrong; fork the log with a writer of records"


class CheckOutcome(Enum):
    """What became of the look at a fragment."""

    READ = "read"
    """It was read, and maybe found wrong."""
    LOST = "lost"
    """It is not there, and should be."""
    COLLECTED = "collected"
    """It was collected meanwhile."""
    UNAVAILABLE = "unavailable"
    """The store did not give it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What the look at one fragment gave."""

    entry: Fragment
    """What the manifest says of it."""
    findings: tuple[Finding, ...] = ()
    """All that is wrong with it."""
    fate: CheckOutcome = CheckOutcome.READ
    """Whether it was read."""
    setsum: Setsum = field(default_factory=Setsum)
    """Sum of the records it holds; zero if it cannot be read."""
    times_us: tuple[int, int] | None = None
    """Times of its oldest and newest record; None if it cannot be read."""
    error: CorruptionError | FormatVersionError | None = None
    """Why it cannot be read; None if it can."""

    def require_sound(self) -> None:
        """Raise CorruptionError for the first finding; another length of a sound object is none.

        FormatVersionError if a newer version wrote it.
        """
        if isinstance(self.error, FormatVersionError):
            raise self.error
        for finding in self.findings:
            if finding.advice != _OTHER_LENGTH:
                raise CorruptionError(
                    f"the fragment is damaged: {finding.what}",
                    path=finding.key,
                    expected=finding.expected,
                    found=finding.found,
                ) from self.error


def check_fragment(data: bytes, entry: Fragment) -> Checked:
    """Look at a whole object that should be the fragment ``entry``."""
    found: list[Finding] = []
    try:
        content = fragment_file.read(data, path=entry.path)
        footer = fragment_file.read_footer(data, path=entry.path)
    except (CorruptionError, FormatVersionError) as error:
        if len(data) != entry.num_bytes:
            found.append(_of_length(entry, len(data), is_sound=False))
        return Checked(entry, (*found, of_error(error)), error=error)
    setsum = _setsum(content)
    for title, stated, held in (
        ("first offset", entry.start, content.start),
        ("limit", entry.limit, content.limit),
        ("setsum", entry.setsum.hexdigest(), setsum.hexdigest()),
    ):
        if stated != held:
            found.append(_mismatch(entry, title, stated, held))
    if len(data) != entry.num_bytes:
        found.insert(0, _of_length(entry, len(data), is_sound=not found))
    bounds = pc.min_max(content.records.column("timestamp_us"))
    times = int(bounds["min"].as_py()), int(bounds["max"].as_py())
    if footer.times_us not in {None, times}:
        found.append(
            _misleads(entry, "its footer has other times than its records", footer.times_us, times)
        )
    for stream in pc.unique(content.records.column("stream")).to_pylist():
        if stream is not None and not footer.streams.may_hold(stream):
            what = f"its footer denies stream {stream!r}, of which it has records"
            found.append(_misleads(entry, what, stream, None))
    return Checked(entry, tuple(found), setsum=setsum, times_us=times)


def _mismatch(entry: Fragment, title: str, expected: object, found: object) -> Finding:
    what = f"its {title} is not what the manifest says"
    return Finding(Severity.ERROR, entry.path, what, RESTORE, expected, found)


def _of_length(entry: Fragment, size_bytes: int, *, is_sound: bool) -> Finding:
    """Another length is damage only if the records are others, too."""
    found = _mismatch(entry, "length", entry.num_bytes, size_bytes)
    if not is_sound:
        return found
    return dataclasses.replace(found, severity=Severity.WARNING, advice=_OTHER_LENGTH)


def _misleads(entry: Fragment, what: str, expected: object, found: object) -> Finding:
    return Finding(Severity.WARNING, entry.path, what, _REWRITE, expected, found)


_TABLE_BYTES: Final = 10 << 10
"""Memory of a fragment beside its records, measured with 8000 of one record each (pyarrow 26)."""


class FragmentBatch(Batch):
    """Records of a fragment as readers see them: a batch over a table with the columns of ``arrow.SCHEMA``.

    Columns become Python objects on first use, and only for the part that a slice covers.
    """

    __slots__ = ("_table", "_values")

    def __init__(self, table: pa.Table, *, start: int) -> None:
        """Wrap consecutive records, the first of which has the offset ``start``.

        The caller vouches for the offsets. ValueError for a table of other columns.
        """
        if table.schema != SCHEMA:
            raise ValueError(
                f"the columns must be those of walstore.core.batches.arrow.SCHEMA, not {table.schema}"
            )
        self.start = start
        self.limit = start + int(table.num_rows)
        self._table = table
        self._values: list[bytes] | None = None

    def slice(self, start: int, limit: int) -> FragmentBatch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        if start == self.start and limit == self.limit:
            return self
        return FragmentBatch(self._table.slice(start - self.start, limit - start), start=start)

    @property
    def nbytes(self) -> int:
        """Bytes of the records it covers. The memory goes when the last slice of a fragment goes."""
        return int(self._table.nbytes)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory that it takes: :attr:`nbytes`, and the table, its columns and buffers."""
        return self.nbytes + _TABLE_BYTES

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        if self._values is None:
            self._values = cast(list[bytes], self._list("value"))
        return self._values

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return cast(list[bytes | None], self._list("key"))

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return cast(list[str | None], self._list("stream"))

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        if self._is_void("headers"):
            return [NO_HEADERS] * len(self)
        found = cast(list[list[tuple[str, bytes]] | None], self._list("headers"))
        return [dict(item) if item else NO_HEADERS for item in found]

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing. wal3's records have their fragment's."""
        return cast(list[int], self._list("timestamp_us"))

    def may_hold_stream(self, name: str) -> bool:
        """Return whether a record of stream ``name`` is in the batch; decodes none."""
        return int(pc.index(self._table.column("stream"), name).as_py()) >= 0

    def select_stream(self, name: str) -> Batch:
        """Return the records of stream ``name``, over the same interval; there may be none."""
        rows = pc.indices_nonzero(pc.equal(self._table.column("stream"), name)).to_pylist()
        if len(rows) == len(self):
            return self
        return FragmentSelection(self, rows, self.start, self.limit)

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Return the records at these rows, counted from 0, copied together."""
        return self._table.take(pa.array(rows, pa.int64()))

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; see :meth:`Batch.to_arrow`.

        The bytes are shared as long as the records are in one row group of the fragment, else copied
        once; :meth:`to_arrow_batches` never copies.
        """
        columns = [_joined(column) for column in self._table.columns]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def to_arrow_batches(self) -> list[pa.RecordBatch]:
        """Return the records as RecordBatches, one per row group, sharing the bytes."""
        return cast(list[pa.RecordBatch], self._table.to_batches())

    def _is_void(self, name: str) -> bool:
        column = self._table.column(name)
        return bool(column.null_count == len(column))

    def _list(self, name: str) -> list[object]:
        if self._is_void(name):
            return [None] * len(self)
        return cast(list[object], self._table.column(name).to_pylist())


class FragmentSelection(SelectedBatch):
    """Some records of a fragment, copied together when their content is first used."""

    __slots__ = ("_taken",)

    _source: FragmentBatch

    def __init__(self, source: FragmentBatch, rows: Sequence[int], start: int, limit: int) -> None:
        """As :class:`walstore.core.batches.derived.SelectedBatch`."""
        super().__init__(source, rows, start, limit)
        self._taken: FragmentBatch | None = None

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return self._take().keys

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return self._take().streams

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        return self._take().headers

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        return self._take().timestamps_us

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; see :meth:`Batch.to_arrow`."""
        return self._take().to_arrow()

    def _pick_values(self) -> Sequence[bytes]:
        return self._take().values

    def _take(self) -> FragmentBatch:
        """Return the records back to back: the start of that batch means nothing."""
        if self._taken is None:
            self._taken = FragmentBatch(self._source.take(self._rows), start=0)
        return self._taken


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
