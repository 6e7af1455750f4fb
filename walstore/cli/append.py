"""walstore append: records from stdin into a log."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, TypeAlias

from walstore.cli.appending import append_to_directory, append_to_server, append_to_store
from walstore.cli.errors import UsageError
from walstore.cli.input import MOST_RECORD_BYTES, LengthPrefixed, Lines, Splitter, require_stdin
from walstore.cli.location import to_directory, to_url
from walstore.cli.options import (
    Alpha,
    AnyLocation,
    LayoutOption,
    Shards,
    TakeOver,
    layout_arguments,
    option,
)
from walstore.cli.report import Report
from walstore.cli.row import JsonParser, LineParser, Parser, plain_rows
from walstore.core.batches.conditions import MAX_NAME_CHARS
from walstore.core.settings import MIB
from walstore.location import is_address, is_url

APPEND_EXAMPLES = """\
  printf 'one\\ntwo\\n' | walstore append data/orders
  tail -f app.log | walstore append data/app --stream web --durability disk
  walstore dump data/orders | walstore append data/copy --format json
  producer | walstore append data/blobs --length-prefixed --tier s3://bucket/blobs
  producer | walstore append s3://bucket/events --layout chain
"""


InputFormat: TypeAlias = Literal["lines", "json"]
Level: TypeAlias = Literal["memory", "disk", "cloud"]
"""How safe records must be; these are values of :class:`walstore.Durability`."""


async def append(
    location: AnyLocation,
    *,
    length_prefixed: Annotated[
        bool,
        option(
            "--length-prefixed",
            "Records are a big-endian u32 length and that many bytes, instead of lines.",
        ),
    ] = False,
    input_format: Annotated[
        InputFormat,
        option(
            "--format",
            "What a line is: a value, or a record as 'walstore dump' writes it, with its key, stream, "
            "headers and time.",
        ),
    ] = "lines",
    key_delimiter: Annotated[
        str | None,
        option("--key-delimiter TEXT", "The part of a line before this is the record's key."),
    ] = None,
    time_delimiter: Annotated[
        str | None,
        option(
            "--time-delimiter TEXT",
            "The part of a line before this is the record's time: ISO 8601, or microseconds.",
        ),
    ] = None,
    crlf: Annotated[
        bool, option("--crlf", "Lines end with CR LF; neither is part of a record.")
    ] = False,
    max_record_bytes: Annotated[
        int,
        option(
            "--max-record-bytes N",
            "Largest record; a larger one ends the input with an error.",
            min=1,
            max=MOST_RECORD_BYTES,
        ),
    ] = 16 * MIB,
    key: Annotated[str | None, option("--key TEXT", "Key of every record.")] = None,
    stream: Annotated[str | None, option("--stream NAME", "Stream of every record.")] = None,
    durability: Annotated[
        Level | None, option("--durability", "What to wait for at the end; default disk.")
    ] = None,
    tier: Annotated[str | None, option("--tier URL", "Ship the log to a store as well.")] = None,
    layout: LayoutOption = None,
    alpha: Alpha = None,
    shards: Shards = None,
    take_over: TakeOver = False,
) -> Report:
    """Append records from stdin, one per line, and write their offsets to stdout.

    Creates a missing log. Records are written as they arrive, many to a commit. The newline
    is not part of a record; empty lines are empty records. With the address of a server, each record
    is appended once, even if the connection is lost. With a store URL, no local log is used; other
    writers may append concurrently, unless a local log ships there (exit code 4). SIGINT
    and SIGTERM end the input; the complete records read by then are appended, and the exit code is 0.
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
        done = await append_to_server(location, splitter, parser, options)
    elif is_url(location):
        if durability is not None or tier is not None or take_over:
            raise UsageError("--durability, --tier and --take-over are for log directories")
        url = to_url(location, "append")
        done = await append_to_store(url, splitter, parser, options, placing)
    else:
        if durability == "cloud" and tier is None:
            raise UsageError("--durability cloud needs --tier URL")
        if placing and tier is None:
            raise UsageError("--layout, --alpha and --shards need --tier URL")
        if take_over and tier is None:
            raise UsageError("--take-over needs --tier URL")
        path, shipping = to_directory(location, "append"), None
        if tier is not None:
            from uploader import CloudTier

            shipping = CloudTier(to_url(tier, "--tier"), take_over=take_over, **placing)
        level = durability or "disk"
        done = await append_to_directory(
            path, splitter, parser, options, level=level, tier=shipping
        )
    offsets = f"[{done['start']}, {done['limit']})"
    fields = [("offsets", offsets), ("records", done["records"]), ("bytes", done["bytes"])]
    return Report(done, fields)


def _choose_parser(
    input_format: InputFormat,
    key_delimiter: str | None,
    time_delimiter: str | None,
    *,
    has_crlf: bool,
    is_lines: bool,
) -> Parser:
    """Return what makes records of the input; UsageError for options that contradict each other."""
    is_json = input_format == "json"
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
