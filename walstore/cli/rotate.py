"""walstore rotate: seal the active segment now."""

from __future__ import annotations

import asyncio

from walstore import Wal
from walstore.cli.location import connect_to, to_directory
from walstore.cli.options import LocalOrServed
from walstore.cli.report import Report
from walstore.core.files.log_files import LogSnapshot
from walstore.location import is_address

ROTATE_EXAMPLES = """\
  walstore rotate unix:///run/orders.sock
  walstore rotate data/orders --json
"""


async def rotate(location: LocalOrServed) -> Report:
    """Seal the active segment and begin the next: retention, copies and uploads see its records then.

    Without records in the active segment nothing happens. A directory is opened for writing, so the exit code
    is 4 if a program has it; its address does it then.
    """
    if is_address(location):
        async with await connect_to(location) as remote:
            before = (await remote.statistics()).segments
            await remote.rotate()
            now = await remote.statistics()
    else:
        path = to_directory(location, "rotate")
        await asyncio.to_thread(lambda: LogSnapshot.open(path).close())  # else one would be made
        async with Wal.open(path) as wal:
            before = wal.statistics().segments
            await wal.rotate()
            now = wal.statistics()
    done = {"location": location, "sealed": now.segments > before, "segments": now.segments}
    said = "sealed" if done["sealed"] else "it had no records"
    return Report(
        done, [("location", location), ("active segment", said), ("segments", now.segments)]
    )
