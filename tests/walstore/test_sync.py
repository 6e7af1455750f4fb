"""walstore.sync: an opened log and a served one, from threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import walstore.sync
from walstore import (
    CursorMovedError,
    InvalidSettingsError,
    WalClosedError,
    WalLockedError,
    WrongLoopError,
)
from walstore.sync import BlockingLog


@pytest.fixture(params=["opened", "served"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockingLog]:
    if request.param == "opened":
        with walstore.sync.open(tmp_path / "log") as found:
            yield found
        return
    command = [
        sys.executable,
        "-m",
        "walstore",
        "serve",
        str(tmp_path / "log"),
        "--unix",
        str(tmp_path / "s"),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        with walstore.sync.connect(f"unix://{tmp_path}/s") as found:
            yield found
        server.terminate()


@pytest.mark.slow
def test_all_of_it(log: BlockingLog) -> None:
    with ThreadPoolExecutor(8) as threads:
        offsets = sorted(threads.map(lambda n: log.append(b"%d" % n), range(100)))
    assert offsets == list(range(1, 101))
    assert log.append_many(iter([b"a", b"b"]), update={"r": "1"}) == range(101, 103)
    assert (log.registers, log.head, log.tail, log.durable_limit) == ({"r": "1"}, 1, 103, 103)
    assert log.append_once("p", 1, [b"c"]) == log.append_once("p", 1, [b"c"]) == range(103, 104)
    with log.transaction() as txn:
        assert txn.append(b"d", key=b"k") == 0
    assert txn.span == range(104, 105)
    with pytest.raises(ZeroDivisionError), log.transaction() as txn:
        txn.append(b"lost")
        raise ZeroDivisionError
    with log.transaction() as txn:
        txn.append(b"lost")
        txn.rollback()
    log.flush()
    log.wait_durable(104)

    reader = log.reader(101, follow=False)
    assert [record.value for record in reader] == [b"a", b"b", b"c", b"d"]
    assert reader.position == 105
    reader.seek(104)
    assert list(reader.fetch(max_wait=0).values) == [b"d"]
    assert len(log.reader("latest").fetch(max_wait=0.01)) == 0

    cursor, other = log.cursor("c"), log.cursor("c")
    cursor.commit(50)
    with pytest.raises(CursorMovedError):
        other.commit(60)
    assert other.refresh() == other.position == 50
    other.rewind(1)
    assert [info.position for info in log.cursors()] == [1]

    with log.group("g", start=101) as group:
        jobs = group.fetch(10, max_wait=5)
        assert [job.value for job in jobs] == [b"a", b"b", b"c", b"d"]
        jobs[0].ack()
        jobs[1].nak()
        jobs[2].term()
        jobs[3].in_progress()
        again = next(iter(group))
        assert (again.record.offset, again.deliveries) == (102, 2)
        assert group.statistics().pending == 2
    other.rewind(1)
    log.cursor("c").commit(100)
    assert log.trim(50) == 50
    assert log.statistics().head == 50
    assert repr(log).startswith("<BlockingLog <")
    log.close()
    log.close()
    with pytest.raises(WalClosedError):
        log.append(b"v")


def test_it_ends_its_thread_and_releases_the_log(tmp_path: Path) -> None:
    with walstore.sync.open(tmp_path / "log") as log:
        log.append(b"v")
        with pytest.raises(WalLockedError):
            walstore.sync.open(tmp_path / "log")
    with walstore.sync.open(tmp_path / "log") as log:
        assert [record.value for record in log.reader(follow=False)] == [b"v"]
    assert "walstore sync" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(InvalidSettingsError):
        walstore.sync.connect("nowhere")


async def test_in_an_event_loop_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(WrongLoopError, match=r"walstore\.Wal"):
        walstore.sync.open(tmp_path / "log")


@pytest.mark.slow
def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    program = """
import os, sys, walstore.sync
from walstore import WalClosedError
with walstore.sync.open(sys.argv[1]) as log:
    log.append(b"v")
    child = os.fork()
    if not child:
        try:
            log.append(b"w")
        except WalClosedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert log.append(b"w") == 2
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "log")]
    assert subprocess.run(command, check=False).returncode == 0
