"""Logs for engines that read Arrow: DuckDB, Polars, pandas. Needs the extra ``cloud``, which has pyarrow.

:data:`SCHEMA` is what ``to_arrow``, ``arrow_batches`` and :func:`dataset` return: signed types, which every
engine has, and the names of Spark's source.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from walstore.core.batches.arrow import HEADERS_TYPE, ROWS, check_columns
from walstore.core.runtime.extras import needs_extra
from walstore.errors import InvalidSettingsError, WrongLoopError
from walstore.records import Start

with needs_extra("cloud", "Arrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

if TYPE_CHECKING:
    from uploader import LogFile

__all__ = ["SCHEMA", "LogDataset", "dataset"]

SCHEMA: Final = ROWS
"""``offset`` int64, ``timestamp`` timestamp[us, UTC], ``value`` and ``key`` binary, ``stream`` string,
``headers`` map<string, binary>. All may be null, as Spark has them; the first three never are."""

_STORED: Final = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp_us", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("record_timestamp_us", pa.int64()),
        pa.field("stream", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Columns of the files, read as signed; wal3's own files have the first three."""
_SHOWN: Final = {
    "timestamp": pc.coalesce(pc.field("record_timestamp_us"), pc.field("timestamp_us")).cast(
        SCHEMA.field("timestamp").type
    ),
    "value": pc.field("body"),
}
"""How columns are made of stored ones; the others are stored under their names."""


class LogDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """The files of a log as a ``pyarrow.dataset.Dataset`` with the columns of :data:`SCHEMA`.

    Made by :func:`dataset`. Engines ask it for columns and a filter: only those columns are read, files whose
    offsets cannot fulfil the filter are not opened. ``get_fragments``, ``join`` and Acero's own scans see the
    files as they are stored, with ``body`` for ``value`` and ``record_timestamp_us`` for ``timestamp``.
    """

    def __init__(
        self,
        files: list[ds.Fragment],
        file_format: ds.FileFormat,
        filesystem: pafs.FileSystem,
    ) -> None:
        """Not for callers; see :func:`dataset`."""
        super().__init__(files, _STORED, file_format, filesystem)
        self._files = files

    @property
    def schema(self) -> pa.Schema:
        """:data:`SCHEMA`."""
        return SCHEMA

    def filter(self, expression: pc.Expression) -> LogDataset:
        """Return the dataset with the rows that also fulfil ``expression``, of columns of :data:`SCHEMA`."""
        found: LogDataset = super().filter(expression)
        found._files = self._files  # pyarrow makes it without calling __init__
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the columns in another process."""
        rows = self._scan_options.get("filter")
        return _made_again, (self._files, self.format, self.filesystem, rows)

    def replace_schema(self, schema: pa.Schema) -> LogDataset:
        """Refused with InvalidSettingsError: the columns are fixed."""
        raise InvalidSettingsError(
            "the columns of a log are fixed; cast those that a query returns"
        )

    def scanner(
        self,
        columns: list[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - as of pyarrow
        **options: Any,
    ) -> ds.Scanner:
        """Return a scanner, as of ``pyarrow.dataset.Dataset``; other methods and engines read through it.

        Args:
            columns: Names of :data:`SCHEMA`, or names with expressions of them; None for all.
            filter: Which rows, by columns of :data:`SCHEMA`.
            **options: Those of pyarrow.

        Raises InvalidSettingsError for a name that is not there, pyarrow's error for such a name elsewhere.
        """
        kept = self._scan_options.get("filter")
        rows = filter if kept is None else kept if filter is None else kept & filter
        found = self._having(rows)
        shown = SCHEMA.names if columns is None else columns
        if not isinstance(shown, dict) and shown:
            check_columns(shown)
        of_rows = set() if rows is None else _columns_of(rows)
        if not isinstance(shown, dict) and of_rows.isdisjoint(_SHOWN):
            return found.scanner(columns=_made(shown), filter=rows, **options)
        used = set(shown)
        if isinstance(shown, dict):
            used = {name for one in shown.values() for name in _columns_of(one)}
        names = [name for name in SCHEMA.names if name in used | of_rows]
        stored = found.scanner(columns=_made(names), **options)
        batches = (batch for batch in stored.to_batches())
        read = pa.RecordBatchReader.from_batches(
            pa.schema([SCHEMA.field(n) for n in names]), batches
        )
        return ds.Scanner.from_batches(read, columns=shown, filter=rows)

    def _having(self, rows: pc.Expression | None) -> ds.FileSystemDataset:
        """Return the files, as they are stored, that may have such rows by their offsets."""
        files = self._files
        if rows is not None:
            # Looks at the offsets of each file, and needs the names that the filter has.
            named = ds.FileSystemDataset(files, SCHEMA, self.format, self.filesystem)
            files = list(named.get_fragments(filter=rows))
        return ds.FileSystemDataset(files, _STORED, self.format, self.filesystem)


def dataset(
    source: str | Iterable[LogFile],
    *,
    start: Start | str | int | datetime = Start.EARLIEST,
    stop: int | None = None,
    filesystem: pafs.FileSystem | None = None,
) -> LogDataset:
    """Return the published records of a stored log as a dataset, for DuckDB, Polars and pandas.

    Of a URL the manifest is read, while the caller waits; in an event loop pass ``await log.files()`` of a
    :class:`uploader.CloudLog`, of which nothing is read here. Records that are appended later are in a later
    dataset. A file that was collected since is a FileNotFoundError or OSError of the engine: see
    :meth:`uploader.CloudLog.files`.

    Args:
        source: The URL of a log, ``file:``, ``s3:``, ``gs:`` or ``az:``, or files of one.
        start: Where the records begin, as of :meth:`walstore.Wal.reader`; of a URL only.
        stop: Offset before which they end; None for all that are published. Of a URL only.
        filesystem: How pyarrow reaches the files, by paths without the scheme; must be given for ``gs:`` and
            ``az:``. Default: this machine's, or S3 by the URL's ``endpoint_url`` and ``region``, with
            credentials from the environment.

    Raises:
        WrongLoopError: ``source`` is a URL, and this is an event loop.
        InvalidSettingsError: pyarrow does not reach files there without ``filesystem``.
        LogNotFoundError: There is no log; errors of the store are as of :meth:`uploader.CloudLog.open`.
    """
    bounds = None
    if isinstance(source, str):
        if _get_running_loop() is not None:
            raise WrongLoopError(
                "walstore.arrow.dataset(URL) would stop this event loop; pass await log.files() of a CloudLog"
            )
        files, bounds = asyncio.run(_files(source, start, stop))
    else:
        if start != Start.EARLIEST or stop is not None:
            raise InvalidSettingsError("start and stop are of log.files() if files are given")
        files = list(source)
    first = source if isinstance(source, str) else files[0].url if files else "file:///"
    found = _filesystem(first) if filesystem is None else filesystem
    parquet = ds.ParquetFileFormat()
    offset = pc.field("offset")
    fragments = [
        parquet.make_fragment(
            _path(file.url), found, (offset >= file.start) & (offset <= file.limit - 1)
        )
        for file in files
    ]
    return _made_again(fragments, parquet, found, bounds)


def _made_again(
    files: list[ds.Fragment],
    file_format: ds.FileFormat,
    filesystem: pafs.FileSystem,
    rows: pc.Expression | None,
) -> LogDataset:
    made = LogDataset(files, file_format, filesystem)
    return made if rows is None else made.filter(rows)


async def _files(
    url: str, start: Start | str | int | datetime, stop: int | None
) -> tuple[list[LogFile], pc.Expression | None]:
    """Return the files, and which of their records are asked for, if not all."""
    from uploader import CloudLog

    async with CloudLog.open(url) as log:
        async with log.reader(start, stop=stop) as reader:
            first = reader.position
        files = await log.files(first, stop)
    last = files[-1].limit if files else first
    end = last if stop is None else min(stop, last)
    if not files or (files[0].start, last) == (first, end):
        return files, None
    return files, (pc.field("offset") >= first) & (pc.field("offset") < end)


def _columns_of(expression: pc.Expression) -> set[str]:
    """Return which columns an expression needs: those without which it cannot be bound."""
    found = set()
    for name in SCHEMA.names:
        others = pa.schema([field for field in SCHEMA if field.name != name])
        try:
            ds.dataset(others.empty_table()).scanner(columns={"found": expression})
        except pa.ArrowInvalid:
            found.add(name)
    return found


def _made(names: Iterable[str]) -> dict[str, pc.Expression]:
    return {name: _SHOWN.get(name, pc.field(name)) for name in names}


def _path(url: str) -> str:
    """Return the path of a file as pyarrow's file systems have it."""
    scheme, _, rest = url.partition("://")
    return rest if scheme != "file" else "/" + rest.lstrip("/")


def _filesystem(url: str) -> pafs.FileSystem:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return pafs.LocalFileSystem()
    if parts.scheme != "s3":
        raise InvalidSettingsError(
            f"give filesystem=, such as one of pyarrow.fs or fsspec, for files at {parts.scheme}: URLs"
        )
    options = {name: given[0] for name, given in parse_qs(parts.query).items()}
    endpoint = urlsplit(options.get("endpoint_url", ""))
    chosen = (
        {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme} if endpoint.netloc else {}
    )
    return pafs.S3FileSystem(region=options.get("region"), **chosen)
