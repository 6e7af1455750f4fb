"""Telling many appends that they are committed, without holding up the loop."""

from __future__ import annotations

import asyncio

from uploader.write.pending_fragment import PendingFragment
from uploader.write.teller import Teller
from uploader.write.telling import AT_ONCE
from walstore.batches.append_request import make_group


def parcel(start: int, count: int) -> tuple[PendingFragment, list[asyncio.Future[int]]]:
    found, waiters = PendingFragment(), []
    for _ in range(count):
        waiters.append(asyncio.get_running_loop().create_future())
        found.add(make_group([b"1", b"2"], None, None, None, None), waiters[-1], None)
    found.place(1, start)
    return found, waiters


async def test_in_order_some_at_a_time() -> None:
    """Each append learns its own offset; a caller that has gone is passed over."""
    loop = asyncio.get_running_loop()
    teller = Teller(loop)
    first, waiters = parcel(1, AT_ONCE + 5)
    second, others = parcel(1000, 1)
    waiters[3].cancel()
    teller.tell(first)
    teller.tell(second)
    decided = first.wait_decided(loop), second.wait_decided(loop)
    await asyncio.sleep(0)
    assert [waiter.done() for waiter in waiters] == [True] * AT_ONCE + [False] * 5
    await asyncio.wait(decided)
    assert [waiter.result() for waiter in waiters if not waiter.cancelled()] == [
        1 + 2 * at for at in range(AT_ONCE + 5) if at != 3
    ]
    assert others[0].result() == 1000
