"""Seals and ends: of ours beside writers of wal3, which know neither."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.wal3.ledger import Ledger
from tests.wal3.ours import append, assert_sound, read
from tests.wal3.wal3 import Wal3, Wal3Error, numbered, pairs
from uploader import CloudWriter, destroy, seal
from uploader.format import layout
from walstore import LogNotFoundError, LogSealedError

pytestmark = [pytest.mark.wal3, pytest.mark.timeout(120)]

FRAGMENT = layout.FRAGMENT_FOLDER
MANIFEST = layout.MANIFEST


async def assert_sealed(url: str, wal3: Wal3, ledger: Ledger) -> None:
    """Assert that the log holds what was acknowledged, and that nobody appends to it."""
    found = await read(url)
    ledger.check(found)
    assert pairs(await wal3.read()) == pairs(found)
    await wal3.call("scrub")
    await assert_sound(url)
    with pytest.raises(Wal3Error):
        await wal3.open(create=False)
    with contextlib.suppress(Wal3Error):
        pytest.fail(f"appended at {await wal3.append(b'too late')}")
    with pytest.raises(LogSealedError):
        await append(url, b"too late")
    assert await read(url) == found
    assert await seal(url) == len(found) + 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("key", [FRAGMENT, MANIFEST])
async def test_we_seal_while_their_append_is_under_way(
    url: str, wal3: Wal3, second: Wal3, key: str, when: str
) -> None:
    """What they have put is published by the seal; what they have not is refused. None is lost."""
    ledger = Ledger()
    await wal3.open()
    await ledger.theirs(wal3, b"first")
    await wal3.stop(when, key)
    late = asyncio.create_task(ledger.theirs(wal3, b"late"))
    await wal3.stopped()
    end = await seal(url)
    await wal3.go()
    is_in_the_log = await late
    assert (await second.call("state"))["next"] == end
    was_put = (key, when) != (FRAGMENT, "before")
    assert [record.value for record in await read(url)] == [b"first", b"late"][: 1 + was_put]
    assert was_put or not is_in_the_log
    await assert_sealed(url, second, ledger)
    assert not await ledger.theirs(wal3, b"even later")
    await assert_sealed(url, second, ledger)


@pytest.mark.parametrize("rounds", range(5))
async def test_we_seal_beside_their_writers(
    url: str, wal3: Wal3, second: Wal3, rounds: int
) -> None:
    """Two of them, and one of ours, append as fast as they can until the log is sealed."""
    ledger = Ledger()
    await wal3.open()
    await second.open()
    enough = asyncio.Event()

    async def theirs(process: Wal3, name: bytes) -> None:
        for number in range(1000):
            done = await ledger.theirs(process, b"%s %d" % (name, number))
            if len(ledger.acknowledged) > 10 + 10 * rounds:
                enough.set()
            if not done and is_sealed:
                return

    async def ours() -> None:
        async with CloudWriter.open(url) as log:
            for number in range(1000):
                if not await ledger.ours(log, b"ours %d" % number) and is_sealed:
                    return

    is_sealed = False
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(theirs(wal3, b"one"))
        tasks.create_task(theirs(second, b"two"))
        tasks.create_task(ours())
        await enough.wait()
        await seal(url)
        is_sealed = True
    await assert_sealed(url, wal3, ledger)


async def test_they_read_and_copy_a_sealed_log(url: str, wal3: Wal3, tmp_path) -> None:
    await append(url, b"1", b"2", b"3")
    await seal(url)
    assert pairs(await wal3.read()) == numbered([b"1", b"2", b"3"])
    await wal3.call("scrub")
    await wal3.call("copy", to=str(tmp_path / "bucket" / "copy"))
    copy = (tmp_path / "bucket" / "copy").as_uri()
    assert pairs(await read(copy)) == numbered([b"1", b"2", b"3"])
    await append(copy, b"4")
    assert pairs(await read(copy)) == numbered([b"1", b"2", b"3", b"4"])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("key", [FRAGMENT, MANIFEST])
async def test_we_destroy_while_their_append_is_under_way(
    url: str, wal3: Wal3, key: str, when: str
) -> None:
    """It is not acknowledged, unless it was in the log before; nothing comes back."""
    await wal3.open()
    await wal3.append(b"first")
    await wal3.stop(when, key)
    late = asyncio.create_task(wal3.append(b"late"))
    await wal3.stopped()
    await destroy(url, confirm=True)
    await wal3.go()
    outcome = (await asyncio.gather(late, return_exceptions=True))[0]
    if (key, when) == (MANIFEST, "after"):
        assert outcome == 2
    else:
        assert isinstance(outcome, Wal3Error)
    with pytest.raises(LogNotFoundError):
        await read(url)
    with pytest.raises(Wal3Error):
        await wal3.append(b"later")
    # What came late goes when it is called again.
    assert (await destroy(url, confirm=True)).left == ()
    with pytest.raises(LogNotFoundError):
        await append(url, b"more")
