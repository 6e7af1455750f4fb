"""walstore append ends at a record that the log refuses, with the same promise whatever the target is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from uploader import CloudWriter
from walstore import Settings, Wal, WalStore, connect
from walstore.serve import Server

TARGETS = ("directory", "log of a store", "server", "store's server", "object store", "chain")
BEFORE, BEHIND = 500, 500


@contextlib.asynccontextmanager
async def target(kind: str, path: Path) -> AsyncIterator[tuple[str, ...]]:
    """Yield the arguments of ``walstore append`` that name a log without records."""
    if kind == "server":
        async with (
            Wal.open(path / "served", settings=Settings(max_record_bytes=4096)) as wal,
            Server.open(wal, unix=path / "s.sock") as server,
        ):
            yield (str(server.addresses[0]),)
    elif kind == "store's server":
        async with WalStore.open(path / "many") as store, Server.open(store, unix=path / "s.sock"):
            yield (f"unix://{path}/s.sock?log=orders",)
    elif kind == "log of a store":
        async with WalStore.open(path / "many") as store:
            await store.wal("orders")
        yield (str(path / "many" / "orders"),)
    elif kind == "directory":
        yield (str(path / "log"),)
    else:
        layout = ("--layout", "chain") if kind == "chain" else ()
        yield ((path / kind).as_uri(), *layout)


def line(number: int, **fields: Any) -> bytes:
    return json.dumps({"value": f"value {number}", **fields}).encode() + b"\n"


REFUSED = (
    ({"timestamp_us": -1}, "before 1970"),
    ({"timestamp_us": 1 << 63}, "time"),
    ({"timestamp_us": 4102444800000000}, "ahead|max_timestamp_lead_seconds"),  # in 2100
    ({"stream": ""}, "stream"),
    ({"stream": "s" * 257}, "1 to 256 characters"),
    ({"stream": "\ud800"}, "lone surrogate"),
    ({"key": "\ud800"}, "lone surrogate"),
    ({"headers": {"\ud800": ""}}, "lone surrogate"),
    ({"headers": {"h": 1}}, "neither text nor"),
    ({"headers": {"h": "x" * 5000}}, "bytes"),
    ({"value": None}, "neither text nor"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
async def test_nothing_behind_a_refused_record_is_in_the_log(
    cli: Cli, tmp_path: Path, kind: str
) -> None:
    limits = ("--max-record-bytes", "4096")
    async with target(kind, tmp_path) as place:
        length = 0
        for has_times, refused in ((False, REFUSED), (True, REFUSED[2:4])):
            for fields, why in refused:
                with case(fields, has_times):
                    times = [
                        {"timestamp_us": n} if has_times else {} for n in range(BEFORE + BEHIND)
                    ]
                    good = [line(n, **own) for n, own in enumerate(times)]
                    lines = [*good[:BEFORE], line(-1, **fields), *good[BEFORE:]]
                    done = await asyncio.to_thread(
                        cli, "append", *place, *limits, "--format", "json", stdin=b"".join(lines)
                    )
                    assert (done.code, done.out) == (1, b"")
                    assert f"line {BEFORE + 1}" in done.error
                    assert re.search(why, done.error)
                    span = f"[{length + 1}, {length + BEFORE + 1})"
                    how_far = rf"\({BEFORE} records before this are (committed|on disk): "
                    assert re.search(how_far + re.escape(f"{span}; none behind it)"), done.error)
                    found = await asyncio.to_thread(cli, "dump", place[0])
                    assert [row["value"] for row in found.rows[length:]] == [
                        f"value {n}" for n in range(BEFORE)
                    ]
                    length += BEFORE


async def close_a_stream(place: str) -> None:
    """Close the stream ``closed`` of a log, as its owner does, or a client."""
    opening: Any
    if place.startswith("file:"):
        opening = CloudWriter.open(place)
    else:
        opening = connect(place) if "://" in place else Wal.open(place)
    async with opening as log:
        await log.open_stream("closed")
        await log.close_stream("closed")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "server", "store's server", "object store"])
async def test_nothing_behind_a_closed_stream_is_in_the_log(
    cli: Cli, tmp_path: Path, kind: str
) -> None:
    """Only the log knows that it takes no such records."""
    async with target(kind, tmp_path) as (place,):
        await close_a_stream(place)
        lines = [line(n, stream=f"s{n % 3}") for n in range(20)]
        lines.insert(10, line(-1, stream="closed"))
        done = await asyncio.to_thread(
            cli, "append", place, "--format", "json", stdin=b"".join(lines)
        )
        assert (done.code, done.out) == (1, b"")
        assert "stream 'closed' is closed" in done.error
        assert "10 records before this are" in done.error
        assert "none behind it)" in done.error
        found = await asyncio.to_thread(cli, "dump", place)
        assert [row["value"] for row in found.rows] == [f"value {n}" for n in range(10)]


async def test_a_program_is_told_how_far_it_got(cli: Cli, tmp_path: Path) -> None:
    lines = line(0) + line(1, timestamp_us=-1)
    for kind in ("directory", "server"):
        async with target(kind, tmp_path) as place:
            done = await asyncio.to_thread(
                cli, "append", *place, "--format", "json", "--json", stdin=lines
            )
            told = json.loads(done.err)
            assert (told["exit_code"], told["outcome"]) == (1, "not_written")
            assert "line 2: its time is before 1970" in told["error"]
            assert "(1 records before this are " in told["error"]


async def test_null_is_what_a_record_does_not_have(cli: Cli, tmp_path: Path) -> None:
    """And the empty text is a key of its own, also after a round trip."""
    rows = (
        {"value": "", "key": None, "stream": None, "headers": None, "timestamp_us": None},
        {"value": "a", "key": "", "stream": "s", "headers": {"": ""}, "timestamp_us": 0},
    )
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    first, copy = tmp_path / "first", tmp_path / "copy"
    assert (
        await asyncio.to_thread(cli, "append", first, "--format", "json", stdin=lines)
    ).code == 0
    dumped = await asyncio.to_thread(cli, "dump", first)
    assert [(row["key"], row["stream"], row["headers"]) for row in dumped.rows] == [
        (None, None, {}),
        ("", "s", {"": ""}),
    ]
    done = await asyncio.to_thread(cli, "append", copy, "--format", "json", stdin=dumped.out)
    assert done.code == 0
    assert (await asyncio.to_thread(cli, "dump", copy)).out == dumped.out
    given = await asyncio.to_thread(
        cli, "append", tmp_path / "given", "--format", "json", "--key", "k", stdin=lines
    )
    assert given.code == 0
    found = await asyncio.to_thread(cli, "dump", tmp_path / "given")
    assert [row["key"] for row in found.rows] == ["k", ""]
