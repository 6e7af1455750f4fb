"""Cursor files: their layout, the lock, whole files under their names, and what retention sees of them."""

from __future__ import annotations

import dataclasses
import errno
import re
import struct
import threading
from pathlib import Path

import pytest
from crc32c import crc32c

from tests import format_tables
from tests.cursors import StillLog
from walstore import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalLockedError,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US
from walstore.positions.cursor_state import CursorState, check_name
from walstore.positions.cursors import directory as cursor_directory
from walstore.positions.cursors.directory import (
    LOCK_NAME,
    SPARE_NAME,
    decode_cursor,
    encode_cursor,
    hold_cursors,
    list_cursors,
    lowest_pin,
    pins,
    read_cursor,
)
from walstore.testing import FaultyFileSystem

FS = PosixFileSystem()
STATE = CursorState(42, 7, b"12345678", 1000, 0, 0, "me")
LEASED = CursorState(10, 1, b"12345678", 1000, 60, 1060, "me")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log's directory."""
    return StillLog(tmp_path / "log").path


def put(directory: Path, name: str, data: bytes) -> None:
    (directory / "cursors").mkdir(exist_ok=True)
    (directory / "cursors" / name).write_bytes(data)


def test_what_is_written_is_read(directory: Path) -> None:
    with hold_cursors(FS, directory) as held:
        assert held.read("a") is None
        held.write("a", STATE)
        held.sync()
        assert held.read("a") == STATE
    assert read_cursor(FS, directory, "a") == STATE
    assert read_cursor(FS, directory, "b") is None


def test_only_one_at_a_time(directory: Path) -> None:
    with hold_cursors(FS, directory, owner="somebody"):
        with pytest.raises(WalLockedError) as found, hold_cursors(FS, directory):
            pass
        assert found.value.owner == "somebody"
    with hold_cursors(FS, directory):
        pass


def test_the_lock_is_released_when_the_block_fails(directory: Path) -> None:
    with pytest.raises(KeyError), hold_cursors(FS, directory):
        raise KeyError
    with hold_cursors(FS, directory):
        pass


def test_the_order_of_calls_of_a_write(directory: Path, faulty: FaultyFileSystem) -> None:
    with hold_cursors(faulty, directory) as held:
        held.write("a", STATE)
        held.write("b", STATE)
        held.sync()
        held.sync()
    made = [(call.kind, call.path.name) for call in faulty.calls]
    one = [
        ("remove", SPARE_NAME),
        ("open", SPARE_NAME),
        ("pwrite", SPARE_NAME),
        ("datasync", SPARE_NAME),
        ("close", SPARE_NAME),
    ]
    assert made[:2] == [("make_directory", "cursors"), ("lock", LOCK_NAME)]
    middle = [call for call in made[2:] if call[0] != "size"]
    assert middle == [*one, ("replace", "a"), *one, ("replace", "b"), ("sync_directory", "cursors")]


def test_what_a_crash_left_does_not_disturb(directory: Path) -> None:
    put(directory, SPARE_NAME, b"half a cursor")
    with hold_cursors(FS, directory) as held:
        held.write("a", STATE)
    assert list_cursors(FS, directory, 0)[0].state == STATE


@pytest.mark.parametrize(
    ("kind", "code", "expected", "outcome"),
    [
        ("open", errno.EACCES, StorageUnavailableError, "not_written"),
        ("pwrite", errno.ENOSPC, DiskFullError, "not_written"),
        ("datasync", errno.EIO, StorageUnavailableError, "not_written"),
        ("replace", errno.EIO, OutcomeUnknownError, "unknown"),
        ("sync_directory", errno.EIO, OutcomeUnknownError, "unknown"),
    ],
)
def test_failed_calls_say_what_became_of_the_cursor(
    directory: Path, faulty: FaultyFileSystem, kind, code, expected, outcome
) -> None:
    with hold_cursors(FS, directory) as held:
        held.write("a", LEASED)
    with hold_cursors(faulty, directory) as held:
        faulty.fail(kind, code)
        with pytest.raises(expected) as found:
            held.write("a", STATE)
            held.sync()
    assert (found.value.outcome, found.value.retriable) == (outcome, True)
    assert read_cursor(FS, directory, "a") == (STATE if kind == "sync_directory" else LEASED)


def test_a_sync_that_failed_is_made_up_for(directory: Path, faulty: FaultyFileSystem) -> None:
    faulty.fail("sync_directory")
    with hold_cursors(faulty, directory) as held:
        held.write("a", STATE)
        with pytest.raises(OutcomeUnknownError):
            held.sync()
        held.sync()
    assert faulty.count("sync_directory") == 2


def test_removing(directory: Path, faulty: FaultyFileSystem) -> None:
    put(directory, "a", encode_cursor(STATE))
    with hold_cursors(faulty, directory) as held:
        faulty.fail("remove", name="a")
        with pytest.raises(OutcomeUnknownError):
            held.remove("a")
        assert held.remove("a") is True
        assert held.remove("a") is False
        held.sync()
    assert list_cursors(FS, directory, 0) == []
    assert faulty.count("sync_directory") == 1


# -- pins ------------------------------------------------------------------------------------


def test_pins(directory: Path) -> None:
    put(directory, "steady", encode_cursor(STATE))
    put(directory, "leased", encode_cursor(LEASED))
    with hold_cursors(FS, directory):
        found = pins(FS, directory, 1059)
        assert [(p.name, p.position, p.is_expired) for p in found] == [
            ("leased", 10, False),
            ("steady", 42, False),
        ]
        assert lowest_pin(found) == 10
        assert lowest_pin(pins(FS, directory, 1060)) == 42
    assert lowest_pin([]) is None


def test_pins_are_made_durable_first(directory: Path, faulty: FaultyFileSystem) -> None:
    put(directory, "a", encode_cursor(STATE))
    with hold_cursors(faulty, directory):
        faulty.fail("sync_directory")
        with pytest.raises(OSError, match="error"):
            pins(faulty, directory, 0)
        assert [pin.name for pin in pins(faulty, directory, 0)] == ["a"]
        kinds = [call.kind for call in faulty.calls]
        assert kinds.index("sync_directory") < kinds.index("list")


def test_what_cannot_be_read_pins_everything(directory: Path) -> None:
    put(directory, "steady", encode_cursor(STATE))
    put(directory, "damaged", encode_cursor(STATE)[:-1])
    newer = bytearray(encode_cursor(STATE)[12:])
    newer[0] = 2
    crc = cursor_directory.crc32c(bytes(newer)).to_bytes(4, "little")
    put(directory, "newer", cursor_directory.MAGIC + crc + newer)
    with hold_cursors(FS, directory):
        found = {pin.name: pin for pin in pins(FS, directory, 2**62)}
        assert lowest_pin(list(found.values())) == 0
    assert isinstance(found["damaged"].problem, CorruptionError)
    assert isinstance(found["newer"].problem, FormatVersionError)
    assert str(directory / "cursors" / "damaged") in str(found["damaged"].problem)
    assert found["steady"].state == STATE


def test_foreign_names_are_left_alone(directory: Path) -> None:
    for name in (".hidden", "with space", "backup~", LOCK_NAME, SPARE_NAME):
        put(directory, name, b"whatever")
    assert list_cursors(FS, directory, 0) == []


def test_a_log_without_cursors(directory: Path) -> None:
    assert list_cursors(FS, directory, 0) == []
    assert not (directory / "cursors").exists(), "looking makes nothing"


def test_listing_while_cursors_come_and_go(directory: Path) -> None:
    put(directory, "a", encode_cursor(STATE))
    ended = threading.Event()

    def churn() -> None:
        path = directory / "cursors" / "b"
        while not ended.is_set():
            path.write_bytes(b"")
            path.unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert list_cursors(FS, directory, 0)[0].state == STATE
    finally:
        ended.set()
        thread.join()


# -- the head --------------------------------------------------------------------------------


def test_the_head_is_that_on_disk(tmp_path: Path) -> None:
    log = StillLog(tmp_path / "log", head=100)
    with hold_cursors(FS, log.path) as held:
        assert held.head() == 100
        log.move_head(200)
        assert held.head() == 200


def test_the_head_of_a_log_without_hints(tmp_path: Path) -> None:
    log = StillLog(tmp_path / "log")
    (log.path / "DURABLE").unlink()
    with hold_cursors(FS, log.path) as held:
        assert held.head() == 1
        (log.path / "00000000000000000077.wal").touch()
        assert held.head() == 77


PAGE = Path(__file__).parents[4] / "docs" / "consumers.md"
WHOLE = CursorState(42, 7, b"12345678", 1000, 60, 1060, "process 12 on somewhere")


@pytest.mark.parametrize(
    "state",
    [
        WHOLE,
        CursorState(1, 1, bytes(8), 0, 0, 0, ""),
        CursorState(2**64 - 1, MOST_OFFSET, b"\xff" * 8, *[MOST_TIMESTAMP_US] * 3, "ü" * 128),
    ],
)
def test_round_trip(state: CursorState) -> None:
    assert decode_cursor(encode_cursor(state), "c") == state


@pytest.mark.parametrize(
    "change",
    [
        {"position": 0},
        {"revision": 0},
        {"revision": MOST_OFFSET + 1},
        {"updated_us": MOST_TIMESTAMP_US + 1},
        {"lease_us": 2**64 - 1},
        {"deadline_us": 2**64 - 1},
    ],
)
def test_what_no_cursor_can_say_is_corruption(change: dict[str, int]) -> None:
    with pytest.raises(CorruptionError, match="impossible values") as caught:
        decode_cursor(encode_cursor(dataclasses.replace(WHOLE, **change)), "c")
    assert (caught.value.path, caught.value.position) == ("c", 24)


def test_a_long_owner_is_cut() -> None:
    found = decode_cursor(encode_cursor(dataclasses.replace(WHOLE, owner="x" * 1000)), "c")
    assert found.owner == "x" * cursor_directory.MOST_OWNER_BYTES


def test_an_owner_cut_within_a_character_still_reads() -> None:
    found = decode_cursor(encode_cursor(dataclasses.replace(WHOLE, owner="x" + "ü" * 200)), "c")
    assert found.owner.startswith("x" + "ü" * 127)


def test_every_flipped_bit_is_found() -> None:
    whole = encode_cursor(WHOLE)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError) as found:
            decode_cursor(bytes(data), "cursors/billing")
        assert found.value.path == "cursors/billing"


def test_a_cut_or_extended_file_is_found() -> None:
    whole = encode_cursor(WHOLE)
    for size in range(len(whole)):
        with pytest.raises(CorruptionError):
            decode_cursor(whole[:size], "c")
    with pytest.raises(CorruptionError):
        decode_cursor(whole + b"\0", "c")


def test_another_length_under_a_right_crc_is_found() -> None:
    body = encode_cursor(WHOLE)[12:] + b"more"
    data = cursor_directory.MAGIC + struct.pack("<I", crc32c(body)) + body
    with pytest.raises(CorruptionError, match="wrong length"):
        decode_cursor(data, "c")


def test_a_newer_version_is_named() -> None:
    body = struct.pack("<HH", cursor_directory.VERSION + 1, 0) + bytes(100)
    data = cursor_directory.MAGIC + struct.pack("<I", crc32c(body)) + body
    with pytest.raises(FormatVersionError) as found:
        decode_cursor(data, "cursors/billing")
    assert (found.value.path, found.value.found) == (
        "cursors/billing",
        cursor_directory.VERSION + 1,
    )


@pytest.mark.parametrize("name", ["a", "billing", "A-b_c.9", "-", "_", "x" * 128, "LOCK", "a.tmp"])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".lock", ".next", "a/b", "a b", "ü", "a\n", "a\0", "x" * 129]
)
def test_names_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_name(name)


def test_a_lease_ends_at_its_deadline() -> None:
    assert not WHOLE.is_expired(1059)
    assert WHOLE.is_expired(1060)
    assert not dataclasses.replace(WHOLE, deadline_us=0).is_expired(2**63)


def test_renewing_keeps_the_commit() -> None:
    found = WHOLE.renewed(2000, "me")
    assert (found.tag, found.position) == (WHOLE.tag, WHOLE.position)
    assert (found.updated_us, found.lease_us, found.deadline_us) == (2000, 60, 2060)
    assert WHOLE.renewed(2000, "me", 5).deadline_us == 2005
    assert dataclasses.replace(WHOLE, lease_us=0).renewed(2000, "me").deadline_us == 0


def test_the_table_is_the_struct() -> None:
    rows = format_tables.table("Cursor", PAGE)
    assert format_tables.struct_format(rows) == cursor_directory.HEADER.format
    assert format_tables.field_names(rows)[4:] == [
        field.name for field in dataclasses.fields(CursorState)[:-1]
    ]
    (magic,) = [row["meaning"] for row in rows if row["field"] == "`magic`"]
    written = re.search(r"`([^`]+)`", magic)[1].encode().decode("unicode_escape")
    assert written.encode() == cursor_directory.MAGIC
    (owner,) = [row["meaning"] for row in rows if row["field"] == "`owner_bytes`"]
    assert f"at most {cursor_directory.MOST_OWNER_BYTES}" in owner
