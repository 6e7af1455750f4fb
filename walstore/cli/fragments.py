"""walstore fragments: the objects that hold the records of a stored log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from walstore.cli.location import to_url
from walstore.cli.options import AsJson, StoredAt
from walstore.cli.output import print_json, writing
from walstore.cli.running import run_async
from walstore.cli.source import OpenedLog
from walstore.cli.start import StartPlace, parse_place
from walstore.records import from_timestamp_us
from walstore.runtime.threads import Worker

if TYPE_CHECKING:
    from uploader.format.entries import Fragment
    from uploader.read.fragment_ranges import FragmentFooters

EXAMPLES = """\b
Examples:
  walstore fragments s3://bucket/orders
  walstore fragments s3://bucket/orders --from 2025-06-01 --times
  walstore fragments s3://bucket/orders --from -1000000 --json
"""

_AT_ONCE: Final = 16
_NAMES: Final = ("fragment", "start", "limit", "records", "bytes", "path")


def fragments(
    url: StoredAt,
    *,
    from_: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Begin with the fragment of this record.")
    ] = "earliest",
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="End before the fragments behind it.")
    ] = "latest",
    times: Annotated[
        bool, typer.Option("--times", help="Show times, too; a request for each fragment.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the fragments of a stored log, oldest first: offsets, bytes, keys.

    With --json a line for each. Fragments that hold only records outside of the two places are left out.
    """
    start, stop = parse_place(from_), parse_place(to)
    run_async(_list(to_url(url, "fragments"), start, stop, with_times=times, as_json=as_json))


async def _list(
    url: str, start: StartPlace, stop: StartPlace, *, with_times: bool, as_json: bool
) -> None:
    from uploader import CloudLog
    from uploader.read.fragment_reader import FragmentReader
    from uploader.root.tree import ManifestTree
    from uploader.stores import open_store

    store, worker = open_store(url), Worker("fragments", threads=2)
    try:
        async with CloudLog.open(url, store=store) as log:
            source = OpenedLog(log)
            low, high = await start.resolve(source), await stop.resolve(source)
            footers = FragmentReader(store=store, worker=worker, cache_bytes=0).footers
            if not as_json:
                _write_line(_NAMES, ("oldest", "newest") if with_times else ())
            tree = ManifestTree(store, worker)
            found = tree.fragments(log.manifest, low, high)
            async for part in _parts(found):
                times = await _read_times(footers, part) if with_times else [()] * len(part)
                for entry, bounds in zip(part, times, strict=True):
                    if as_json:
                        print_json(_to_json(entry, bounds))
                    else:
                        _write_line(_cells(entry), map(_time, bounds))
    finally:
        worker.close()


async def _parts(found: AsyncIterator[Fragment]) -> AsyncIterator[list[Fragment]]:
    """Yield entries some at a time, so that their footers are asked for together."""
    part: list[Fragment] = []
    async for entry in found:
        part.append(entry)
        if len(part) == _AT_ONCE:
            yield part
            part = []
    if part:
        yield part


async def _read_times(
    footers: FragmentFooters, entries: Sequence[Fragment]
) -> list[Sequence[int | None]]:
    """Return the times of the oldest and the newest record of each; None where a footer has none."""
    from uploader.runtime.task_groups import task_group

    async with task_group() as group:
        reading = [group.create_task(footers.get(entry)) for entry in entries]
    return [task.result().times_us or (None, None) for task in reading]


def _to_json(entry: Fragment, bounds: Sequence[int | None]) -> dict[str, Any]:
    found = {
        "seq_no": entry.seq_no,
        "start": entry.start,
        "limit": entry.limit,
        "records": entry.limit - entry.start,
        "bytes": entry.num_bytes,
        "path": entry.path,
        "setsum": entry.setsum.hexdigest(),
    }
    names = ("min_timestamp_us", "max_timestamp_us")
    return found | dict(zip(names, bounds, strict=False))


def _cells(entry: Fragment) -> tuple[object, ...]:
    records = entry.limit - entry.start
    return entry.seq_no, entry.start, entry.limit, records, entry.num_bytes, entry.path


def _time(timestamp_us: int | None) -> str:
    return "-" if timestamp_us is None else f"{from_timestamp_us(timestamp_us):%Y-%m-%d %H:%M:%S}"


def _write_line(cells: Sequence[object], times: Iterable[str]) -> None:
    """Write a line of a table that may be too long to be measured before."""
    *numbers, path = cells
    columns = [f"{number:>12}" for number in numbers]
    columns += [f"{time:<19}" for time in times]
    with writing() as stdout:
        stdout.write("  ".join([*columns, str(path)]) + "\n")
