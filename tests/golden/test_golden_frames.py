"""Frames of version 1 stay readable, byte for byte. See regenerate.py for what the files hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frames import batch_of, header_of
from tests.golden.regenerate import DIRECTORY, describe, frames_v1

PATHS = sorted(DIRECTORY.glob("*.frame"))
FRAMES = list(frames_v1())


def test_the_files_are_there() -> None:
    assert [path.stem for path in PATHS] == [name for name, _, _ in FRAMES]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_golden_frame_reads_as_it_always_did(path: Path) -> None:
    data = path.read_bytes()
    batch = batch_of(data)
    assert batch.header.end == len(data)
    assert describe(data, batch.records()) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("item", FRAMES, ids=lambda item: item[0])
def test_the_same_records_still_make_the_same_bytes(item) -> None:
    name, data, _ = item
    assert (DIRECTORY / f"{name}.frame").read_bytes() == data


def test_golden_frames_form_one_chain() -> None:
    data = b"".join(path.read_bytes() for path in PATHS)
    position, next_offset, previous_crc = 0, 1, 0
    while position < len(data):
        header = header_of(data, position)
        assert (header.start, header.previous_crc) == (next_offset, previous_crc)
        position, next_offset, previous_crc = header.end, header.limit, header.crc
    assert next_offset == 19
