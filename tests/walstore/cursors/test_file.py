"""The layout of cursor files: what is written is read, anything else is refused."""

from __future__ import annotations

import dataclasses
import re
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from tests import format_tables
from walstore import CorruptionError, FormatVersionError
from walstore.cursors import file as cursor_file
from walstore.cursors.file import CursorState, check_name, decode_cursor, encode_cursor
from walstore.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US

PAGE = Path(__file__).parents[3] / "docs" / "consumers.md"
STATE = CursorState(42, 7, b"12345678", 1000, 60, 1060, "process 12 on somewhere")


@pytest.mark.parametrize(
    "state",
    [
        STATE,
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
        decode_cursor(encode_cursor(dataclasses.replace(STATE, **change)), "c")
    assert (caught.value.path, caught.value.position) == ("c", 24)


def test_a_long_owner_is_cut() -> None:
    found = decode_cursor(encode_cursor(dataclasses.replace(STATE, owner="x" * 1000)), "c")
    assert found.owner == "x" * cursor_file.MOST_OWNER_BYTES


def test_an_owner_cut_within_a_character_still_reads() -> None:
    found = decode_cursor(encode_cursor(dataclasses.replace(STATE, owner="x" + "ü" * 200)), "c")
    assert found.owner.startswith("x" + "ü" * 127)


def test_every_flipped_bit_is_found() -> None:
    whole = encode_cursor(STATE)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError) as found:
            decode_cursor(bytes(data), "cursors/billing")
        assert found.value.path == "cursors/billing"


def test_a_cut_or_extended_file_is_found() -> None:
    whole = encode_cursor(STATE)
    for size in range(len(whole)):
        with pytest.raises(CorruptionError):
            decode_cursor(whole[:size], "c")
    with pytest.raises(CorruptionError):
        decode_cursor(whole + b"\0", "c")


def test_another_length_under_a_right_crc_is_found() -> None:
    body = encode_cursor(STATE)[12:] + b"more"
    data = cursor_file.MAGIC + struct.pack("<I", crc32c(body)) + body
    with pytest.raises(CorruptionError, match="wrong length"):
        decode_cursor(data, "c")


def test_a_newer_version_is_named() -> None:
    body = struct.pack("<HH", cursor_file.VERSION + 1, 0) + bytes(100)
    data = cursor_file.MAGIC + struct.pack("<I", crc32c(body)) + body
    with pytest.raises(FormatVersionError) as found:
        decode_cursor(data, "cursors/billing")
    assert (found.value.path, found.value.found) == ("cursors/billing", cursor_file.VERSION + 1)


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
    assert not STATE.is_expired(1059)
    assert STATE.is_expired(1060)
    assert not dataclasses.replace(STATE, deadline_us=0).is_expired(2**63)


def test_renewing_keeps_the_commit() -> None:
    found = STATE.renewed(2000, "me")
    assert (found.tag, found.position) == (STATE.tag, STATE.position)
    assert (found.updated_us, found.lease_us, found.deadline_us) == (2000, 60, 2060)
    assert STATE.renewed(2000, "me", 5).deadline_us == 2005
    assert dataclasses.replace(STATE, lease_us=0).renewed(2000, "me").deadline_us == 0


def test_the_table_is_the_struct() -> None:
    rows = format_tables.table("Cursor", PAGE)
    assert format_tables.struct_format(rows) == cursor_file.HEADER.format
    assert format_tables.field_names(rows)[4:] == [
        field.name for field in dataclasses.fields(CursorState)[:-1]
    ]
    (magic,) = [row["meaning"] for row in rows if row["field"] == "`magic`"]
    written = re.search(r"`([^`]+)`", magic)[1].encode().decode("unicode_escape")
    assert written.encode() == cursor_file.MAGIC
    (owner,) = [row["meaning"] for row in rows if row["field"] == "`owner_bytes`"]
    assert f"at most {cursor_file.MOST_OWNER_BYTES}" in owner
