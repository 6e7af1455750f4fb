"""S2, S5, T2: what proves that bytes had been synced: then damage to them is reported, never cut away."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from pathlib import Path

import pytest

from tests.evidence import (
    CHECKPOINT,
    DURABLE,
    FS,
    HINTS,
    STRIDES,
    WORKS,
    change_only,
    check_flips,
    frames_of,
    frames_of_a_log,
    killed,
    killed_after,
    look,
)
from tests.local import copy_log, segments
from walstore import CorruptionError, Wal, WalError
from walstore.care.verify.verifying import verify_directory
from walstore.core.format import checkpoint, frame, segment
from walstore.testing import FaultyFileSystem

# -- S2: frames without records --------------------------------------------------------------------


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("without", HINTS)
@pytest.mark.parametrize("work", WORKS)
async def test_S2_every_flipped_byte_behind_the_checkpoint_is_reported(
    scratch: Path, work, without: tuple[str, ...], stride: int
) -> None:
    """Never silently fewer registers, fences, streams, producers or records."""
    original = await killed_after(work, scratch / "log", scratch / "killed", *without)
    check = asyncio.to_thread(check_flips, original, scratch, stride, is_last_known=not without)
    await check


async def test_S2_a_thousand_records_behind_a_damaged_change_are_not_an_unfinished_batch(
    scratch: Path,
) -> None:
    async def work(wal: Wal) -> None:
        await change_only(wal)
        for number in range(1000):
            wal.append_nowait(b"%d" % number)
            if number % 100 == 0:
                await wal.flush()

    original = await killed_after(work, scratch / "log", scratch / "killed", CHECKPOINT, DURABLE)

    def check() -> None:
        path = segments(original)[-1]
        data = bytearray(path.read_bytes())
        data[frames_of(path)[4][0] + 30] ^= 1
        path.write_bytes(data)
        assert verify_directory(original).problems
        with pytest.raises(CorruptionError, match="that was synced"):
            look(original)

    await asyncio.to_thread(check)


# -- S5: the last segment is sealed ----------------------------------------------------------------


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("without", HINTS)
@pytest.mark.parametrize("work", WORKS)
async def test_S5_every_flipped_byte_of_a_sealed_last_segment_is_reported(
    scratch: Path, work, without: tuple[str, ...], stride: int
) -> None:
    fs = FaultyFileSystem(FS)
    wal = await Wal.open(scratch / "log", fs=fs)
    await wal.append(b"record")
    await work(wal)
    fs.fail("open", errno.EMFILE, name="next.tmp")
    with pytest.raises(WalError):
        await wal.rotate()
    with pytest.raises(WalError):
        await wal.aclose()

    def check() -> None:
        original = killed(scratch / "log", scratch / "killed", *without)
        assert segments(original)[-1].read_bytes().endswith(b"WALEND\r\n")
        check_flips(original, scratch, stride, is_last_known=True)
        found = look(original)
        assert b"record" in found.values
        assert look(original) == found

    await asyncio.to_thread(check)


# -- T2: frames that were copied from another machine ----------------------------------------------


def restored(directory: Path, target: Path, *, own_epoch: int, position: int, offset: int) -> Path:
    """Return a log whose frames were copied: a checkpoint says so, and knows some of it to be synced."""
    copy_log(directory, target)
    (target / DURABLE).unlink()
    path = target / CHECKPOINT
    found = checkpoint.decode_checkpoint(path.read_bytes(), str(path))
    assert found is not None
    (segment_path,) = segments(target)
    data = memoryview(segment_path.read_bytes())
    ends = {end: begin for begin, end in frames_of(segment_path)}
    last = frame.parse_header(data, ends[position]) if position in ends else None
    changed = dataclasses.replace(
        found,
        own_epoch=own_epoch,
        tail_position=position,
        next_offset=offset,
        previous_crc=last.crc if last else 0,
        timestamp_us=last.max_timestamp_us if last else 0,
        tail_index=segment.SegmentIndex(),
        is_closed=False,
    )
    path.write_bytes(checkpoint.encode_checkpoint(changed))
    return target


@pytest.mark.parametrize("known", [0, 2, 5])
@pytest.mark.parametrize("own_epoch", [0, 1, 2])
async def test_T2_what_copied_frames_say_of_syncs_is_no_evidence(
    scratch: Path, own_epoch: int, known: int
) -> None:
    """Frames of epoch 1 are damaged at the fourth: torn if they were copied, unless the checkpoint, which
    is of this machine, knows it to be synced."""
    await frames_of_a_log(scratch / "log", 6)

    def check() -> None:
        (path,) = segments(scratch / "log")
        places = frames_of(path)
        position = places[known - 1][1] if known else segment.HEADER_BYTES
        directory = restored(
            scratch / "log",
            scratch / "restored",
            own_epoch=own_epoch,
            position=position,
            offset=known + 1,
        )
        (path,) = segments(directory)
        data = bytearray(path.read_bytes())
        data[places[3][0] + 100] ^= 1
        if known > 3:
            data[places[4][1] - 4] ^= 1  # so that the checkpointed frame is no shortcut
        path.write_bytes(data)
        if own_epoch < 2 or known > 3:
            assert verify_directory(directory).problems
            with pytest.raises(CorruptionError):
                look(directory)
            return
        assert verify_directory(directory).problems == ()
        assert look(directory).values == [b"0", b"1", b"2"]
        assert look(directory).values == [b"0", b"1", b"2"]

    await asyncio.to_thread(check)


async def test_T2_frames_that_were_written_here_are_evidence_again(scratch: Path) -> None:
    await frames_of_a_log(scratch / "log", 3)
    directory = await asyncio.to_thread(
        restored,
        scratch / "log",
        scratch / "restored",
        own_epoch=2,
        position=segment.HEADER_BYTES,
        offset=1,
    )
    async with Wal.open(directory) as wal:
        for number in range(3, 6):
            await wal.append(b"%d" % number)
        copied = await asyncio.to_thread(killed, directory, scratch / "killed", DURABLE)

    def check() -> None:
        (path,) = segments(copied)
        places = frames_of(path)
        data = bytearray(path.read_bytes())
        data[places[4][0] + 100] ^= 1
        path.write_bytes(data)
        assert verify_directory(copied).problems
        with pytest.raises(CorruptionError):
            look(copied)

    await asyncio.to_thread(check)
