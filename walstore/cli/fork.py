"""walstore fork: a new stored log that begins with what another one holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walstore.cli.location import to_url
from walstore.cli.options import AsJson
from walstore.cli.output import format_bytes, format_count, print_fields, print_json
from walstore.cli.progress import progress_bar
from walstore.cli.running import run_async
from walstore.cli.source import OpenedLog
from walstore.cli.start import StartPlace, parse_place

if TYPE_CHECKING:
    from uploader import Forked

EXAMPLES = """\b
Examples:
  walstore fork s3://bucket/orders s3://bucket/orders-test
  walstore fork s3://bucket/orders s3://bucket/june --from 2025-06-01 --to 2025-07-01
  walstore fork file:///srv/bucket/orders file:///srv/bucket/copy --to 5000 --json
"""


def fork(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="URL of the log to copy.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="URL of the new log.", show_default=False),
    ],
    *,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Begin with the fragment of this record."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="End before this record.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a stored log, or a part of it, to a log of its own.

    Offsets and times stay; afterwards the logs are independent. The source may be written meanwhile; a pin
    keeps collections from what is copied. Every record is checked. After an interruption there is no log
    at TARGET, and the same command continues. Exit code 4 if something else is there.
    """
    places = [None if text is None else parse_place(text) for text in (from_, to)]
    done = run_async(_fork(to_url(source, "fork"), to_url(target, "fork"), *places))
    if as_json:
        print_json(done)
        return
    print_fields(
        [
            ("source", done["source"]),
            ("target", done["target"]),
            ("offsets", f"[{done['start']}, {done['limit']})"),
            ("records", format_count(done["records"])),
            ("size", format_bytes(done["fragment_bytes"])),
            ("setsum", done["setsum"]),
        ]
    )


async def _fork(
    source: str, target: str, from_: StartPlace | None, to: StartPlace | None
) -> dict[str, Any]:
    from uploader import CloudLog, fork
    from uploader.stores import open_store

    async with CloudLog.open(source) as log:
        places = OpenedLog(log)
        start = None if from_ is None else await from_.resolve(places)
        stop = None if to is None else await to.resolve(places)
        low, high = log.head if start is None else start, log.tail if stop is None else stop
        source_url = log.url
    with progress_bar("copying") as show:

        def on_progress(at: Forked) -> None:
            done = at.limit - max(at.start, low)
            show(done, high - low, f"{format_count(done)} of {format_count(high - low)} records")

        found = await fork(source, target, start=start, stop=stop, progress=on_progress)
    records = found.limit - found.start
    urls = {"source": source_url, "target": open_store(target).url}
    return {**urls, **asdict(found), "records": records}
