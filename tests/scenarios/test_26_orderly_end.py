"""S1, S8, S12: however a log ends, the write under way ends first, and every caller gets an answer."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.local import (
    SMALL,
    close_opened,
    contents,
    gather_outcomes,
    open_blocking,
    open_descriptors,
    read_values,
    turns,
)
from tests.waiting import until
from walstore import Wal, WalError, WalLockedError, WalStore
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.testing import FaultyFileSystem
from walstore.testing.calls import Call

DEADLINE_SECONDS = 60
ROOT = Path(__file__).parents[2]


def cancel_all(*spared: asyncio.Task) -> None:
    """Do what a common handler of SIGTERM does, and spare some tasks of the test."""
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task() and task not in spared:
            task.cancel()


# -- S1: the lock is released behind the last write ------------------------------------------------


@contextlib.asynccontextmanager
async def alone(directory: Path, fs: FileSystem):
    async with Wal.open(directory, fs=fs) as wal:
        yield wal


@contextlib.asynccontextmanager
async def in_a_store(directory: Path, fs: FileSystem):
    async with WalStore.open(directory.parent, fs=fs) as store:
        yield await store.wal(directory.name)


KINDS = [pytest.param(alone, id="Wal"), pytest.param(in_a_store, id="WalStore")]


def is_locked(directory: Path, *, store: bool) -> bool:
    """Return whether another opener of the log, or of its store, is refused."""

    async def open_it() -> None:
        async with Wal.open(directory) as wal:
            assert wal.tail > 1

    async def open_store() -> None:
        async with WalStore.open(directory.parent):
            pass

    try:
        asyncio.run(open_it())
        if store:
            asyncio.run(open_store())
    except WalLockedError:
        return True
    return False


@pytest.mark.parametrize("opening", KINDS)
@pytest.mark.parametrize("rounds", [1, 2, 5])
async def test_S1_whoever_is_cancelled_the_lock_outlasts_the_write(
    tmp_path: Path, faulty: FaultyFileSystem, opening: Callable, rounds: int
) -> None:
    """The supervisor and every other task are cancelled again and again, with a write on the thread."""
    directory = tmp_path / "store" / "log"
    held, entered = None, asyncio.Event()

    async def program() -> None:
        nonlocal held
        async with opening(directory, faulty) as wal:
            assert await wal.append(b"first") == 1
            held = faulty.hold("pwrite", name="*.tmp")
            wal.append_nowait(b"second")
            await held.wait_entered()
            entered.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(program())
    try:
        await entered.wait()
        for _ in range(rounds):
            cancel_all()
            await turns(30)
            locked = await asyncio.to_thread(is_locked, directory, store=opening is in_a_store)
            assert locked, "a second writer beside the first one's write"
    finally:
        held.release()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(running, DEADLINE_SECONDS)
    await until(lambda: not open_descriptors(directory.parent))
    async with Wal.open(directory) as wal:
        assert await wal.append(b"third") == 3
        assert await read_values(wal) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("opening", KINDS)
def test_S1_one_SIGTERM_and_the_end_of_asyncio_run(
    tmp_path: Path, faulty: FaultyFileSystem, opening: Callable
) -> None:
    """A handler cancels every task, asyncio.run does so again, and the disk hangs all the while."""
    directory = tmp_path / "store" / "log"
    twice, hold = threading.Event(), None

    async def count_cancellations() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await turns(50)
        twice.set()

    async def serve(entered: asyncio.Event) -> None:
        nonlocal hold
        async with opening(directory, faulty) as wal:
            await wal.append(b"first")
            hold = faulty.hold("pwrite", name="*.tmp")
            wal.append_nowait(b"second")
            await hold.wait_entered()
            entered.set()
            await asyncio.Event().wait()

    async def program() -> None:
        entered = asyncio.Event()
        tasks = [asyncio.create_task(count_cancellations()), asyncio.create_task(serve(entered))]
        await entered.wait()
        asyncio.get_running_loop().call_soon(cancel_all)
        await asyncio.wait(tasks)

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(program())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert twice.wait(DEADLINE_SECONDS)
        assert is_locked(directory, store=opening is in_a_store)
    finally:
        hold.release()
        thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert [record.value for record in asyncio.run(contents(directory))] == [b"first", b"second"]


# -- S8: what was accepted is written --------------------------------------------------------------

CHILD = """
import asyncio, signal, sys
from walstore import Settings, Wal

SETTINGS = Settings(channel_bytes=1 << 26)
KEPT = []  # asyncio keeps no task that nobody waits for

async def append_all(directory, ready):
    async with Wal.open(directory, settings=SETTINGS) as wal:
        await wal.append(b"first")
        for number in range(1000):  # two commits, so that no write under way has all of them
            wal.append_nowait((b"%d" % number).ljust(20_000))
        ready.set()
        await asyncio.Event().wait()

async def main(directory, how):
    ready = asyncio.Event()
    KEPT.append(asyncio.create_task(append_all(directory, ready)))
    if how == "the Wal is in no block":
        wal = await Wal.open(directory + " alone", settings=SETTINGS)
        for number in range(1000):
            wal.append_nowait((b"%d" % number).ljust(20_000))
    await ready.wait()
    if how == "everything is cancelled":
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)
    if how == "Ctrl-C":
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

try:
    asyncio.run(main(*sys.argv[1:]))
except (asyncio.CancelledError, KeyboardInterrupt) as ended:
    print(type(ended).__name__)
"""

ENDINGS = {
    "asyncio.run ends over a task": b"",
    "the Wal is in no block": b"",
    "everything is cancelled": b"CancelledError\n",
    "Ctrl-C": b"KeyboardInterrupt\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDINGS)
def test_S8_all_that_was_accepted_is_on_disk_however_the_program_ends(
    log_directory: Path, how: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, log_directory, how],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ENDINGS[how])
    is_told = how == "the Wal is in no block"
    assert (b"ResourceWarning: the log at" in ended.stderr) == is_told
    assert is_told or ended.stderr == b""
    numbers = [(b"%d" % number).ljust(20_000) for number in range(1000)]
    assert [record.value for record in asyncio.run(contents(log_directory))] == [b"first", *numbers]
    if how == "the Wal is in no block":
        alone = asyncio.run(contents(Path(f"{log_directory} alone")))
        assert [record.value for record in alone] == numbers


@pytest.mark.parametrize("turns_before", range(8))
async def test_S8_closing_raises_no_cancellation_of_others(
    log_directory: Path, turns_before: int
) -> None:
    wal = await Wal.open(log_directory)
    for number in range(1000):
        wal.append_nowait(b"%d" % number)
    await turns(turns_before)
    cancel_all()
    await asyncio.wait_for(wal.aclose(), DEADLINE_SECONDS)
    await wal.aclose()
    assert len(await contents(log_directory)) == 1000


# -- cancelled before anything ran -----------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3])
async def test_S8_cancelled_right_behind_opening(log_directory: Path, rounds: int) -> None:
    """What was accepted before the log's tasks ran is written all the same."""
    wal = await Wal.open(log_directory)
    wal.append_nowait(b"accepted")
    for _ in range(rounds):
        cancel_all()
        await turns(1)
    await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [b"accepted"]


@pytest.mark.slow
@pytest.mark.parametrize("opening", KINDS)
async def test_S1_cancelled_at_any_turn_of_an_opening(tmp_path: Path, opening: Callable) -> None:
    """Then nobody holds the lock or a descriptor, and the next opening works."""

    async def open_it(directory: Path, fs: FileSystem) -> None:
        async with opening(directory, fs):
            pass

    for nth in range(40):
        directory = tmp_path / str(nth) / "log"
        task = asyncio.create_task(open_it(directory, FaultyFileSystem(PosixFileSystem())))
        await turns(nth)
        for _ in range(3):
            cancel_all()
            await turns(1)
        await asyncio.wait([task], timeout=DEADLINE_SECONDS)
        assert task.done()
        await until(lambda where=directory.parent: not open_descriptors(where))
        async with opening(directory, PosixFileSystem()) as wal:
            assert await wal.append(b"first") == 1


# -- S12: every request is answered ----------------------------------------------------------------

DEFECTS = [MemoryError, AssertionError, KeyError, RecursionError]


def requests_of(wal: Wal) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return one call of each kind that reaches the writer's thread."""
    return {
        "append": lambda: wal.append(b"new" * 1000),
        "transaction": lambda: change(wal),
        "trim": lambda: wal.trim(wal.durable_limit),
        "rotate": wal.rotate,
        "flush": wal.flush,
        "open_stream": lambda: wal.open_stream("stream"),
    }


async def change(wal: Wal) -> None:
    async with wal.transaction(update={"register": "new"}):
        pass


async def strike(directory: Path, error: type[Exception], call: int) -> bool:
    """Let a call on the system raise ``error`` while all requests run; False if they need fewer calls."""
    fs = FaultyFileSystem(PosixFileSystem())
    wal = await Wal.open(directory, settings=SMALL, fs=fs)
    for number in range(4):
        await wal.append(b"%d" % number * 30_000)
    last = len(fs.calls) + call
    has_struck = threading.Event()

    def raise_it(made: Call) -> None:
        if len(fs.calls) == last:
            has_struck.set()
            if made.kind != "close":  # which lets go of the descriptor, whatever it reports
                raise error("injected")

    fs.before_each(raise_it)
    calls = requests_of(wal)
    async with asyncio.timeout(DEADLINE_SECONDS):
        outcomes = await gather_outcomes(call() for call in calls.values())
        again = await gather_outcomes([wal.rotate(), wal.trim(2), wal.flush(), wal.append(b"")])
        closing = await gather_outcomes([wal.aclose()])
    for found in (*outcomes, *again, *closing):
        if isinstance(found, BaseException):
            assert isinstance(found, WalError), repr(found)
            assert found.outcome in ("not_written", "durable", "unknown")
    assert open_descriptors(directory) == []
    became = dict(zip(calls, outcomes, strict=True))
    async with Wal.open(directory, settings=SMALL) as again_opened:
        values = await read_values(again_opened, "earliest")
        held = {
            "append": b"new" * 1000 in values,
            "transaction": again_opened.registers.get("register") == "new",
            "open_stream": "stream" in again_opened.streams(),
        }
    for name, is_there in held.items():
        found = became[name]
        outcome = found.outcome if isinstance(found, WalError) else "durable"
        assert outcome == "unknown" or is_there == (outcome == "durable"), (call, name, found)
    return has_struck.is_set()


@pytest.mark.parametrize("error", DEFECTS)
@pytest.mark.slow
async def test_S12_whatever_a_call_raises_every_request_ends(
    scratch: Path, error: type[Exception]
) -> None:
    """At any call on the system, with what a defect of ours or a lack of memory raises."""
    call = 1
    while await strike(scratch / f"log {call}", error, call):
        call += 1
    assert call > 15


async def test_S12_a_defect_in_the_tail_itself(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """An opener that comes after finds all that was acknowledged."""
    wal = await Wal.open(log_directory, fs=faulty)
    assert await wal.append(b"kept") == 1

    def fail(*_: object) -> None:
        raise MemoryError

    faulty.before_each(fail)
    async with asyncio.timeout(DEADLINE_SECONDS):
        outcomes = await gather_outcomes([wal.trim(2), wal.rotate(), wal.append(b"x"), wal.flush()])
        ended = await gather_outcomes([wal.aclose(), wal.aclose()])
    assert all(isinstance(found, WalError) for found in [*outcomes, *ended]), [outcomes, ended]
    faulty.heal()
    opened = await asyncio.to_thread(open_blocking, log_directory)
    assert opened.tail.durable_limit >= 2
    await asyncio.to_thread(close_opened, opened)
