"""The object of a cursor: wal3's fields, and ours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from uploader.format.cloud_cursor import CloudCursor
from walstore.errors import (
    CorruptionError,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "wal3_garbage" / "cursor.json"


def test_the_object_is_wal3s() -> None:
    data = GOLDEN.read_bytes()
    cursor = CloudCursor.parse(data, name="a")
    assert (cursor.position, cursor.epoch_us, cursor.writer) == (3, 1234567890123456, "w")
    assert cursor.expires_us is None
    assert cursor.serialise() == data


def test_a_pin_has_one_field_more() -> None:
    """Behind wal3's; when a program of theirs rewrites the object, it holds for good."""
    pin = CloudCursor(name="a", position=3, epoch_us=5, writer="w", expires_us=9)
    data = pin.serialise()
    assert data == b'{"position":{"offset":3},"epoch_us":5,"writer":"w","expires_us":9}'
    assert CloudCursor.parse(data, name="a") == pin
    assert (pin.is_expired(8), pin.is_expired(9)) == (False, True)
    rewritten = CloudCursor.parse(data.replace(b',"expires_us":9', b""), name="a")
    assert not rewritten.is_expired(1 << 60)


def test_one_that_nobody_checked_says_so_and_what_was_there() -> None:
    """Behind wal3's fields, too; theirs go on reading it."""
    before = CloudCursor(name="a", position=7, epoch_us=4, writer="v", expires_us=9)
    made = CloudCursor(name="a", position=3, epoch_us=5, writer="w", is_unchecked=True)
    data = made.serialise()
    assert (
        data == b'{"position":{"offset":3},"epoch_us":5,"writer":"w","unchecked":{"before":null}}'
    )
    assert CloudCursor.parse(data, name="a") == made
    made = dataclasses.replace(made, before=before)
    assert json.loads(made.serialise())["unchecked"]["before"] == json.loads(before.serialise())
    assert CloudCursor.parse(made.serialise(), name="a") == made
    assert made.checked() == CloudCursor(name="a", position=3, epoch_us=5, writer="w")


def test_one_that_was_removed_is_a_pin_that_expired() -> None:
    """Also for programs that know pins and no removals."""
    gone = CloudCursor.removed("a", 3, epoch_us=5, writer="w")
    assert gone.is_removed
    assert gone.is_expired(1)
    assert CloudCursor.parse(gone.serialise(), name="a") == gone


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"position":3,"epoch_us":5,"writer":"w"}',
        b'{"position":{"offset":3},"epoch_us":-5,"writer":"w"}',
        b'{"position":{"offset":3},"epoch_us":5}',
        b'{"position":{"offset":3},"epoch_us":5,"writer":"w","expires_us":"x"}',
        b'{"position":{"offset":3},"epoch_us":5,"writer":"w","unchecked":true}',
        b'{"position":{"offset":3},"epoch_us":5,"writer":"w","unchecked":{"before":{"epoch_us":5}}}',
    ],
)
def test_bad_shapes(data: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"cursor/a\.json"):
        CloudCursor.parse(data, name="a")
