"""A log on a system that lacks what only Linux has, as macOS does: the same records, and real syncs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import run
from walstore import Wal, WrongLoopError

MISSING = """
import asyncio, errno, fcntl, json, os, socket, sys, tempfile
from pathlib import Path

synced, full = [], []
for module, names in (
    (os, ("fdatasync", "posix_fallocate", "RWF_NOWAIT", "posix_fadvise", "sched_getaffinity")),
    (fcntl, ("F_SETLEASE", "F_GETLEASE", "F_SETSIG", "F_OFD_SETLK")),
    (socket, ("TCP_INFO", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
real_fcntl, real_fsync = fcntl.fcntl, os.fsync

def fake_fcntl(descriptor, command, *more):
    if command == 51:
        full.append(descriptor)
        if REFUSES:
            raise OSError(errno.ENOTTY, "not supported")
        return real_fsync(descriptor)
    return real_fcntl(descriptor, command, *more)

def fsync(descriptor):
    synced.append(descriptor)
    return real_fsync(descriptor)

REFUSES = "refuses" in sys.argv[2]
if "full" in sys.argv[2]:
    fcntl.F_FULLFSYNC, fcntl.fcntl = 51, fake_fcntl
os.fsync = fsync

from walstore import Settings, Wal

async def main():
    small = Settings(segment_bytes=64 << 10, checkpoint_bytes=64 << 10)
    async with Wal.open(sys.argv[1], settings=small) as wal:
        before = len(synced), len(full)
        for number in range(10):
            await wal.append(b"%d" % number)
        after = len(synced), len(full)
        await wal.append_many([bytes(40 << 10)] * 3)
    async with Wal.open(sys.argv[1]) as wal:
        values = [record.value async for record in wal.reader(1, stop=11, follow=False)]
        assert values == [b"%d" % number for number in range(10)], values
        assert wal.tail == 14
    print(json.dumps([new - old for old, new in zip(before, after)]))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        pytest.param("neither", (10, 0), id="fsync where there is nothing better"),
        pytest.param("full", (0, 10), id="a full sync of macOS"),
        pytest.param("full, refuses", (10, 10), id="a file system that refuses a full sync"),
    ],
)
def test_a_log_without_what_linux_has(tmp_path: Path, kind: str, least: tuple[int, int]) -> None:
    """Each append that is acknowledged at level ``disk`` was synced in the best way there is."""
    done = run(MISSING, tmp_path / "log", kind, imports="")
    assert done.returncode == 0, done.stderr
    fsyncs, full = json.loads(done.stdout)
    assert fsyncs >= least[0]
    assert full >= least[1]


def test_without_asyncio_it_says_what_to_do(tmp_path: Path) -> None:
    """As in trio, whose tasks wait for other things: nothing is opened."""
    for opening in (Wal.open(tmp_path / "log"), Wal.open_readonly(tmp_path / "log")):
        with pytest.raises(WrongLoopError, match=r"asyncio\.run.*walstore\.sync"):
            opening.__await__().send(None)
        with pytest.raises(WrongLoopError, match="no event loop of asyncio"):
            opening.__aenter__().send(None)
    assert not (tmp_path / "log").exists()
