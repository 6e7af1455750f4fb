"""Telling a local log what is published: at once, or bit by bit if appends wait for it."""

from __future__ import annotations

import asyncio

from tests.cloud import MemorySource
from uploader.write.announcer import Announcer
from uploader.write.telling import AT_ONCE


async def test_at_once_if_nobody_waits() -> None:
    source = MemorySource()
    announcer = Announcer(source, asyncio.get_running_loop())
    announcer.announce(10_000)
    await asyncio.sleep(0)
    assert source.uploaded_limit == 10_000
    await announcer.wait_told()


async def test_bit_by_bit_if_appends_wait() -> None:
    """The loop does other things in between; a later announcement goes on where this one is."""
    source = MemorySource()
    source.hurry()
    announcer = Announcer(source, asyncio.get_running_loop())
    announcer.announce(1 + 3 * AT_ONCE)
    await asyncio.sleep(0)
    assert source.uploaded_limit == 1 + AT_ONCE
    announcer.announce(1 + 4 * AT_ONCE)
    announcer.announce(1)
    await announcer.wait_told()
    assert source.uploaded_limit == 1 + 4 * AT_ONCE
