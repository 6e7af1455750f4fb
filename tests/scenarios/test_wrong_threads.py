"""S9: a log belongs to the thread and event loop that opened it; any other is refused."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local import contents, read_values
from walstore import Wal, WalError, WrongLoopError

CALLS: dict[str, Callable[[Wal], object]] = {
    "append_nowait": lambda wal: wal.append_nowait(b"x"),
    "append_nowait with a key": lambda wal: wal.append_nowait(b"x", b"k"),
}
COROUTINES: dict[str, Callable[[Wal], object]] = {
    "append": lambda wal: wal.append(b"x"),
    "append at memory": lambda wal: wal.append(b"x", durability="memory"),
    "append_many": lambda wal: wal.append_many([b"x"]),
    "flush": lambda wal: wal.flush(),
    "rotate": lambda wal: wal.rotate(),
    "trim": lambda wal: wal.trim(1),
    "read": lambda wal: anext(wal.reader()),
    "wait_durable": lambda wal: wal.wait_durable(1),
    "fence": lambda wal: wal.fence("me"),
    "open_stream": lambda wal: wal.open_stream("eu"),
    "aclose": lambda wal: wal.aclose(),
}


async def in_thread(call: Callable[[], object]) -> object:
    """Return what a call returned or raised in a thread of its own."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join)
    return outcome[0]


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_S9_a_call_from_another_thread(log_directory: Path, name: str, is_busy: bool) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"first")
        if is_busy:
            wal.append_nowait(b"waits")  # from here on the fast path would be taken
        tail = wal.tail
        error = await in_thread(lambda: CALLS[name](wal))
        assert isinstance(error, WrongLoopError)
        assert error.outcome == "not_written"
        assert "run_coroutine_threadsafe" in str(error)
        assert wal.tail == tail
        assert await wal.append(b"last") == tail
    assert [record.value for record in await contents(log_directory)][-1] == b"last"


@pytest.mark.parametrize("name", COROUTINES)
async def test_S9_a_call_from_another_event_loop(log_directory: Path, name: str) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"first")

        async def call() -> object:
            return await COROUTINES[name](wal)

        error = await in_thread(lambda: asyncio.run(call()))
        assert isinstance(error, WrongLoopError), error
        assert await wal.append(b"second") == 2
        assert await read_values(wal) == [b"first", b"second"]


async def test_S9_many_threads_at_once_put_nothing_into_the_log(log_directory: Path) -> None:
    refused = [0] * 8

    async with Wal.open(log_directory) as wal:

        def intrude(number: int) -> None:
            for _ in range(2000):
                try:
                    wal.append_nowait(b"intruder")
                except WalError:
                    refused[number] += 1

        threads = [threading.Thread(target=intrude, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        offsets = []
        while any(thread.is_alive() for thread in threads):
            offsets += [wal.append_nowait(b"%d" % (len(offsets) + at)) for at in range(100)]
            await wal.flush()
        assert offsets == list(range(1, len(offsets) + 1))
    assert refused == [2000] * 8
    found = [record.value for record in await contents(log_directory)]
    assert found == [b"%d" % at for at in range(len(offsets))]


def test_S9_the_next_event_loop_of_the_same_thread(log_directory: Path) -> None:
    """A log that was left open when its event loop ended: the record is refused, and not in the log."""
    kept: list[Wal] = []

    async def leave_open() -> None:
        kept.append(await Wal.open(log_directory))
        await kept[0].append(b"first")

    async def come_again() -> None:
        for call in (kept[0].append(b"second"), kept[0].append_many([b"third"])):
            with pytest.raises(WalError) as refused:
                await call
            assert refused.value.outcome == "not_written"
        with pytest.raises(WalError):
            kept[0].append_nowait(b"fourth")

    asyncio.run(leave_open())  # cancels the log's tasks, which closes it
    asyncio.run(come_again())
    found = asyncio.run(contents(log_directory))
    assert [record.value for record in found] == [b"first"]


def test_the_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(WrongLoopError("x")))
    assert isinstance(error, RuntimeError)
    assert (str(error), error.outcome, error.retriable) == ("x", "not_written", False)
