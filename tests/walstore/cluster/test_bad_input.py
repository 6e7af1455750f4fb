"""Files of a copy that are not as they were written: the log goes on, and one line says what helps."""

from __future__ import annotations

import errno
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c

from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.cluster.replication.cluster import values
from tests.walstore.cluster.replication.test_damage import fill
from walstore import Wal
from walstore.core.files.directory import REMAKE
from walstore.core.format.segment import HEADER_BYTES
from walstore.testing import FaultyFileSystem
from walstore.testing.calls import Call, failure

pytestmark = pytest.mark.timeout(60)
_ATTEMPTS = 5
"""So often a copy is asked for before its lines are counted."""


# -- faults ----------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00garbage" * 50)


def deep(path: Path) -> None:
    """JSON that no parser takes."""
    path.write_bytes(b"[" * 200_000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    """As a crash leaves a cell to which nothing was stored."""
    path.write_bytes(bytes(path.stat().st_size))


def truncated(path: Path) -> None:
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[: len(data) // 2])


def truncated_alone(path: Path) -> None:
    """Nothing tells what the file had."""
    (path.parent / "CHECKPOINT").unlink()
    truncated(path)


def missing(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def a_file(path: Path) -> None:
    """Instead of the directory."""
    shutil.rmtree(path)
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    path.write_bytes(data)


def flipped_alone(path: Path) -> None:
    """Nothing tells that it was whole but how far it was synced."""
    (path.parent / "CHECKPOINT").unlink()
    flipped(path)


def flipped_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def newer(path: Path) -> None:
    if path.name == "PROMISE":
        path.write_bytes(b'{"version": 9}')
        return
    data = bytearray(path.read_bytes())
    data[12:14] = (9).to_bytes(2, "little")  # behind the magic bytes and the CRC
    data[8:12] = crc32c(bytes(data[12:HEADER_BYTES])).to_bytes(4, "little")
    path.write_bytes(data)


def unreadable(path: Path) -> None:
    """The file system does it; see :func:`disk_with`."""


class Case(NamedTuple):
    """A file of a copy, what became of it, and what is said of it; nothing if the copy still counts."""

    name: str
    fault: Callable[[Path], None]
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'directory'}-{self.fault.__name__}"


PROMISE = "the promise of this copy is damaged"
NOTE = "what was noted of this copy is damaged"
NONE = "not a walstore segment"
DIRECTORY = "Is a directory"
FOREIGN = "a foreign file is named like a segment; move it away"
CASES = [
    *(Case("PROMISE", fault, PROMISE) for fault in (garbage, deep, empty, truncated)),
    Case("PROMISE", missing),
    Case("PROMISE", newer, "the promise is newer"),
    *(
        Case(name, fault)
        for name in ("CHECKPOINT", "LOCK")
        for fault in (garbage, empty, truncated, missing)
    ),
    *(Case("SYNCED", fault, NOTE) for fault in (garbage, truncated)),
    *(Case("SYNCED", fault) for fault in (empty, zeroed, missing)),
    *(Case("DURABLE", fault) for fault in (garbage, empty)),
    *(
        Case(name, fault)
        for name in ("mended.tmp", "spare", "PROMISE.tmp")
        for fault in (garbage, empty)
    ),
    *(
        Case(name, directory, DIRECTORY)
        for name in ("PROMISE", "SYNCED", "CHECKPOINT", "DURABLE", "LOCK", "mended.tmp")
    ),
    Case("spare", directory),
    *(
        Case("last.wal", fault, words)
        for fault, words in (
            (garbage, NONE),
            (empty, NONE),
            (flipped_header, "segment header is damaged"),
        )
    ),
    *(
        Case(name, fault, words)
        for name in ("first.wal", "middle.wal", "last.wal")
        for fault, words in (
            (newer, "segment was written by a newer version"),
            (directory, DIRECTORY),
        )
    ),
    Case("last.wal", missing, "segments are missing at the end of the log"),
    *(
        Case("last.wal", fault, "were synced here, and are damaged or gone")
        for fault in (truncated, flipped_alone)
    ),
    Case("", a_file, "is not a directory; a log needs one of its own"),
    *(Case("foreign.wal", fault, FOREIGN) for fault in (garbage, directory)),
    *(
        Case(name, unreadable, "Permission denied")
        for name in ("PROMISE", "SYNCED", "CHECKPOINT", "LOCK", "last.wal")
    ),
]
MENDED = [
    Case(name, fault)
    for name in ("first.wal", "middle.wal")
    for fault in (flipped, truncated, truncated_alone, garbage, empty, flipped_header, missing)
]
LEADING = [
    *(Case("PROMISE", fault, PROMISE) for fault in (garbage, deep)),
    *(Case("SYNCED", fault, NOTE) for fault in (garbage, truncated)),
    Case("CHECKPOINT", garbage),
    Case("CHECKPOINT", directory, DIRECTORY),
    Case("middle.wal", directory, DIRECTORY),
    *MENDED,
]


# -- the cluster -----------------------------------------------------------------------------


async def filled(cluster: Machines) -> list[bytes]:
    """Make a log of several segments that all have, led by the first machine; return its values."""
    await cluster.apply(copies=tuple(one.address for one in cluster.all))
    await cluster.led(by=cluster.all[0])
    wal = led(cluster.all[0])
    found = await fill(wal)
    await until(lambda: all(copy.lag == 0 for copy in wal.statistics().copies))
    for machine in cluster.all[1:]:
        await until((machine.path / "orders" / "CHECKPOINT").exists)
    return found


def led(machine: Machine) -> Wal:
    wal = machine.led()
    assert wal is not None
    return wal


def place_of(machine: Machine, name: str) -> Path:
    """Return the path of a file, by its name or by which segment it is."""
    segments = sorted((machine.path / "orders").glob("0*.wal"))
    assert len(segments) > 2
    chosen = {"first.wal": 0, "middle.wal": 1, "last.wal": -1}
    return segments[chosen[name]] if name in chosen else machine.path / "orders" / name


def disk_with(case: Case, path: Path) -> FaultyFileSystem | None:
    """Return a disk on which a file cannot be read, if that is the case: root may read everything."""
    if case.fault is not unreadable:
        return None
    disk = FaultyFileSystem()

    def refuse(call: Call) -> None:
        if call.path.name == path.name and call.kind in ("open", "read", "lock", "view_cell"):
            raise failure(errno.EACCES, call.path)

    disk.before_each(refuse)
    return disk


async def asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until the machine's copy was asked for several times."""
    assert machine.member is not None
    node, times = machine.member.node, 0
    inner = node.call

    def call(*arguments: Any) -> Any:
        nonlocal times
        times += 1
        return inner(*arguments)

    monkeypatch.setattr(node, "call", call)
    await until(lambda: times >= _ATTEMPTS)


def check_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings: each is there once, and none has a traceback."""
    records = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert [one.getMessage() for one in records if one.exc_info] == []
    counted = Counter(one.getMessage() for one in records)
    assert [text for text, times in counted.items() if times > 1] == []
    assert not any("the server failed" in text for text in counted)
    return list(counted)


async def check_log(cluster: Machines, expected: list[bytes]) -> None:
    wal = led(await cluster.led())
    await wal.append(b"more")
    expected.append(b"more")
    assert await values(wal) == expected


async def check_told(
    cluster: Machines, bad: Machine, case: Case, path: Path, lines: list[str]
) -> None:
    """Both ends say which file it is, and what to do."""
    here = [text for text in lines if text.startswith("the copy of orders here does not count: ")]
    there = [
        text
        for text in lines
        if text.startswith(f"the copy at {bad.address} does not count: ")
        and "this machine is starting" not in text  # which is what the leader may meet first
    ]
    assert (len(here), len(there)) == (1, 1)
    member = (await cluster.led()).member
    assert member is not None
    view = member.view  # as 'walstore logs list' prints it
    await until(lambda: case.words in view.leaders["orders"].missing.get(bad.address, ""))
    listed = view.leaders["orders"].missing[bad.address]
    known = path if case.fault is not missing else path.parent
    for text in (*here, *there, listed):
        assert case.words in text
        assert str(known) in text
        assert REMAKE in text or "check owner and mount" in text or case.fault is a_file


async def counts(cluster: Machines, bad: Machine) -> None:
    """Wait until the copy of a machine counts."""

    def is_present() -> bool:
        leader = cluster.leader()
        if leader is None or leader is bad:
            return leader is bad
        copies = {one.address: one for one in led(leader).statistics().copies}
        return copies[bad.address].is_present

    await until(is_present)


def empty_as_told(bad: Machine) -> None:
    if (bad.path / "orders").is_file():
        (bad.path / "orders").unlink()
        return
    for path in (bad.path / "orders").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


# -- the matrix ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, *MENDED], ids=str)
async def test_a_file_of_a_copy(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Machines(tmp_path) as cluster:
        before = await filled(cluster)
        bad = cluster.all[1]
        await bad.stop()
        path = place_of(bad, case.name)
        disk = disk_with(case, path)
        if disk is not None:
            bad.options["fs"] = disk
        case.fault(path)
        caplog.clear()
        await bad.start()
        await check_log(cluster, before)
        await asked(bad, monkeypatch)
        if case.words:
            await check_told(cluster, bad, case, path, check_lines(caplog))
            if disk is not None:
                disk.before_each(None)
            empty_as_told(bad)
        elif case not in MENDED:
            assert not [
                text
                for text in check_lines(caplog)
                if "does not count" in text and "is starting" not in text
            ]
        await counts(cluster, bad)
        await check_log(cluster, before)


@pytest.mark.parametrize("case", LEADING, ids=str)
async def test_a_file_of_the_machine_that_should_lead(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It leads only with a log that is whole, or that it can repair: everything stays readable."""
    async with Machines(tmp_path) as cluster:
        before = await filled(cluster)
        for machine in cluster.all:
            await machine.stop()
        bad = cluster.all[0]
        path = place_of(bad, case.name)
        case.fault(path)
        caplog.clear()
        for machine in cluster.all:
            await machine.start()
        await check_log(cluster, before)
        lines = [text for text in check_lines(caplog) if "cannot be led" in text]
        if case.words:
            assert [(case.words in text, str(path) in text) for text in lines] == [(True, True)]
            empty_as_told(bad)
        await counts(cluster, bad)
        await check_log(cluster, before)
