"""L9 and its kin: calls fail, and every waiter learns the truth about its record.

One log is driven through the same work again and again; each time another call on the file system fails,
once or from then on, before it does anything, half-way, or after it did all. What each caller was told is
then compared with what the log holds when it is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.local import (
    SMALL,
    UnsyncedFileSystem,
    check_contiguous,
    gather_outcomes,
    open_descriptors,
    read_all,
    segments,
)
from walstore import DiskFullError, Wal, WalClosedError, WalError
from walstore.core.format import frame, segment
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem

FS = UnsyncedFileSystem()
SETTINGS = SMALL.replace(channel_bytes=70 * KIB)


@dataclass
class Work:
    """Appends from several tasks, and what each was told."""

    wal: Wal
    told: list[tuple[list[bytes], range | WalError]] = field(default_factory=list)

    async def run(self) -> None:
        await asyncio.gather(self._appends(b"a"), self._appends(b"b"), self._groups(), self._rest())

    async def _call(self, values: list[bytes], *, many: bool) -> None:
        try:
            if many:
                span = await self.wal.append_many(values)
            else:
                offset = await self.wal.append(values[0])
                span = range(offset, offset + 1)
        except WalError as error:
            self.told.append((values, error))
        else:
            self.told.append((values, span))

    async def _appends(self, name: bytes) -> None:
        for n in range(6):
            await self._call([b"%s%d;" % (name, n) * 1500], many=False)

    async def _groups(self) -> None:
        for n in range(4):
            await self._call([b"g%d.%d;" % (n, m) * 900 for m in range(4)], many=True)

    async def _rest(self) -> None:
        with contextlib.suppress(WalError):
            await self.wal.rotate()
            await self.wal.flush()


async def check(directory: Path, told: list[tuple[list[bytes], range | WalError]]) -> None:
    """Compare what callers were told with what a new opening finds."""
    assert open_descriptors(directory) == []
    async with Wal.open(directory, settings=SETTINGS, fs=FS) as wal:
        records = await read_all(wal)
        check_contiguous(records)
        by_offset = {record.offset: record.value for record in records}
        by_value = {record.value: record.offset for record in records}
        assert len(by_value) == len(records), "nothing is there twice"
        for values, what in told:
            present = [value in by_value for value in values]
            if isinstance(what, range):
                assert [by_offset.get(offset) for offset in what] == values
            elif what.outcome == "durable":
                assert all(present)
            elif what.outcome == "not_written":
                assert not any(present)
            else:
                assert all(present) or not any(present), "a group is one"
        offset = await wal.append(b"after")
        assert offset == len(records) + 1
    async with Wal.open(directory, settings=SETTINGS, fs=FS) as wal:
        assert (await read_all(wal))[-1].value == b"after"


async def live(directory: Path, faulty: FaultyFileSystem) -> Work:
    wal = await Wal.open(directory, settings=SETTINGS, fs=faulty)
    work = Work(wal)
    try:
        await work.run()
    finally:
        with contextlib.suppress(WalError):
            await wal.aclose()
    return work


async def calls_of(directory: Path) -> int:
    """Return how many calls the work makes after the log is open."""
    faulty = FaultyFileSystem(FS)
    async with Wal.open(directory, settings=SETTINGS, fs=faulty) as wal:
        before = len(faulty.calls)
        await Work(wal).run()
    return len(faulty.calls) - before


async def fail_each(scratch: Path, first: int, step: int, **how) -> set[str]:
    """Fail one call after the other; return the kinds of calls that failed."""
    total = await calls_of(scratch / "sound")
    kinds: set[str] = set()
    for nth in range(first, total + 1, step):
        directory = scratch / f"log-{nth}"
        faulty = FaultyFileSystem(FS)
        wal = await Wal.open(directory, settings=SETTINGS, fs=faulty)
        before = len(faulty.calls)
        faulty.fail("*", nth=nth, **how)
        work = Work(wal)
        await work.run()
        with contextlib.suppress(WalError):
            await wal.aclose()
        if before + nth - 1 < len(faulty.calls):
            kinds.add(faulty.calls[before + nth - 1].kind)
        await check(directory, work.told)
    return kinds


HOW = {
    "once": {"error": errno.EIO},
    "for good": {"error": errno.EIO, "times": None},
    "half done": {"error": errno.ENOSPC, "written_bytes": 777},
    "although done": {"error": errno.EIO, "happened": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
async def test_L9_some_calls_fail(scratch: Path, how: str) -> None:
    await fail_each(scratch, 3, 7, **HOW[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
async def test_L9_every_call_fails(scratch: Path, how: str) -> None:
    kinds = await fail_each(scratch, 1, 1, **HOW[how])
    assert {"pwrite", "datasync", "allocate", "truncate", "open", "replace", "close"} <= kinds


async def test_the_work_is_sound(scratch: Path) -> None:
    work = await live(scratch / "log", FaultyFileSystem(FS))
    assert len(work.told) == 16
    assert all(isinstance(what, range) for _, what in work.told)
    assert len(segments(scratch / "log")) > 2
    await check(scratch / "log", work.told)


# -- a full disk -----------------------------------------------------------------------------------


def parses_to_its_end(path: Path) -> bool:
    """Return whether an unsealed segment is whole frames up to its last used byte."""
    data = path.read_bytes()
    view, at = memoryview(data), segment.HEADER_BYTES
    salt = segment.decode_header(data[: segment.HEADER_BYTES], str(path)).salt
    while (found := frame.parse_header(view, at)) is not None and frame.is_whole(
        view, found, frame.place(salt, at)
    ):
        at = found.end
    return not any(data[at:])


async def fill(wal: Wal, producers: int = 20) -> tuple[dict[int, bytes], list[BaseException]]:
    """Append from many tasks until every one of them was refused."""
    acknowledged: dict[int, bytes] = {}
    errors: list[BaseException] = []

    async def produce(name: int) -> None:
        for n in range(10_000):
            value = b"%d-%d " % (name, n) * 50
            acknowledged[await wal.append(value)] = value

    outcomes = await gather_outcomes(produce(name) for name in range(producers))
    errors += [found for found in outcomes if isinstance(found, BaseException)]
    return acknowledged, errors


def check_full(acknowledged: dict[int, bytes], errors: list[BaseException]) -> None:
    assert len(acknowledged) > 50
    assert len(errors) == 20
    assert any(isinstance(error, DiskFullError) for error in errors)
    for error in errors:
        assert isinstance(error, DiskFullError | WalClosedError)
        assert error.outcome == "not_written"


@pytest.mark.parametrize("room", [150, 333, 500, 801])
async def test_L9_disk_full(log_directory: Path, faulty: FaultyFileSystem, room: int) -> None:
    """Append raises, nothing acknowledged is lost, the file parses, and space brings the log back."""
    wal = await Wal.open(log_directory, fs=faulty)
    faulty.limit_space(room * KIB)
    acknowledged, errors = await fill(wal)
    check_full(acknowledged, errors)
    with pytest.raises(WalClosedError, match=r"No space left"):
        await wal.append(b"more")
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert parses_to_its_end(segments(log_directory)[-1])

    faulty.limit_space(0)  # not even room for another checkpoint: the log can be read and trimmed
    wal = await Wal.open(log_directory, fs=faulty)
    assert len(await read_all(wal)) == len(acknowledged)
    with pytest.raises(DiskFullError):
        await wal.append(b"refused")
    await wal.aclose()

    faulty.limit_space(None)
    async with Wal.open(log_directory, fs=faulty) as wal:
        records = {record.offset: record.value for record in await read_all(wal)}
        assert records == acknowledged
        assert await wal.append(b"after") == len(acknowledged) + 1


async def test_L9_a_limit_of_the_kernel(log_directory: Path) -> None:
    """The same without a fake: the system refuses to let the file grow."""
    wal = await Wal.open(log_directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_001, hard))
    try:
        acknowledged, errors = await fill(wal)
        with pytest.raises(WalClosedError):
            await wal.aclose()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_full(acknowledged, errors)
    assert parses_to_its_end(segments(log_directory)[-1])
    async with Wal.open(log_directory) as wal:
        assert {r.offset: r.value for r in await read_all(wal)} == acknowledged
        assert await wal.append(b"after") == len(acknowledged) + 1


async def test_L9_a_reserve_that_cannot_be_had_is_done_without(log_directory, faulty) -> None:
    async with Wal.open(log_directory, fs=faulty) as wal:
        faulty.fail("allocate", errno.ENOSPC, times=None)
        for n in range(50):
            await wal.append(b"%d" % n * 1000)
    async with Wal.open(log_directory) as wal:
        assert len(await read_all(wal)) == 50
