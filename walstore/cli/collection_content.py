"""walstore collection read and write: the rows of a collection on stdout, on stdin and in Parquet files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from walstore.cli import collection_rows as rows
from walstore.cli.errors import UsageError
from walstore.cli.input import read_stdin, require_stdin
from walstore.cli.location import open_collection, to_url
from walstore.cli.options import AsJson, CollectionAt, argument, option
from walstore.cli.output import format_count, print_table, write_bytes
from walstore.cli.report import Report
from walstore.cli.running import run_async, stop_on_signal, until_stopped
from walstore.errors import OutcomeUnknownError

if TYPE_CHECKING:
    import pyarrow as pa

    from uploader import CollectionReader

READ_EXAMPLES = """\
  walstore collection read s3://bucket/people
  walstore collection read s3://bucket/people --as-of 41 --output people.parquet
  walstore collection read s3://bucket/people --after 41 --json
  walstore collection read s3://bucket/people --follow --json | jq .name
"""


def read(
    url: CollectionAt,
    *,
    as_of: Annotated[
        int | None, option("--as-of T", "Content at this time; default: the latest.", min=0)
    ] = None,
    after: Annotated[
        int | None, option("--after T", "Instead the changes after this time.", min=-1)
    ] = None,
    follow: Annotated[
        bool, option("--follow -f", "Then the changes as they are published, until interrupted.")
    ] = False,
    output: Annotated[
        str | None, option("--output FILE", "Write a Parquet file instead of stdout.")
    ] = None,
    limit: Annotated[int | None, option("--limit N", "Most rows to write.", min=0)] = None,
    as_json: AsJson = False,
) -> Report | None:
    """Write the content of a collection at a time, or the changes after one.

    It registers as a leased reader, which is released at the end. Content is sorted by key; changes
    have the columns _t and _d or _deleted and are sorted by time. --json writes one line per row, which
    'walstore collection write' accepts. With --follow, SIGINT and SIGTERM end it with exit code 0.
    """
    if as_of is not None and after is not None:
        raise UsageError("give --as-of for the content or --after for changes, not both")
    if output is not None and follow:
        raise UsageError("--output needs an end; leave --follow out")
    place = to_url(url, "collection read")
    done = run_async(_read(place, _Reading(as_of, after, follow), output, limit, as_json=as_json))
    if done is None:
        raise typer.Abort
    return None if output is None else Report(done, list(done.items()))


class _Reading:
    """What to read: the content at a time, or the changes after one; and whether to follow."""

    def __init__(self, as_of: int | None, after: int | None, is_following: bool) -> None:  # noqa: FBT001
        self._as_of, self._after, self.is_following = as_of, after, is_following

    async def steps(self, reader: CollectionReader) -> AsyncIterator[pa.Table]:
        """Yield tables until there is no more; UsageError for a time that is not published yet."""
        upper = await reader.upper()
        asked = self._as_of if self._after is None else self._after
        if asked is not None and asked >= upper and not self.is_following:
            raise UsageError(
                f"the collection ends at {upper}, so nothing is known about {asked} yet; "
                "--follow waits for it"
            )
        if self._after is not None:
            if self.is_following or self._after + 1 < upper:
                async for table, limit in reader.listen(after=self._after):
                    yield table
                    if limit >= upper and not self.is_following:
                        return
        elif self.is_following:
            async for table, _ in reader.subscribe(as_of=self._as_of):
                yield table
        else:
            # What is published from now on is no part of the latest content.
            latest = upper - 1 if upper else None
            yield await reader.snapshot(as_of=latest if asked is None else asked)


async def _read(
    url: str, reading: _Reading, output: str | None, limit: int | None, *, as_json: bool
) -> dict[str, Any] | None:
    """Write the rows to stdout or a file, and return what the verb says; None if it was interrupted."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    left = limit
    above: _Above | None = None
    name = f"walstore-read-{os.urandom(4).hex()}"
    with stop_on_signal() as stop:
        async with open_collection(url) as collection, await collection.reader(name) as reader:
            async for whole in until_stopped(reading.steps(reader), stop):
                table = whole if left is None else whole.slice(0, left)
                if output is not None:
                    tables.append(table)
                else:
                    above = await asyncio.to_thread(_write_rows, table, above, as_json=as_json)
                if left is not None:
                    left -= table.num_rows
                    if not left:
                        break
            location = collection.url
        if stop.is_set() and not reading.is_following:
            return None
    if output is None:
        return {}
    if not tables:
        raise UsageError(f"there are no changes after that time; {output} was not written")
    table = pa.concat_tables(tables)
    await asyncio.to_thread(rows.write_parquet, table, Path(output))
    return {"location": location, "output": output, "rows": table.num_rows}


class _Above(NamedTuple):
    """The columns of what was written before."""

    names: list[str]
    widths: list[int]


def _write_rows(table: pa.Table, above: _Above | None, *, as_json: bool) -> _Above | None:
    """Write rows, without the names of their columns if those above have the same."""
    if as_json:
        for lines in rows.json_lines(table):
            write_bytes(lines)
    elif table.num_rows:
        names = table.column_names
        below = above.widths if above is not None and above.names == names else None
        return _Above(names, print_table(names, rows.cells(table), below=below))
    return above


WRITE_EXAMPLES = """\
  walstore collection write s3://bucket/people people.parquet
  echo '{"id": 1, "name": "Ada"}' | walstore collection write s3://bucket/people -
  walstore collection write s3://bucket/people day.parquet --lower 20 --upper 30 --definite
"""
_STDIN: Final = "-"


def write(
    url: CollectionAt,
    file: Annotated[
        str, argument("FILE", "A Parquet file, or - for JSON lines on stdin.", show_default=False)
    ],
    *,
    writer: Annotated[str, option("--writer NAME", "The shard to append to.")] = "main",
    lower: Annotated[
        int | None,
        option("--lower T", "First time of the batch; default: the end of the shard.", min=0),
    ] = None,
    upper: Annotated[
        int | None, option("--upper T", "Where it ends; one time after --lower.", min=1)
    ] = None,
    definite: Annotated[
        bool,
        option(
            "--definite",
            "Omit times that the shard already has: for rows derived again from an input.",
        ),
    ] = False,
) -> Report:
    """Append rows to a collection as one batch, which contains all updates of its times.

    Rows have the collection's columns, and may have _t (default: the batch's first time), _d (of a diff
    collection; default 1) or _deleted (of an upsert collection). If the shard does not end at --lower,
    nothing is written; repeating a batch changes nothing.
    """
    if definite and (lower is None or upper is None):
        raise UsageError("--definite needs --lower and --upper: the times that the rows are all of")
    place = to_url(url, "collection write")
    table = None
    if file == _STDIN:
        require_stdin()
    else:
        table = rows.read_parquet(Path(file))
    done = run_async(_write(place, table, writer, (lower, upper), is_definite=definite))
    fields = [
        ("location", done["location"]),
        ("writer", done["writer"]),
        ("times", f"[{done['lower']}, {done['upper']})"),
        ("rows", format_count(done["rows"])),
    ]
    return Report(done, fields)


async def _write(
    url: str,
    table: pa.Table | None,
    name: str,
    interval: tuple[int | None, int | None],
    *,
    is_definite: bool,
) -> dict[str, Any]:
    async with open_collection(url) as collection:
        writer = collection.writer(name)
        lower = await writer.upper() if interval[0] is None else interval[0]
        upper = lower + 1 if interval[1] is None else interval[1]
        given = await _from_stdin(collection.schema.updates, lower) if table is None else table
        append = writer.publish if is_definite else writer.append
        # Without rows, and without an interval of which that says something, there is nothing to append.
        is_nothing = not given.num_rows and interval[1] is None
        try:
            if not is_nothing:
                await append(given, lower=lower, upper=upper)
        except OutcomeUnknownError as error:
            error.add_note(f"(repeat it with --lower {lower} --upper {upper})")
            raise
        return {
            "location": collection.url,
            "writer": name,
            "lower": lower,
            "upper": lower if is_nothing else upper,
            "rows": given.num_rows,
        }


async def _from_stdin(columns: pa.Schema, lower: int) -> pa.Table:
    data = b"".join([chunk async for chunk in read_stdin(asyncio.Event())])
    return await asyncio.to_thread(rows.parse_json_lines, data, columns, lower=lower)
