"""Opening: what recovery accepts, repairs and refuses, and that it never changes what it refuses."""

from __future__ import annotations

import dataclasses
import errno
import logging
import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.local import (
    SMALL,
    close_opened,
    copy_log,
    draft_of,
    open_blocking,
    open_descriptors,
    segments,
)
from walstore import ContentionError, CorruptionError, FormatVersionError, WalLockedError
from walstore.core.files.directory import LOCK_NAME
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_batches
from walstore.core.format import checkpoint, segment
from walstore.core.settings import KIB
from walstore.log.opening import Opened

BIG = SMALL.replace(
    segment_bytes=16 << 20,
    batch_bytes=16 << 20,
    max_record_bytes=12 << 20,
    channel_bytes=16 << 20,
    checkpoint_bytes=16 << 20,
)


def values_of(opened: Opened) -> list[bytes]:
    tail = opened.tail
    found: list[bytes] = []
    for source in [*opened.sealed, tail.active]:
        end = source.summary.limit if source.summary else tail.durable_limit
        while source.start <= tail.head + len(found) < end:
            at = tail.head + len(found)
            for batch in read_batches(PosixFileSystem(), source, at, end, 1 << 20):
                found += batch.values
    return found


def write(directory: Path, *values: bytes, settings=SMALL) -> None:
    """Append values, a commit each, and close cleanly."""
    opened = open_blocking(directory, settings=settings)
    for value in values:
        opened.tail.commit([draft_of(opened.tail.durable_limit, value)])
    close_opened(opened)


def crash_after(directory: Path, *values: bytes, settings=SMALL) -> None:
    """Append values, a commit each, and stop like a killed process."""
    opened = open_blocking(directory, settings=settings)
    for value in values:
        opened.tail.commit([draft_of(opened.tail.durable_limit, value)])
    close_opened(opened, clean=False)


def read(directory: Path) -> list[bytes]:
    opened = open_blocking(directory)
    try:
        return values_of(opened)
    finally:
        close_opened(opened)


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != LOCK_NAME}


def refused(directory: Path, kind: type[Exception], match: str) -> Exception:
    """Assert that opening is refused and has changed nothing."""
    before = snapshot(directory)
    with pytest.raises(kind, match=match) as found:
        open_blocking(directory)
    assert snapshot(directory) == before
    assert open_descriptors(directory) == []
    return found.value


def forget(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).unlink(missing_ok=True)


HINTS = (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)
THREE = (b"a" * 50 * KIB, b"b" * 50 * KIB, b"c" * 50 * KIB)


# -- creating and reopening ------------------------------------------------------------------------


def test_a_new_log(tmp_path) -> None:
    directory = tmp_path / "deep" / "down" / "log"
    opened = open_blocking(directory)
    assert opened.recovery.created
    assert (opened.tail.head, opened.tail.durable_limit, opened.tail.epoch) == (1, 1, 1)
    assert opened.log_id == b"identity of log "
    close_opened(opened)
    names = {path.name for path in directory.iterdir()}
    assert names == {"LOCK", "CHECKPOINT", "DURABLE", "00000000000000000001.wal"}


def test_reopening_continues_at_the_next_offset_in_a_new_epoch(log_directory) -> None:
    for round_ in range(4):
        opened = open_blocking(log_directory)
        assert opened.recovery.created == (round_ == 0)
        assert opened.recovery.truncated_bytes == 0
        assert (opened.tail.durable_limit, opened.tail.epoch) == (round_ + 1, round_ + 1)
        opened.tail.commit([draft_of(round_ + 1, b"%d" % round_)])
        close_opened(opened, clean=round_ % 2 == 0)
    assert read(log_directory) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("loss", ["none", "checkpoint", "cell", "both"])
@pytest.mark.parametrize("clean", [True, False])
def test_the_log_is_rebuilt_without_its_hints(log_directory, loss, clean) -> None:
    for values in (THREE, (b"d", b"e")):
        (write if clean else crash_after)(log_directory, *values)
        if loss in ("checkpoint", "both"):
            forget(log_directory, checkpoint.FILE_NAME)
        if loss in ("cell", "both"):
            forget(log_directory, checkpoint.CELL_FILE_NAME)
    assert read(log_directory) == [*THREE, b"d", b"e"]


@pytest.mark.parametrize("name", HINTS)
def test_damaged_hints_are_rebuilt(log_directory, name, caplog) -> None:
    crash_after(log_directory, *THREE, b"d")
    data = bytearray((log_directory / name).read_bytes())
    data[20] ^= 4
    (log_directory / name).write_bytes(data)
    assert read(log_directory) == [*THREE, b"d"]
    assert ("checkpoint is damaged" in caplog.text) == (name == checkpoint.FILE_NAME)


@pytest.mark.parametrize("age", range(5))
def test_an_old_checkpoint_is_as_good_as_a_new_one(log_directory, age) -> None:
    kept: list[bytes] = []
    opened = open_blocking(log_directory)
    for offset in range(1, 6):
        kept.append((log_directory / checkpoint.FILE_NAME).read_bytes())
        opened.tail.commit([draft_of(offset, b"x" * 30 * KIB)])
        opened.tail.checkpoint()
    close_opened(opened)
    (log_directory / checkpoint.FILE_NAME).write_bytes(kept[age])
    assert len(read(log_directory)) == 5


def test_a_new_epoch_is_new_even_if_it_wrote_nothing(log_directory) -> None:
    for _ in range(3):
        write(log_directory)
    opened = open_blocking(log_directory)
    assert opened.tail.epoch == 4
    close_opened(opened)


def test_recovery_reads_no_more_than_since_the_last_checkpoint(log_directory) -> None:
    opened = open_blocking(log_directory, settings=BIG)
    for offset in range(1, 101):
        opened.tail.commit([draft_of(offset, b"x" * 10 * KIB)])
    opened.tail.checkpoint()
    for offset in range(101, 104):
        opened.tail.commit([draft_of(offset, b"x" * 10 * KIB)])
    close_opened(opened, clean=False)
    opened = open_blocking(log_directory, settings=BIG)
    assert 30 * KIB < opened.recovery.scanned_bytes < 32 * KIB
    assert len(values_of(opened)) == 103
    close_opened(opened)
    opened = open_blocking(log_directory, settings=BIG)
    assert opened.recovery.scanned_bytes == 0
    close_opened(opened)


def test_batches_larger_than_what_recovery_reads_at_once(log_directory) -> None:
    crash_after(log_directory, b"a", b"b" * (10 << 20), b"c", settings=BIG)
    forget(log_directory, *HINTS)
    assert [len(value) for value in read(log_directory)] == [1, 10 << 20, 1]


def test_leftovers_of_interrupted_work_are_no_trouble(log_directory) -> None:
    write(log_directory, b"a")
    for name in ("next.tmp", "CHECKPOINT.tmp", "00000000000000000001.broken", "notes.txt"):
        (log_directory / name).write_bytes(b"left behind")
    write(log_directory, b"b", *THREE)
    assert read(log_directory) == [b"a", b"b", *THREE]
    assert (log_directory / "notes.txt").read_bytes() == b"left behind"


# -- torn tails ------------------------------------------------------------------------------------


def last_frame(directory: Path) -> tuple[Path, int, int]:
    """Return file, begin and end of the last record's frame in a cleanly closed log."""
    path = segments(directory)[-1]
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, len(data) - 8)
    return path, len(data) - length, len(data)


@pytest.mark.parametrize("tail", ["cut", "zeroed", "zeroed without hints"])
def test_a_torn_batch_is_cut_off_and_a_copy_is_kept(log_directory, caplog, tail) -> None:
    write(log_directory, b"kept", b"torn" * 100)
    path, begin, end = last_frame(log_directory)
    data = path.read_bytes()
    torn = data[begin : end - 50]
    if tail != "cut":
        path.write_bytes(data[: end - 50] + bytes(5000))
    else:
        path.write_bytes(data[: end - 50])
    if tail == "zeroed without hints":
        forget(log_directory, *HINTS)
    opened = open_blocking(log_directory)
    found = opened.recovery
    assert found.truncated_bytes == len(torn.rstrip(b"\0"))
    assert found.broken_copy is not None
    assert Path(found.broken_copy).read_bytes() == torn.rstrip(b"\0")
    assert found.missing_from == (None if tail == "zeroed without hints" else 2)
    assert not any(path.read_bytes()[begin:]), "nothing stale is left behind the tail"
    assert opened.tail.durable_limit == 2
    opened.tail.commit([draft_of(2, b"new")])
    close_opened(opened)
    assert read(log_directory) == [b"kept", b"new"]
    assert "cut" in caplog.text


def test_a_group_is_there_as_a_whole_or_not_at_all(log_directory) -> None:
    opened = open_blocking(log_directory)
    opened.tail.commit([draft_of(1, b"before")])
    opened.tail.commit([draft_of(2, *[b"%d" % n for n in range(20)])])
    close_opened(opened)
    path, begin, end = last_frame(log_directory)
    whole = path.read_bytes()
    for size in range(begin, end, 7):
        path.write_bytes(whole[:size])
        assert read(log_directory) == [b"before"]


def test_each_torn_tail_keeps_its_own_copy(log_directory) -> None:
    write(log_directory, b"one")
    (path,) = log_directory.glob("*.wal")
    copies = []
    for torn in (b"first torn tail", b"second torn tail", b"second torn tail"):
        path.write_bytes(path.read_bytes() + torn)
        opened = open_blocking(log_directory)
        copies.append(Path(opened.recovery.broken_copy))
        assert copies[-1].read_bytes() == torn
        close_opened(opened)
    assert copies[0] != copies[1] == copies[2]
    assert copies[0].read_bytes() == b"first torn tail"


def test_torn_twice_in_one_segment(log_directory) -> None:
    for round_ in range(3):
        write(log_directory, b"kept %d" % round_, b"torn")
        path, _, end = last_frame(log_directory)
        path.write_bytes(path.read_bytes()[: end - 1])
    assert read(log_directory) == [b"kept 0", b"kept 1", b"kept 2"]


def test_an_impossible_length_asks_for_no_memory(log_directory) -> None:
    write(log_directory, b"kept", b"torn")
    path, begin, _ = last_frame(log_directory)
    data = bytearray(path.read_bytes())
    data[begin + 8 : begin + 12] = struct.pack("<I", 0xFFFF_FFF8)
    path.write_bytes(data[:-8])
    assert read(log_directory) == [b"kept"]


@pytest.mark.slow
def test_a_seal_cut_at_any_byte_is_undone(log_directory, tmp_path) -> None:
    """Killed while it sealed, before the next segment was there."""
    opened = open_blocking(log_directory)
    for offset in range(1, 4):
        opened.tail.commit([draft_of(offset, b"x" * 1000)])
    before = copy_log(log_directory, tmp_path / "before")
    sealed = opened.tail.rotate()
    close_opened(opened, clean=False)
    assert sealed.summary is not None
    whole = sealed.path.read_bytes()
    for size in range(sealed.summary.data_bytes, len(whole) + 1, 3):
        directory = copy_log(before, tmp_path / f"cut {size}")
        (directory / sealed.path.name).write_bytes(whole[:size])
        opened = open_blocking(directory)
        assert opened.tail.durable_limit == 4
        assert opened.recovery.missing_from is None
        opened.tail.commit([draft_of(4, b"new")])
        close_opened(opened)
        assert read(directory) == [b"x" * 1000] * 3 + [b"new"]
        shutil.rmtree(directory)


def test_sealed_but_the_next_segment_was_not_made(log_directory) -> None:
    crash_after(log_directory, b"a", THREE[0])
    opened = open_blocking(log_directory)
    opened.tail.rotate()
    close_opened(opened, clean=False)
    segments(log_directory)[-1].unlink()
    forget(log_directory, checkpoint.FILE_NAME)
    opened = open_blocking(log_directory)
    assert opened.tail.active.start == 3
    opened.tail.commit([draft_of(3, b"b")])
    close_opened(opened)
    assert read(log_directory) == [b"a", THREE[0], b"b"]


# -- corruption ------------------------------------------------------------------------------------


def test_damage_before_the_last_batch_is_corruption_with_file_and_place(log_directory) -> None:
    crash_after(log_directory, b"first", b"second", b"third")
    (path,) = segments(log_directory)
    data = bytearray(path.read_bytes())
    at = data.index(b"second")
    data[at] ^= 1
    path.write_bytes(data)
    error = refused(log_directory, CorruptionError, "damaged batch at offset 2 that was synced")
    assert isinstance(error, CorruptionError)
    assert (error.path, error.expected) == (str(path), 2)
    assert error.position is not None
    assert segment.HEADER_BYTES < error.position < at
    forget(log_directory, *HINTS)
    refused(log_directory, CorruptionError, "damaged batch at offset 2 that was synced")


def test_damage_of_the_last_batch_is_corruption_if_it_is_known_to_be_synced(log_directory) -> None:
    crash_after(log_directory, b"first", b"second")
    (path,) = segments(log_directory)
    data = bytearray(path.read_bytes())
    data[data.index(b"second")] ^= 1
    path.write_bytes(data)
    refused(log_directory, CorruptionError, "damaged batch at offset 2 that was synced")


@pytest.mark.parametrize("place", [0, 10, 20, 30, 40, 50, 60])
def test_a_damaged_segment_header_is_corruption(log_directory, place) -> None:
    write(log_directory, b"a")
    (path,) = segments(log_directory)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    refused(log_directory, CorruptionError, str(path))


@pytest.mark.parametrize("content", [b"", b"hello", bytes(100_000), b"PAR1" * 1000])
def test_a_foreign_file_with_the_name_of_a_segment(log_directory, content) -> None:
    write(log_directory, b"a")
    (log_directory / segment.file_name(2)).write_bytes(content)
    refused(log_directory, CorruptionError, "not sealed although another one follows")
    write(log_directory.with_name("sealed"), *THREE[:2])
    segments(log_directory.with_name("sealed"))[-1].write_bytes(content)
    refused(log_directory.with_name("sealed"), CorruptionError, "not a walstore segment")


def test_a_foreign_file_that_ends_like_a_segment(log_directory) -> None:
    write(log_directory, b"a")
    (log_directory / "backup.wal").write_bytes(b"hello")
    refused(log_directory, CorruptionError, r"foreign file .*backup\.wal")


@pytest.mark.parametrize("hints", [True, False])
def test_a_segment_under_another_name(log_directory, hints) -> None:
    write(log_directory, b"a")
    (path,) = segments(log_directory)
    path.rename(log_directory / segment.file_name(7))
    if not hints:
        forget(log_directory, *HINTS)
    refused(log_directory, CorruptionError, "missing at the|not the one its name says")


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("hints", [True, False])
def test_a_missing_segment_is_noticed(log_directory, which, hints) -> None:
    write(log_directory, *THREE)
    segments(log_directory)[which].unlink()
    if not hints:
        forget(log_directory, *HINTS)
    if hints or which == 1:
        refused(log_directory, CorruptionError, "missing")
    elif which == 0:  # as after retention; nothing tells the difference
        assert read(log_directory) == list(THREE[1:])
    else:
        assert read(log_directory) == list(THREE[:2])


def test_all_segments_missing(log_directory) -> None:
    write(log_directory, b"a")
    segments(log_directory)[0].unlink()
    refused(log_directory, CorruptionError, "the checkpoint names segments that are gone")


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("hints", [True, False])
def test_a_segment_of_another_log_is_noticed(log_directory, tmp_path, which, hints) -> None:
    """At the latest when it is read, if the checkpoint spares opening it."""
    write(log_directory, *THREE)
    other = tmp_path / "other"
    write(other, *[value[::-1].replace(b"a", b"A") + b"!" for value in THREE])
    if not hints:
        forget(log_directory, *HINTS)
    victim = segments(log_directory)[which]
    victim.write_bytes((other / victim.name).read_bytes())
    with pytest.raises(CorruptionError):
        read(log_directory)


@pytest.mark.parametrize("hints", [True, False])
def test_a_sealed_segment_without_its_footer(log_directory, hints) -> None:
    write(log_directory, *THREE)
    if not hints:
        forget(log_directory, *HINTS)
    first = segments(log_directory)[0]
    first.write_bytes(first.read_bytes()[:-1])
    if hints:  # the checkpoint knows what the footer said
        assert read(log_directory) == list(THREE)
    else:
        refused(log_directory, CorruptionError, "not sealed although another one follows")


def test_a_batch_that_lies_elsewhere_is_no_batch(log_directory) -> None:
    """Not even a copy of a real one: its CRC covers the place at which it was written."""
    write(log_directory, b"a", b"b")
    path, begin, end = last_frame(log_directory)
    data = path.read_bytes()
    path.write_bytes(data + data[begin:end])
    assert read(log_directory) == [b"a", b"b"]


# -- versions --------------------------------------------------------------------------------------


def test_a_newer_segment_is_refused(log_directory) -> None:
    write(log_directory, b"a")
    (path,) = segments(log_directory)
    data = bytearray(path.read_bytes())
    data[12:14] = struct.pack("<H", segment.FORMAT_VERSION + 1)
    data[8:12] = struct.pack("<I", crc32c(bytes(data[12 : segment.HEADER_BYTES])))
    path.write_bytes(data)
    error = refused(log_directory, FormatVersionError, "segment was written by a newer version")
    assert isinstance(error, FormatVersionError)
    assert (error.found, error.supported) == (3, 2)


def test_a_newer_checkpoint_is_refused(log_directory) -> None:
    write(log_directory, b"a")
    fields = struct.pack("<II", checkpoint.VERSION + 1, 4)
    body = b"new!"
    crc = struct.pack("<I", crc32c(fields + body))
    (log_directory / checkpoint.FILE_NAME).write_bytes(checkpoint.MAGIC + fields + crc + body)
    refused(log_directory, FormatVersionError, "checkpoint was written by a newer version")


# -- deletion and head -----------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [(), (1,), (2,), (3,), (1, 3), (1, 2, 3)])
def test_an_interrupted_deletion_is_finished(log_directory, gone) -> None:
    """Whichever removals reached the disk before the crash."""
    opened = open_blocking(log_directory)
    for offset, value in enumerate([*THREE, b"d" * 50 * KIB, b"e"], 1):
        opened.tail.commit([draft_of(offset, value)])
    assert opened.tail.advance_head(4) == [1, 2, 3]
    close_opened(opened, clean=False)
    forget(log_directory, *map(segment.file_name, gone))
    opened = open_blocking(log_directory)
    assert opened.tail.head == 4
    assert values_of(opened) == [b"d" * 50 * KIB, b"e"]
    assert [segment.parse_file_name(path.name) for path in segments(log_directory)] == [4]
    close_opened(opened)


def test_L11_the_head_stays_where_it_was_after_append_and_reopen(log_directory) -> None:
    write(log_directory, *THREE, b"d")
    opened = open_blocking(log_directory)
    opened.tail.remove(opened.tail.advance_head(3))
    close_opened(opened, clean=False)
    for loss in ((), HINTS):
        forget(log_directory, *loss)
        opened = open_blocking(log_directory)
        assert opened.tail.head == 3
        opened.tail.commit([draft_of(opened.tail.durable_limit, b"e")])
        opened.tail.checkpoint()
        close_opened(opened)
    assert read(log_directory) == [THREE[2], b"d", b"e", b"e"]


# -- the outside -----------------------------------------------------------------------------------


def test_L15_a_second_opener_is_told_who_has_it(log_directory) -> None:
    opened = open_blocking(log_directory)
    with pytest.raises(WalLockedError, match="test") as found:
        open_blocking(log_directory)
    assert (found.value.path, found.value.owner) == (str(log_directory), "test")
    close_opened(opened)
    close_opened(open_blocking(log_directory))


def test_a_directory_without_lock_file_rights(log_directory, faulty) -> None:
    write(log_directory, b"a")
    faulty.fail("lock", errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        open_blocking(log_directory, fs=faulty)
    assert open_descriptors(log_directory) == []


def test_a_path_that_is_a_file(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    with pytest.raises(OSError, match="file"):
        open_blocking(path)
    with pytest.raises(OSError, match="file"):
        open_blocking(path / "below")
    assert path.read_bytes() == b"hello"


def test_a_new_log_begins_where_its_tier_ends(log_directory) -> None:
    opened = open_blocking(log_directory, tier_limit=500, tier_url="memory://x")
    assert (opened.tail.head, opened.tail.durable_limit) == (500, 500)
    opened.tail.commit([draft_of(500, b"a")])
    close_opened(opened)
    opened = open_blocking(log_directory, tier_limit=501, tier_url="memory://x")
    assert (opened.tail.head, opened.tail.durable_limit) == (500, 501)
    close_opened(opened)


def test_a_log_that_ends_before_its_tier_is_refused(log_directory) -> None:
    write(log_directory, b"a")
    before = snapshot(log_directory)
    with pytest.raises(ContentionError, match="memory://x holds offsets up to 7"):
        open_blocking(log_directory, tier_limit=7, tier_url="memory://x")
    assert snapshot(log_directory) == before
    assert open_descriptors(log_directory) == []


def test_recovery_writes_nothing_before_it_knows(log_directory, faulty) -> None:
    """A corrupt log is refused without a single changing call but the lock."""
    crash_after(log_directory, b"first", b"second", b"third")
    (path,) = segments(log_directory)
    data = bytearray(path.read_bytes())
    data[data.index(b"second")] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        open_blocking(log_directory, fs=faulty)
    changing = {"pwrite", "truncate", "replace", "remove", "allocate", "store", "cell"}
    assert not changing & {call.kind for call in faulty.calls}


def test_an_error_is_logged_when_synced_records_are_gone(log_directory, caplog) -> None:
    write(log_directory, b"a", b"b", b"c")
    path, begin, _ = last_frame(log_directory)
    path.write_bytes(path.read_bytes()[:begin])
    with caplog.at_level(logging.ERROR, "walstore"):
        opened = open_blocking(log_directory)
    close_opened(opened)
    assert dataclasses.asdict(opened.recovery)["missing_from"] == 3
    assert "ends before offset 3 although offsets below 4 had been synced" in caplog.text


# -- the cell as evidence --------------------------------------------------------------------------


def test_the_cell_knows_where_the_log_begins(log_directory) -> None:
    """An older checkpoint may lie next to newer files, or a segment may be gone with the checkpoint."""
    write(log_directory, *THREE)
    older = (log_directory / "CHECKPOINT").read_bytes()
    opened = open_blocking(log_directory)
    head = opened.sealed[1].start
    opened.tail.remove(opened.tail.advance_head(head))
    close_opened(opened)
    (log_directory / "CHECKPOINT").write_bytes(older)
    opened = open_blocking(log_directory)
    assert opened.tail.head == head
    close_opened(opened)
    assert read(log_directory) == list(THREE[1:])

    (log_directory / "CHECKPOINT").unlink()
    segments(log_directory)[0].unlink()
    refused(log_directory, CorruptionError, "missing at the beginning")
    for path in segments(log_directory):
        path.unlink()
    refused(log_directory, CorruptionError, "the durable cell speaks of records")


def test_how_much_opening_asks_of_the_disk(log_directory, faulty) -> None:
    """A log that was closed is listed once, and its new epoch costs one file and one name."""
    write(log_directory, b"1", b"2")
    opened = open_blocking(log_directory, fs=faulty)
    kinds = Counter(call.kind for call in faulty.calls)
    close_opened(opened)
    assert kinds["list"] == 1
    assert (kinds["datasync"], kinds["sync_directory"]) == (1, 1)
    assert kinds["remove"] == 0


@pytest.mark.parametrize("data", [b"", bytes(checkpoint.CELL_BYTES)], ids=["empty", "zeroes"])
def test_a_damaged_cell_is_read_once(log_directory, faulty, data: bytes) -> None:
    """Nobody else may be half-way through an update while the log is locked."""
    crash_after(log_directory, *THREE)
    (log_directory / checkpoint.CELL_FILE_NAME).write_bytes(data)
    close_opened(open_blocking(log_directory, fs=faulty))
    assert faulty.count("read", name=checkpoint.CELL_FILE_NAME) == 1
    assert read(log_directory) == [*THREE]
