"""The pin of a fork: it holds as long as copying takes, and not for good."""

from __future__ import annotations

import pytest

from tests.cloud import FAST, URL
from tests.uploader.logs import begin
from uploader.care.admin.forking import ForkPin
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.garbage import Garbage
from uploader.layouts.log_session import open_session
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import postpone
from walstore.core.runtime.threads import Worker
from walstore.errors import OffsetTrimmedError, StorageUnavailableError
from walstore.testing import ManualClock

DAY_US = 86_400_000_000


@pytest.fixture
async def store():
    worker = Worker("test")
    found = MemoryStore()
    await begin(found, worker, 4)
    yield found
    worker.close()


async def pins(store: MemoryStore) -> list[CloudCursor]:
    return [
        CloudCursor.parse(
            (await store.get(listed.key)).data, name=layout.parse_cursor_path(listed.key)
        )
        async for listed in store.list(layout.CURSOR_FOLDER)
    ]


async def test_it_expires_and_is_renewed(store, clock: ManualClock) -> None:
    async with open_session(URL, store=store, retry=FAST, clock=clock) as source:
        pin = ForkPin(source, "memory://target")
        assert await pin.hold(None) is None
        (found,) = await pins(store)
        assert found.position == 1
        assert found.expires_us == clock.now_us() + DAY_US
        clock.advance(3599)
        await pin.renew()
        assert await pins(store) == [found]
        clock.advance(1)
        await pin.renew()
        (renewed,) = await pins(store)
        assert renewed.expires_us == clock.now_us() + DAY_US
        await pin.release()
        await pin.release()
        assert await pins(store) == []


async def test_it_stands_at_the_beginning_whatever_is_copied(store, clock) -> None:
    """The only cursor there is says what may go: all before it."""
    async with open_session(URL, store=store, retry=FAST, clock=clock) as source:
        assert await ForkPin(source, "memory://target").hold(5) == 5
        assert [found.position for found in await pins(store)] == [1]


async def test_a_collection_that_is_announced_goes_first(store, clock) -> None:
    pending = Garbage(start_seq_no=1, limit_seq_no=3, first_to_keep=5)
    await store.put_if_absent(layout.GARBAGE, pending.serialise())
    async with open_session(URL, store=store, retry=FAST, clock=clock) as source:
        pin = ForkPin(source, "memory://target")
        with pytest.raises(OffsetTrimmedError):
            await pin.hold(4)
        assert await pins(store) == []
        assert await pin.hold(7) == 7
        assert await pin.hold(None) == 5
        assert {found.position for found in await pins(store)} == {5}
        with pytest.raises(OffsetTrimmedError):
            await ForkPin(source, "memory://other").hold(4)
        assert [found.position for found in await pins(store)] == [5]


async def test_a_release_that_arrives_late_leaves_the_next_attempt_alone(store, clock) -> None:
    """No two attempts use one name; the one that succeeds removes what is left of the others."""
    slow = FaultyStore(store)
    slow.on("delete", postpone(slow.late))
    async with (
        open_session(URL, store=slow, retry=FAST, clock=clock) as late,
        open_session(URL, store=store, retry=FAST, clock=clock) as source,
    ):
        first = ForkPin(late, "memory://target")
        await first.hold(None)
        with pytest.raises(StorageUnavailableError):
            await first.release()
        second = ForkPin(source, "memory://target")
        await second.hold(None)
        await slow.deliver()
        assert len(await pins(store)) == 1
        await first.hold(None)
        await second.release()
        assert await pins(store) == []
