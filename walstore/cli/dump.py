"""walstore dump: records as JSON lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from walstore import Batch
from walstore.cli.encoding import ValueEncoding, encoder, to_rows
from walstore.cli.options import AsJson, Location, Stream
from walstore.cli.output import to_json, write_bytes
from walstore.cli.running import run_async
from walstore.cli.source import open_location
from walstore.cli.start import check_stream, parse_place

EXAMPLES = """\b
Examples:
  walstore dump data/orders --limit 10
  walstore dump data/orders --from -100 --stream eu | jq .value
  walstore dump s3://bucket/orders --from 2025-06-01 --to 2025-06-02 --value base64
"""


def dump(
    location: Location,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="First record: earliest, latest, an offset, -N, a time."
        ),
    ] = "earliest",
    stop: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="Record before which to stop; as --from.")
    ] = "latest",
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, metavar="N", help="Most records to write.")
    ] = None,
    value: Annotated[
        ValueEncoding, typer.Option("--value", help="How bytes appear.")
    ] = ValueEncoding.AUTO,
    stream: Stream = None,
    as_json: AsJson = False,  # noqa: ARG001 - it is JSON with or without
) -> None:
    """Write records to stdout as JSON lines, and end at the last durable one.

    Takes no lock and may run next to the writer. A field that is not UTF-8 appears as
    {"base64": "..."} unless --value says otherwise. Times without a zone are UTC.
    """
    run_async(_dump(location, (start, stop), check_stream(stream), limit, value))


async def _dump(
    location: str,
    places: tuple[str, str],
    stream: str | None,
    limit: int | None,
    value: ValueEncoding,
) -> None:
    first, last = map(parse_place, places)
    encode = encoder(value)

    def write(batch: Batch) -> None:
        lines = [to_json(row) + "\n" for row in to_rows(batch, encode)]
        write_bytes("".join(lines).encode())

    async with open_location(location) as log:
        begin = await first.resolve(log, stream)
        end = min(await last.resolve(log, stream), log.limit)
        if limit is not None and stream is None:
            end = min(end, begin + limit)
        source = log.batches(begin, max(begin, end), stream=stream)
        async for batch in source if limit is None else _first(source, limit):
            await asyncio.to_thread(write, batch)


async def _first(source: AsyncIterator[Batch], count: int) -> AsyncIterator[Batch]:
    """Yield the first ``count`` records."""
    while count > 0 and (batch := await anext(source, None)) is not None:
        yield batch if len(batch) <= count else batch.slice(batch.start, batch.offsets[count])
        count -= len(batch)
