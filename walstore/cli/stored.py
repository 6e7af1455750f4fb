"""walstore manifest and fragments: what a stored log consists of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from walstore.cli.errors import UsageError
from walstore.cli.location import parse_place, to_url
from walstore.cli.options import AsJson, StoredAt, option
from walstore.cli.output import (
    format_bytes,
    format_count,
    format_time,
    print_json,
    visible,
    write_bytes,
    writing,
)
from walstore.cli.report import Listing, Part, Report
from walstore.cli.running import run_async
from walstore.core.runtime.threads import Worker

if TYPE_CHECKING:
    from uploader.format.entries import Entry, Fragment
    from uploader.format.manifest import Manifest
    from uploader.read.fragment_ranges import FragmentFooters

MANIFEST_EXAMPLES = """\
  walstore manifest s3://bucket/orders
  walstore manifest s3://bucket/orders --json
  walstore manifest file:///srv/bucket/orders --raw > MANIFEST
"""


def manifest(
    url: StoredAt,
    *,
    raw: Annotated[
        bool, option("--raw", "Write the manifest itself: its JSON, byte for byte.")
    ] = False,
    as_json: AsJson = False,
) -> Report | None:
    """Show the manifest of a stored log: totals, snapshots, newest fragments.

    Snapshots name the older fragments; 'walstore fragments' lists all of them.
    """
    if raw and as_json:
        raise UsageError("give --raw or --json, not both")
    location, found = run_async(_load(to_url(url, "manifest")))
    if not raw:
        return Report(_manifest_json(location, found), *_manifest_parts(location, found))
    write_bytes(found.serialise())
    return None


async def _load(url: str) -> tuple[str, Manifest]:
    from uploader.layouts.log_session import open_session

    async with open_session(url) as opened:
        opened.check_found()
        return opened.store.url, opened.root.manifest


def _manifest_json(location: str, found: Manifest) -> dict[str, Any]:
    return {
        "location": location,
        "writer": found.writer,
        "sealed": found.is_sealed,
        "head": found.oldest_offset,
        "tail": found.next_offset,
        "next_fragment": found.next_seq_no,
        "setsum": found.setsum.hexdigest(),
        "collected": found.collected.hexdigest(),
        "appended_bytes": found.acc_bytes,
        "snapshots": [
            _entry_json(one, path=one.path_to_snapshot, depth=one.depth) for one in found.snapshots
        ],
        "fragments": [
            _entry_json(one, path=one.path, seq_no=one.seq_no) for one in found.fragments
        ],
    }


def _entry_json(one: Entry, **names: object) -> dict[str, Any]:
    return {
        **names,
        "start": one.start,
        "limit": one.limit,
        "bytes": one.num_bytes,
        "setsum": one.setsum.hexdigest(),
    }


def _manifest_parts(location: str, found: Manifest) -> Iterator[Part]:
    size, ever = format_bytes(found.live_bytes), format_bytes(found.acc_bytes)
    yield [
        ("location", location),
        ("offsets", f"[{found.oldest_offset}, {found.next_offset})"),
        ("records", format_count(found.next_offset - found.oldest_offset)),
        ("size", f"{size}, {ever} ever added"),
        ("next fragment", found.next_seq_no),
        ("setsum", found.setsum.hexdigest()),
        ("collected", found.collected.hexdigest()),
        ("writer", found.writer),
        ("sealed", "yes" if found.is_sealed else "no"),
    ]
    rows = [
        (f"snapshot, depth {one.depth}", one.start, one.limit, one.num_bytes, one.path_to_snapshot)
        for one in found.snapshots
    ]
    rows += [("fragment", one.start, one.limit, one.num_bytes, one.path) for one in found.fragments]
    if rows:
        yield ""
        yield Listing(("entry", "start", "limit", "bytes", "path"), rows)


FRAGMENTS_EXAMPLES = """\
  walstore fragments s3://bucket/orders
  walstore fragments s3://bucket/orders --from 2025-06-01 --times
  walstore fragments s3://bucket/orders --from -1000000 --json
"""

_AT_ONCE: Final = 16
_NAMES: Final = ("fragment", "start", "limit", "records", "bytes", "path")
_TIMES: Final = ("min_timestamp_us", "max_timestamp_us")


async def fragments(
    url: StoredAt,
    *,
    from_: Annotated[
        str, option("--from PLACE", "Begin with the fragment of this record.")
    ] = "earliest",
    to: Annotated[str, option("--to PLACE", "End before the fragments after it.")] = "latest",
    times: Annotated[bool, option("--times", "Also show times; one request per fragment.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the fragments of a stored log, oldest first: offsets, bytes, keys.

    With --json, one line each. Fragments that contain only records outside of the two places are omitted.
    """
    start, stop = parse_place(from_), parse_place(to)
    place = to_url(url, "fragments")
    from uploader import CloudLog
    from uploader.read.fragment_reader import FragmentReader
    from uploader.root.tree import ManifestTree
    from uploader.stores import open_store

    store, worker = open_store(place), Worker("fragments", threads=2)
    try:
        async with CloudLog.open(place, store=store) as log:
            low, high = await start.resolve(log), await stop.resolve(log)
            footers = FragmentReader(store=store, worker=worker, cache_bytes=0).footers
            if not as_json:
                _write_line(_NAMES, ("oldest", "newest") if times else ())
            tree = ManifestTree(store, worker)
            found = tree.fragments(log.manifest, low, high)
            async for part in _parts(found):
                found_times = await _read_times(footers, part) if times else [()] * len(part)
                for entry, bounds in zip(part, found_times, strict=True):
                    shown = _fragment_json(entry)
                    if as_json:
                        print_json(shown | dict(zip(_TIMES, bounds, strict=False)))
                    else:
                        cells = [shown[name] for name in ("seq_no", *_NAMES[1:])]
                        _write_line(cells, map(format_time, bounds))
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


def _fragment_json(entry: Fragment) -> dict[str, Any]:
    return {
        "seq_no": entry.seq_no,
        "start": entry.start,
        "limit": entry.limit,
        "records": entry.limit - entry.start,
        "bytes": entry.num_bytes,
        "path": entry.path,
        "setsum": entry.setsum.hexdigest(),
    }


def _write_line(cells: Sequence[object], times: Iterable[str]) -> None:
    """Write a line of a table that may be too long to be measured before."""
    *numbers, path = cells
    columns = [f"{number:>12}" for number in numbers]
    columns += [f"{time:<19}" for time in times]
    with writing() as stdout:
        stdout.write("  ".join([*columns, visible(path)]) + "\n")
