"""The file that says under which names a directory claimed its tier."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from walstore.core.batches.conditions import MAX_VALUE_CHARS
from walstore.core.files.directory import load_claims
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.claims import FILE_BYTES, FILE_NAME, MOST_NAME_CHARS, MOST_NAMES, Claims
from walstore.errors import FormatVersionError

SOME = Claims(("one", "two"), "before")


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    for claims in (Claims(), SOME, Claims(("x" * MOST_NAME_CHARS,) * MOST_NAMES, None)):
        (tmp_path / FILE_NAME).write_bytes(claims.encode())
        assert load_claims(PosixFileSystem(), tmp_path) == claims


def test_it_is_read_as_it_was_written_to_a_register() -> None:
    for claims in (Claims(), SOME, Claims(("x" * MOST_NAME_CHARS,) * MOST_NAMES, "y")):
        assert Claims.of_register(claims.to_register(), "orders") == claims
        assert len(claims.to_register()) < MAX_VALUE_CHARS
    for damaged in ("", "[]", "{}", '{"version": 1, "names": [1]}', "["):
        assert Claims.of_register(damaged, "orders") is None
    with pytest.raises(FormatVersionError):
        Claims.of_register('{"version": 2}', "orders")


def test_its_length_never_changes() -> None:
    """So there is room for the next name on a full disk."""
    claims = Claims(succeeds="s" * MOST_NAME_CHARS)
    for number in range(3 * MOST_NAMES):
        assert len(claims.encode()) == FILE_BYTES
        claims = claims.and_then(f"{number:0{MOST_NAME_CHARS}}")
    assert len(claims.names) == MOST_NAMES
    assert int(claims.names[-1]) == 3 * MOST_NAMES - 1


def test_names_that_do_not_fit() -> None:
    for name in ("x" * (MOST_NAME_CHARS + 1), "\u00e9"):
        with pytest.raises(ValueError, match="a claim's name"):
            SOME.and_then(name)


def test_damage_counts_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = SOME.encode()
    used = len(data.rstrip())
    for at in range(used):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert Claims.decode(bytes(damaged), "x") in {None, SOME}
    for size in range(used):
        assert Claims.decode(data[:size], "x") is None
    assert load_claims(PosixFileSystem(), tmp_path) == Claims()
    assert not caplog.text
    (tmp_path / FILE_NAME).write_bytes(data[:20])
    assert load_claims(PosixFileSystem(), tmp_path) == Claims()
    assert "count for nothing" in caplog.text


def test_another_shape_or_version() -> None:

    def decode(line: bytes) -> Claims | None:
        return Claims.decode(line + b"\n%08x\n" % crc32c(line), "x")

    for line in (
        b"[]",
        b"1",
        b"?",
        b"{}",
        b'{"version":1,"names":[1]}',
        b'{"version":1,"names":"a"}',
    ):
        assert decode(line) is None
    assert decode(b'{"version":1,"names":["a"],"succeeds":2}') == Claims(("a",))
    with pytest.raises(FormatVersionError):
        decode(b'{"version":2}')
