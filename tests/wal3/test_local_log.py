"""A local log that ships to where a program of wal3 writes: it stops, and harms nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wal3.ours import assert_sound, read
from tests.wal3.wal3 import Wal3, pairs
from uploader import CloudTier
from walstore import Wal
from walstore.errors import ContentionError

pytestmark = [pytest.mark.wal3, pytest.mark.timeout(120)]


async def test_a_program_of_wal3_appends_behind_it(tmp_path: Path, url: str, wal3: Wal3) -> None:
    """Its offsets are taken then. What it cannot ship stays on its disk."""
    async with Wal.open(tmp_path / "local", tier=CloudTier(url)) as wal:
        await wal.append(b"1", durability="cloud")
        await wal3.open(create=False)
        assert await wal3.append(b"theirs") == 2
        with pytest.raises(ContentionError) as caught:
            await wal.append(b"2", durability="cloud")
        assert caught.value.outcome == "durable"
        assert [record.value async for record in wal.reader("earliest", follow=False)] == [
            b"1",
            b"2",
        ]
    assert pairs(await read(url)) == [(1, b"1"), (2, b"theirs")]
    assert pairs(await wal3.read()) == [(1, b"1"), (2, b"theirs")]
    await wal3.call("scrub")
    await assert_sound(url)
    await wal3.append(b"more")
    with pytest.raises(ContentionError, match="prefix of its own"):
        async with Wal.open(tmp_path / "local", tier=CloudTier(url)) as wal:
            await wal.append(b"3", durability="cloud")
    assert pairs(await read(url)) == [(1, b"1"), (2, b"theirs"), (3, b"more")]


async def test_a_new_one_goes_on_behind_what_they_wrote(
    tmp_path: Path, url: str, wal3: Wal3
) -> None:
    """It takes the log over. wal3 does not know that, and stops it with its next append."""
    await wal3.open()
    await wal3.append(b"theirs")
    async with Wal.open(tmp_path / "local", tier=CloudTier(url)) as wal:
        assert await wal.append(b"ours", durability="cloud") == 2
        assert pairs(await wal3.read()) == [(1, b"theirs"), (2, b"ours")]
        assert await wal3.append(b"more") == 3
        with pytest.raises(ContentionError) as caught:
            await wal.append(b"too late", durability="cloud")
        assert caught.value.outcome == "durable"
    assert pairs(await read(url)) == [(1, b"theirs"), (2, b"ours"), (3, b"more")]
    await wal3.call("scrub")
    await assert_sound(url)
