"""walstore append: records from stdin into a log."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from walstore import Durability, Settings, Wal
from walstore.batches.conditions import MAX_NAME_CHARS
from walstore.cli.errors import UsageError, unwrap
from walstore.cli.input import (
    MOST_RECORD_BYTES,
    LengthPrefixed,
    Lines,
    Splitter,
    read_records,
    require_stdin,
)
from walstore.cli.location import connect_to, is_address, is_url, to_directory, to_url
from walstore.cli.options import (
    Alpha,
    AnyLocation,
    AsJson,
    LayoutOption,
    Shards,
    TakeOver,
    layout_arguments,
)
from walstore.cli.output import complain, print_result
from walstore.cli.row import JsonParser, LineParser, Parser, Row, plain_rows
from walstore.cli.running import run_async, stop_on_signal
from walstore.errors import WalError, WouldBlock
from walstore.ports import Tier
from walstore.settings import MIB, parse_durability

if TYPE_CHECKING:
    from uploader import CloudWriter
    from walstore.remote.appenders import RemoteProducer

APPEND_EXAMPLES = """\b
Examples:
  printf 'one\\ntwo\\n' | walstore append data/orders
  tail -f app.log | walstore append data/app --stream web --durability disk
  walstore dump data/orders | walstore append data/copy --format json
  producer | walstore append data/blobs --length-prefixed --tier s3://bucket/blobs
  producer | walstore append s3://bucket/events --layout chain
"""


class InputFormat(StrEnum):
    """What a line of the input is."""

    LINES = "lines"
    JSON = "json"


class Level(StrEnum):
    """The levels of durability."""

    MEMORY = Durability.MEMORY
    DISK = Durability.DISK
    CLOUD = Durability.CLOUD


def append(
    location: AnyLocation,
    *,
    length_prefixed: Annotated[
        bool,
        typer.Option(
            "--length-prefixed",
            help="Records are a big-endian u32 length and so many bytes, instead of lines.",
        ),
    ] = False,
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="What a line is: a value, or a record as 'walstore dump' writes it, with its key, stream, "
            "headers and time.",
        ),
    ] = InputFormat.LINES,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key-delimiter",
            metavar="TEXT",
            help="The key of a record is what its line has before this.",
        ),
    ] = None,
    time_delimiter: Annotated[
        str | None,
        typer.Option(
            "--time-delimiter",
            metavar="TEXT",
            help="The time of a record is what its line has before this: ISO 8601, or microseconds.",
        ),
    ] = None,
    crlf: Annotated[
        bool, typer.Option("--crlf", help="Lines end with CR LF; neither is part of a record.")
    ] = False,
    max_record_bytes: Annotated[
        int,
        typer.Option(
            "--max-record-bytes",
            metavar="N",
            min=1,
            max=MOST_RECORD_BYTES,
            help="Largest record; a larger one ends the input with an error.",
        ),
    ] = 16 * MIB,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Key of every record.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="Stream of every record.")
    ] = None,
    durability: Annotated[
        Level | None,
        typer.Option("--durability", help="What to wait for at the end; disk unless given."),
    ] = None,
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="URL", help="Ship the log to a store as well.")
    ] = None,
    layout: LayoutOption = None,
    alpha: Alpha = None,
    shards: Shards = None,
    take_over: TakeOver = False,
    as_json: AsJson = False,
) -> None:
    """Append records from stdin, a line each, and write the offsets they got to stdout.

    Creates the log if there is none. Records are written as they arrive, many to a commit. The newline
    is not part of a record; empty lines are empty records. To the address of a server it
    appends each record once, also if the connection is lost meanwhile. To a store URL it appends without a
    local log; other writers may do so at the same time, unless a local log ships there (exit code 4). SIGINT
    and SIGTERM end the input; the whole records read by then are appended, and the exit code is 0.
    """
    require_stdin()
    splitting = LengthPrefixed if length_prefixed else Lines
    splitter: Splitter = splitting(max_record_bytes)
    if key is not None and key_delimiter is not None:
        raise UsageError("give --key or --key-delimiter, not both")
    parser = _choose_parser(
        input_format, key_delimiter, time_delimiter, has_crlf=crlf, is_lines=not length_prefixed
    )
    if stream is not None and not 1 <= len(stream) <= MAX_NAME_CHARS:
        raise UsageError(f"--stream needs a name of 1 to {MAX_NAME_CHARS} characters")
    options = {"key": None if key is None else key.encode(), "stream": stream}
    placing = layout_arguments(layout, alpha, shards)
    if is_address(location):
        if durability is not None or tier is not None or take_over or placing:
            raise UsageError(
                "--durability, --tier, --layout and --take-over are for the owner of a log, not for clients"
            )
        done = run_async(append_to_server(location, splitter, parser, options))
    elif is_url(location):
        if durability is not None or tier is not None or take_over:
            raise UsageError("--durability, --tier and --take-over are for log directories")
        url = to_url(location, "append")
        done = run_async(append_to_store(url, splitter, parser, options, placing))
    else:
        if durability is Level.CLOUD and tier is None:
            raise UsageError("--durability cloud needs --tier URL")
        if placing and tier is None:
            raise UsageError("--layout, --alpha and --shards need --tier URL")
        if take_over and tier is None:
            raise UsageError("--take-over needs --tier URL")
        path, shipping = to_directory(location, "append"), None
        if tier is not None:
            from uploader import CloudTier

            shipping = CloudTier(to_url(tier, "--tier"), take_over=take_over, **placing)
        level = durability or Level.DISK
        done = run_async(_append(path, splitter, parser, options, level=level, tier=shipping))
    offsets = f"[{done['start']}, {done['limit']})"
    fields = [("offsets", offsets), ("records", done["records"]), ("bytes", done["bytes"])]
    print_result(done, fields, as_json=as_json)


def _choose_parser(
    input_format: InputFormat,
    key_delimiter: str | None,
    time_delimiter: str | None,
    *,
    has_crlf: bool,
    is_lines: bool,
) -> Parser:
    """Return what makes records of the input; UsageError for options that contradict each other."""
    is_json = input_format is InputFormat.JSON
    is_marked = has_crlf or key_delimiter is not None or time_delimiter is not None
    if is_marked and (is_json or not is_lines):
        raise UsageError(
            "--key-delimiter, --time-delimiter and --crlf are for lines that are values"
        )
    if is_json and not is_lines:
        raise UsageError("--format json is for lines, not for --length-prefixed")
    if key_delimiter == "" or time_delimiter == "":
        raise UsageError("a delimiter is never empty")
    if is_json:
        return partial(map, JsonParser())
    if is_marked:
        return partial(map, LineParser(has_crlf, _encoded(time_delimiter), _encoded(key_delimiter)))
    return plain_rows


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


async def _append(
    path: Path,
    splitter: Splitter,
    parser: Parser,
    options: dict[str, Any],
    *,
    level: str,
    tier: Tier | None,
) -> dict[str, Any]:
    most = splitter.max_record_bytes
    default = Settings(durability=Durability.DISK)
    settings = default.replace(
        max_record_bytes=most, channel_bytes=max(default.channel_bytes, most)
    )
    async with Wal.open(path, settings=settings, tier=tier) as wal:
        start, size = wal.tail, 0
        try:
            with stop_on_signal() as stop:
                async for values in read_records(splitter, stop):
                    size += await _append_all(wal, parser(values), options)
                if wal.tail > start:
                    await wal.wait_durable(wal.tail - 1, parse_durability(level))
        except asyncio.CancelledError:
            _complain_how_far(wal, start)
            raise
        except WalError:
            with suppress(WalError):  # of the input: the log itself continues
                if wal.tail > start:
                    await wal.wait_durable(wal.tail - 1, "disk")
            _complain_how_far(wal, start)
            raise
        return {
            "directory": str(path),
            "start": start,
            "limit": wal.tail,
            "records": wal.tail - start,
            "bytes": size,
        }


def _complain_how_far(wal: Wal, start: int) -> None:
    """Report how much of the input is in the log when the verb ends early."""
    limit = max(start, wal.durable_limit)
    text = f"{limit - start} records before this are on disk"
    if limit > start:
        text += f": [{start}, {limit})"
    if wal.tail > limit:
        text += f"; {wal.tail - limit} more were taken and may not be"
    complain(text)


async def _append_all(wal: Wal, rows: Iterator[Row], options: dict[str, Any]) -> int:
    """Append rows without waiting for each; return their bytes. Waits only while the channel is full."""
    size = 0
    for value, own in rows:
        chosen = {**options, **own} if own else options
        try:
            wal.append_nowait(value, **chosen)
        except WouldBlock:
            await wal.append(value, durability="memory", **chosen)
        size += len(value)
    return size


_GROUPS: Final = 16
"""Groups of records in flight at once; a group is what one read of stdin returned."""


async def append_to_store(
    url: str,
    splitter: Splitter,
    parser: Parser,
    options: dict[str, Any],
    placing: Mapping[str, Any],
) -> dict[str, Any]:
    """Append records until stdin ends or a signal comes; return what the verb reports.

    ``placing`` is the layout of a new log (``options.layout_arguments``).
    """
    from uploader import CloudWriter, WriterSettings

    most = splitter.max_record_bytes
    default = WriterSettings()
    settings = dataclasses.replace(
        default, max_record_bytes=most, pending_bytes=max(default.pending_bytes, 2 * most)
    )
    async with CloudWriter.open(url, settings=settings, **placing) as log:
        appending = _Appending(log, options)
        await appending.all(splitter, parser)
        return {"url": log.url, **appending.done(log.tail)}


async def append_to_server(
    address: str, splitter: Splitter, parser: Parser, options: dict[str, Any]
) -> dict[str, Any]:
    """Append records to a served log, each once, whatever becomes of the connection meanwhile."""
    async with connect_to(address) as log:
        producer = log.producer(f"walstore append {os.urandom(8).hex()}")
        appending = _Appending(producer, options)
        await appending.all(splitter, parser)
        return {"address": address, **appending.done(log.tail)}


@dataclasses.dataclass(slots=True)
class _Appending:
    """The records that were read and are being appended, in order."""

    _log: CloudWriter | RemoteProducer
    _options: dict[str, Any]
    _under_way: deque[asyncio.Task[None]] = dataclasses.field(default_factory=deque)
    records: int = 0
    """Records that are committed."""
    size_bytes: int = 0
    span: tuple[int, int] | None = None
    """From the first to the last of them. Other writers may have appended some of the records between."""

    async def all(self, splitter: Splitter, parser: Parser) -> None:
        """Append what stdin has, until it ends or a signal comes."""
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    with stop_on_signal() as stop:
                        async for values in read_records(splitter, stop):
                            await self.add(group, parser(values))
                except WalError as error:  # reported once what came before is committed
                    failure = error
        except BaseExceptionGroup as errors:
            failure = unwrap(errors)
        if failure is not None:
            complain(f"{self.records} records were committed before this")
            raise failure

    def done(self, tail: int) -> dict[str, Any]:
        """Return what the verb reports, of a log with this tail."""
        start, limit = self.span or (tail, tail)
        return {
            "start": start,
            "limit": limit,
            "records": self.records,
            "bytes": self.size_bytes,
        }

    async def add(self, group: asyncio.TaskGroup, found: Iterator[Row]) -> None:
        """Append rows, also those before an error; those with equal options together.

        Waits while enough groups are in flight.
        """
        rows: list[Row] = []
        try:
            rows.extend(found)  # what came before an error stays
        finally:
            for own, together in groupby(rows, itemgetter(1)):
                if len(self._under_way) == _GROUPS:
                    await asyncio.wait([self._under_way.popleft()])
                values = [value for value, _ in together]
                self._under_way.append(group.create_task(self._append(values, own)))

    async def _append(self, values: list[bytes], own: dict[str, Any]) -> None:
        found = await self._log.append_many(values, **{**self._options, **own})
        self.records += len(values)
        self.size_bytes += sum(map(len, values))
        start, limit = self.span or (found.start, found.stop)
        self.span = min(start, found.start), max(limit, found.stop)
