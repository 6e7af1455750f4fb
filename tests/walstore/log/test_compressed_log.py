"""Logs that compress: what is read is what was appended, and what is damaged or missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs
from tests.local import SMALL, check_contiguous, contents, read_all, segments
from walstore import CorruptionError, Wal
from walstore.core.format import codec
from walstore.core.format.codec import BodyError
from walstore.core.settings import MIB

ZSTD = SMALL.replace(compression="zstd")


async def test_text_takes_less_and_is_read_as_it_was(log_directory: Path) -> None:
    values = [b"action=click page=/item/%d " % n * 20 for n in range(400)]
    sizes = {}
    for name, settings in (("plain", SMALL), ("zstd", ZSTD)):
        async with Wal.open(log_directory / name, settings=settings) as wal:
            await wal.append_many(values)
            assert [record.value for record in await read_all(wal)] == values
            sizes[name] = wal.statistics().appended_bytes
        assert [record.value for record in await contents(log_directory / name)] == values
    assert sizes["zstd"] * 5 < sizes["plain"]


async def test_the_setting_may_change_between_openings(log_directory: Path) -> None:
    for settings in (SMALL, ZSTD, SMALL, ZSTD):
        async with Wal.open(log_directory, settings=settings) as wal:
            for n in range(20):
                await wal.append(b"%d " % n * 1000, key=b"k", stream="s", headers={"h": b"1"})
    check_contiguous(found := await contents(log_directory))
    assert len(found) == 80
    assert len(segments(log_directory)) > 1


async def test_a_body_that_is_not_what_it_says_is_corruption(log_directory, monkeypatch) -> None:
    async with Wal.open(log_directory, settings=ZSTD.replace(cache_bytes=0)) as wal:
        await wal.append(b"text " * 1000)

        def refuse(data: object, size: int) -> memoryview:
            raise BodyError("a compressed body is damaged")

        monkeypatch.setattr(codec, "decompress", refuse)
        with pytest.raises(CorruptionError, match="compressed body"):
            await read_all(wal)
        monkeypatch.undo()
        assert len(await read_all(wal)) == 1


WITHOUT = """
import asyncio, sys
sys.modules["zstandard"] = sys.modules["compression.zstd"] = None
from walstore import FormatVersionError, InvalidSettingsError, Settings, Wal

async def main():
    try:
        await Wal.open("new", settings=Settings(compression="zstd"))
    except InvalidSettingsError as error:
        assert "walstore[zstd]" in str(error), error
    else:
        raise AssertionError("it opened")
    async with Wal.open("log") as wal:
        try:
            await anext(wal.reader(follow=False))
        except FormatVersionError as error:
            assert "walstore[zstd]" in str(error), error
        else:
            raise AssertionError("it was read")

asyncio.run(main())
"""


@pytest.mark.slow
async def test_without_a_library_opening_and_reading_say_what_is_missing(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=ZSTD.replace(segment_bytes=1 * MIB)) as wal:
        await wal.append(b"text " * 1000)
    done = programs.run(WITHOUT, directory=tmp_path)
    assert done.returncode == 0, done.stderr
