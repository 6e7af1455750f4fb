"""The table "What recovery does" of docs/messages.md: each row with real logs, and a crash everywhere.

A crash is an image of the logs' directories as they lie on disk at one moment; what then happens to the
original does not matter. A new program is started on the image.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.local import UnsyncedFileSystem, copy_log
from tests.messages import committed
from walstore import FencedError, Wal, WalError
from walstore.core.ports import FileSystem
from walstore.messages import CommittedReader, Coordinator, RegisterStore
from walstore.testing import Call, FaultyFileSystem

FS = UnsyncedFileSystem()
NAMES = ("a", "b", "c", "state")


class Program:
    """Publishes item n to logs a and b, every third one to c too, one transaction each, until it has
    published ``count``; its position is the next item."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs: dict[str, Wal] = {}
        self.images = 0

    @contextlib.asynccontextmanager
    async def running(self, fs: FileSystem = FS) -> AsyncIterator[Coordinator]:
        async with contextlib.AsyncExitStack() as stack:
            for name in NAMES:
                opening = Wal.open(self.root / name, fs=fs)
                self.logs[name] = await stack.enter_async_context(opening)
            store = RegisterStore(self.logs["state"])
            yield await stack.enter_async_context(Coordinator.open(store, self.outputs))

    @property
    def outputs(self) -> list[Wal]:
        return [self.logs[name] for name in "abc"]

    def targets(self, item: int) -> list[Wal]:
        return self.outputs[: 3 if item % 3 == 2 else 2]

    async def publish(self, coordinator: Coordinator, until: int) -> None:
        """Do the transactions up to item ``until``, exclusive."""
        for item in range(int(coordinator.position or b"0"), until):
            async with coordinator.transaction() as txn:
                for log in self.targets(item):
                    await txn.publish(log, b"%d" % item)
                txn.position = b"%d" % (item + 1)

    async def crash(self, names: str | tuple[str, ...] = NAMES) -> Path:
        """Return an image of logs, with everything on disk that was accepted."""
        self.images += 1
        image = self.root / f"image{self.images}"
        await self.copy(image, names)
        return image

    async def copy(self, image: Path, names: str | tuple[str, ...]) -> None:
        for name in names:
            await self.logs[name].flush()
            await asyncio.to_thread(copy_log, self.root / name, image / name)

    async def check(self, until: int) -> None:
        """Every item is committed once, in order, where it belongs; nothing is left pending."""
        items = [b"%d" % item for item in range(until)]
        for log in self.outputs:
            await log.flush()
        assert await committed(self.logs["a"]) == items
        assert await committed(self.logs["b"]) == items
        assert await committed(self.logs["c"]) == items[2::3]
        for log in self.outputs:
            reader = CommittedReader(log, follow=False)
            async for _ in reader:
                pass
            assert reader.pending == {}


def before_save(coordinator: Coordinator, action: Callable[[], Awaitable[object]]) -> None:
    """Do something just before the next state is stored."""
    save = coordinator._store.save

    async def wrapper(data: bytes) -> None:
        del coordinator._store.save
        await action()
        await save(data)

    coordinator._store.save = wrapper  # type: ignore[method-assign]


def after_save(coordinator: Coordinator, action: Callable[[], Awaitable[object]]) -> None:
    """Do something just after the next state was stored, before any acknowledgement."""
    save = coordinator._store.save

    async def wrapper(data: bytes) -> None:
        del coordinator._store.save
        await save(data)
        await action()

    coordinator._store.save = wrapper  # type: ignore[method-assign]


async def recovered(image: Path, position: bytes, until: int) -> None:
    """Start a new program on an image: it is where it should be, finishes, and all is there once."""
    program = Program(image)
    async with program.running() as coordinator:
        assert coordinator.position == position
        await program.check(int(position))
        await program.publish(coordinator, until)
        await program.check(until)


async def test_row_1_before_the_state_was_stored(tmp_path: Path) -> None:
    program = Program(tmp_path)
    images: list[Path] = []

    async def crash() -> None:
        images.append(await program.crash())

    async with program.running() as coordinator:
        await program.publish(coordinator, 2)
        before_save(coordinator, crash)
        await program.publish(coordinator, 3)
    await recovered(images[0], b"2", 6)


async def test_row_1_also_for_the_very_first_transaction(tmp_path: Path) -> None:
    """Nothing was ever acknowledged, so there are no intents at all to roll it back."""
    program = Program(tmp_path)
    async with program.running() as coordinator, coordinator.transaction() as txn:
        for log in program.outputs:
            await txn.publish(log, b"0")
        image = await program.crash()
    program = Program(image)
    async with program.running() as coordinator:
        assert coordinator.position is None
        await program.check(0)
        await program.publish(coordinator, 4)
        await program.check(4)


async def test_row_2_after_the_state_before_any_acknowledgement(tmp_path: Path) -> None:
    program = Program(tmp_path)
    images: list[Path] = []

    async def crash() -> None:
        images.append(await program.crash())

    async with program.running() as coordinator:
        await program.publish(coordinator, 2)
        after_save(coordinator, crash)
        await program.publish(coordinator, 3)
    await recovered(images[0], b"3", 6)


async def test_row_3_between_acknowledgements(tmp_path: Path) -> None:
    program = Program(tmp_path)
    image = tmp_path / "image"
    async with program.running() as coordinator:
        await program.publish(coordinator, 2)
        after_save(coordinator, lambda: program.copy(image, ("b", "c", "state")))
        await program.publish(coordinator, 3)
        await program.copy(image, "a")
    async with Wal.open(image / "a", fs=FS) as a, Wal.open(image / "b", fs=FS) as b:
        assert await committed(a) == [b"0", b"1", b"2"]
        assert await committed(b) == [b"0", b"1"]
    await recovered(image, b"3", 6)


async def test_row_4_with_the_next_transaction_begun(tmp_path: Path) -> None:
    """Also in c, which the last transaction did not touch: there is no intent that would end it."""
    program = Program(tmp_path)
    async with program.running() as coordinator:
        await program.publish(coordinator, 5)
        async with coordinator.transaction() as txn:
            for log in program.outputs:
                await txn.publish(log, b"5")
            image = await program.crash()
    async with Wal.open(image / "c", fs=FS) as c:
        reader = CommittedReader(c, follow=False)
        assert [record.value async for record in reader] == [b"2"]
        assert len(reader.pending) == 1
    await recovered(image, b"5", 9)


async def test_row_5_the_state_is_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one case with duplicates: the transaction behind the old state is done anew."""
    program = Program(tmp_path)
    image = tmp_path / "image"
    async with program.running() as coordinator:
        await program.publish(coordinator, 2)
        await program.copy(image, ("state",))
        await program.publish(coordinator, 3)
        await program.copy(image, "abc")
    program = Program(image)
    async with program.running() as coordinator:
        assert coordinator.position == b"2"
        await program.publish(coordinator, 4)
        await program.logs["a"].flush()
        with caplog.at_level(logging.WARNING, "walstore.messages"):
            assert await committed(program.logs["a"]) == [b"0", b"1", b"2", b"2", b"3"]
        assert "goes back to an older state" in caplog.text


async def test_row_6_the_old_program_goes_on_beside_the_new_one(tmp_path: Path) -> None:
    program = Program(tmp_path)
    async with program.running() as new:
        # The zombie is the one opened first; it shares the logs, as it would through a service.
        zombie = new
        await program.publish(zombie, 2)
        async with Coordinator.open(RegisterStore(program.logs["state"]), program.outputs) as new:
            with pytest.raises(FencedError):
                await program.publish(zombie, 3)
            await program.publish(new, 3)
            for log in program.outputs:
                await log.flush()
            assert await committed(program.logs["a"]) == [b"0", b"1", b"2"]
            assert await committed(program.logs["c"]) == [b"2"]


@pytest.mark.parametrize("dies_at", ["before it begins", "before it is noted"])
async def test_recovery_that_dies_is_done_again(tmp_path: Path, dies_at: str) -> None:
    """Crash images from within recoveries, several times over; the dead are not forgotten."""
    program = Program(tmp_path / "0")
    async with program.running() as coordinator:
        await program.publish(coordinator, 2)
        async with coordinator.transaction() as txn:
            for log in program.outputs:
                await txn.publish(log, b"2")
            image = await program.crash()
    for _ in range(3):
        program = Program(image)
        async with contextlib.AsyncExitStack() as stack:
            for name in NAMES:
                opening = Wal.open(image / name, fs=FS)
                program.logs[name] = await stack.enter_async_context(opening)
            store = RegisterStore(program.logs["state"])
            saves: list[bytes] = []
            real = store.save

            async def save(
                data: bytes,
                real: Callable[[bytes], Awaitable[None]] = real,
                saves: list[bytes] = saves,
            ) -> None:
                saves.append(data)
                if len(saves) == 2:
                    raise OSError("dies")
                await real(data)
                if dies_at == "before it begins":
                    raise OSError("dies")

            store.save = save  # type: ignore[method-assign]
            with pytest.raises(OSError, match="dies"):
                await Coordinator.open(store, program.outputs)
            image = await program.crash()
    await recovered(image, b"2", 4)


class PowerCutError(OSError):
    """The moment at which everything stops."""


async def live(program: Program, cut_at: int) -> bool:
    """Run until the ``cut_at``-th write or sync of any log; return whether the end was reached first."""
    faulty = FaultyFileSystem(FS)
    left = [cut_at]
    lock = threading.Lock()

    def count(call: Call) -> None:
        if call.kind in ("pwrite", "datasync", "store", "replace"):
            with lock:
                left[0] -= 1
                if left[0] <= 0:
                    raise PowerCutError

    faulty.before_each(count)
    with contextlib.suppress(WalError, PowerCutError):
        async with program.running(faulty) as coordinator:
            await program.publish(coordinator, 4)
    return left[0] > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_crash_at_every_write(tmp_path: Path) -> None:
    """Also of the program that recovers: it is cut a little later each time."""
    for cut_at in range(1, 1000):
        program = Program(tmp_path / str(cut_at))
        if await live(program, cut_at):
            assert cut_at > 40
            return
        await live(program, cut_at // 3 + 1)
        async with program.running() as coordinator:
            await program.publish(coordinator, 4)
            await program.check(4)
    pytest.fail("the program does not end")
