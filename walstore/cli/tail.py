"""walstore tail: the last records of a log, and those to come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

from walstore import Batch
from walstore.cli.encoding import ValueEncoding, encoder, to_rows
from walstore.cli.options import AsJson, Location, Stream
from walstore.cli.output import to_json, write_bytes
from walstore.cli.running import run_async, stop_on_signal, until_stopped
from walstore.cli.source import open_location
from walstore.cli.start import check_stream, parse_place

EXAMPLES = """\b
Examples:
  walstore tail data/orders
  walstore tail -f data/orders --from latest --stream eu
  walstore tail -f s3://bucket/orders --from -100 --json | jq .offset
"""


def tail(
    location: Location,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records until interrupted.")
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="First record: earliest, latest, an offset, -N, a time."
        ),
    ] = "-10",
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Write the values of the last records to stdout, a line each, as they were appended.

    Takes no lock. With --follow, a directory that another process writes is looked at every 1 to
    50 ms, a store every 0.1 to 2 s; only durable records are seen. With --json the records look as
    in 'walstore dump'. SIGINT and SIGTERM end it with exit code 0.
    """
    render = _to_json_lines if as_json else _to_values
    run_async(_tail(location, start, check_stream(stream), render, follow=follow))


async def _tail(
    location: str,
    start: str,
    stream: str | None,
    render: Callable[[Batch], bytes],
    *,
    follow: bool,
) -> None:
    first = parse_place(start)
    with stop_on_signal() as stop:
        async with open_location(location) as log:
            begin = await first.resolve(log, stream)
            source = log.batches(begin, None if follow else log.limit, stream=stream)
            async for batch in until_stopped(source, stop):
                await asyncio.to_thread(_write, batch, render)


def _write(batch: Batch, render: Callable[[Batch], bytes]) -> None:
    write_bytes(render(batch))


def _to_values(batch: Batch) -> bytes:
    return b"".join([value + b"\n" for value in batch.values])


def _to_json_lines(batch: Batch) -> bytes:
    encode = encoder(ValueEncoding.AUTO)
    return "".join([to_json(row) + "\n" for row in to_rows(batch, encode)]).encode()
