"""walstore.sync: an opened log and a served one, from threads."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import walstore.sync
from tests.walstore.serve.served import serving_from_a_thread
from walstore import (
    CursorMovedError,
    Group,
    InvalidSettingsError,
    Reader,
    Transaction,
    Wal,
    WalClosedError,
    WalError,
    WalLockedError,
    WrongLoopError,
    connect,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.sync import BlockingGroup, BlockingLog, BlockingReader, BlockingTransaction
from walstore.testing import FaultyFileSystem

SAME = "append append_many transaction reader follow cursor group"


@pytest.fixture(params=["opened", "served"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockingLog]:
    if request.param == "opened":
        with walstore.sync.open(tmp_path / "log") as found:
            yield found
        return
    with (
        serving_from_a_thread(tmp_path / "log") as address,
        walstore.sync.connect(address, connect_seconds=60) as found,
    ):
        yield found


def test_a_loop_that_is_left_is_followed_by_another_one(log: BlockingLog) -> None:
    log.append_many([b"%d" % number for number in range(1, 8)])
    reader = log.reader(follow=False)
    for record in reader:
        if record.offset == 2:
            break
    assert reader.position == 3
    assert next(iter(reader)).offset == 3
    assert list(reader.fetch(max_records=2).values) == [b"4", b"5"]
    assert [record.offset for record in reader] == [6, 7]
    with log.reader(follow=False) as reader:
        assert next(iter(reader)).offset == 1
        reader.seek(5)
        assert [record.offset for record in reader] == [5, 6, 7]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (walstore.sync.open, Wal.open),
        (walstore.sync.connect, connect),
        *((getattr(BlockingLog, name), getattr(Wal, name)) for name in SAME.split()),
        (BlockingTransaction.append, Transaction.append),
        (BlockingReader.fetch, Reader.fetch),
        (BlockingGroup.fetch, Group.fetch),
    ],
)
def test_a_call_has_the_arguments_of_the_log(
    here: Callable[..., Any], there: Callable[..., Any]
) -> None:
    shown, wanted = inspect.signature(here), inspect.signature(there)
    assert shown.parameters == wanted.parameters
    assert "'Any'" not in str(shown)
    assert here.__module__ == "walstore.sync"


def test_handles_are_neither_copied_nor_pickled(log: BlockingLog) -> None:
    handles = (log, log.reader(follow=False), log.cursor("c"), log.group("g"), log.transaction())
    for handle in handles:
        for copy_it in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copy_it(handle)
    assert log.append(b"the owner goes on") == 1


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
    assert list(reader.fetch(max_wait_seconds=0).values) == [b"d"]
    assert len(log.follow("latest").fetch(max_wait_seconds=0.01)) == 0

    cursor, other = log.cursor("c"), log.cursor("c")
    cursor.commit(50)
    with pytest.raises(CursorMovedError):
        other.commit(60)
    assert other.refresh() == other.position == 50
    other.rewind(1)
    assert [info.position for info in log.cursors()] == [1]

    with log.group("g", start=101) as group:
        jobs = group.fetch(10, max_wait_seconds=60)
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


def begin(call: Callable[[], object], ended: dict[str, object], name: str) -> threading.Thread:
    """Make a call in another thread; note its result or error."""

    def run() -> None:
        try:
            ended[name] = call()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            ended[name] = error

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def forever(call: Callable[[], object], begun: threading.Event) -> None:
    while True:
        call()
        begun.set()


def close_beside_calls(log: BlockingLog) -> None:
    """Close a log from three threads while others wait for something, or ask again and again."""
    log.append(b"v")
    cursor, group, reader = log.cursor("c"), log.group("g"), log.follow()

    def commit() -> None:
        with log.transaction() as transaction:
            transaction.append(b"w")

    def work() -> None:
        (job,) = group.fetch()
        job.ack()

    busy = {
        "statistics": log.statistics,
        "cursor": lambda: cursor.commit(log.durable_limit),
        "transaction": commit,
        "reader": lambda: reader.fetch(max_records=1),
        "group": work,
    }
    ended: dict[str, object] = {}
    group.__enter__()
    begun = {name: threading.Event() for name in busy}
    threads = [begin(partial(forever, busy[name], begun[name]), ended, name) for name in busy]
    threads.append(begin(log.follow("latest", stream="none").fetch, ended, "waiting"))
    assert all(event.wait(20) for event in begun.values())
    threads += [begin(log.close, ended, f"close {number}") for number in range(3)]
    for thread in threads:
        thread.join(30)
    assert [thread.name for thread in threads if thread.is_alive()] == []
    closed = [ended.pop(f"close {number}") for number in range(3)]
    assert closed == [None] * 3
    assert {type(error) for error in ended.values()} == {WalClosedError}
    assert len(ended) == len(busy) + 1
    assert "walstore sync" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(WalClosedError):
        log.append(b"v")


def test_closing_ends_the_calls_of_all_threads(tmp_path: Path) -> None:
    for _ in range(4):
        close_beside_calls(walstore.sync.open(tmp_path / "log"))
    gc.collect()  # a coroutine that was never awaited is a warning, and that an error


@pytest.mark.slow
def test_closing_a_connection_ends_the_calls_of_all_threads(tmp_path: Path) -> None:
    with serving_from_a_thread(tmp_path / "log") as address:
        for _ in range(4):
            close_beside_calls(walstore.sync.connect(address, connect_seconds=60))


def test_all_who_close_learn_that_closing_failed(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    log = walstore.sync.open(tmp_path / "log", fs=faulty)
    faulty.fail("*sync*", times=None)
    with pytest.raises(WalError):
        log.append(b"v")
    ended: dict[str, object] = {}
    threads = [begin(log.close, ended, str(number)) for number in range(3)]
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in ended.values()] == [WalClosedError] * 3
    with pytest.raises(ZeroDivisionError) as caught, log:
        raise ZeroDivisionError
    assert "and closing failed: WalClosedError" in caught.value.__notes__[0]


def test_a_call_that_the_closed_log_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walstore.sync._LATE_SECONDS", 0.01)
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    log = walstore.sync.open(tmp_path / "log")
    ended: dict[str, object] = {}
    thread = begin(lambda: log._run(never), ended, "call")
    assert begun.wait(20)
    log.close()
    thread.join(20)
    assert isinstance(ended["call"], WalClosedError)
    assert ended["call"].outcome == "unknown"


@pytest.mark.slow
def test_who_waits_for_the_closing_may_be_interrupted(tmp_path: Path) -> None:
    """The log is closed nevertheless: the next call waits for it."""
    program = """
import signal, sys, threading, walstore.sync
log = walstore.sync.open(sys.argv[1])
log.append(b"v")
close = log._log.aclose
async def interrupted():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    await close()
log._log.aclose = interrupted
try:
    log.close()
except KeyboardInterrupt:
    log.close()
    assert "walstore sync" not in [thread.name for thread in threading.enumerate()]
    with walstore.sync.open(sys.argv[1]) as log:
        assert log.tail == 2
    sys.exit(7)
"""
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path / "log")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")


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
