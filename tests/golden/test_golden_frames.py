"""Frames of every version stay readable, byte for byte. See regenerate.py for what the files contain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frames import batch_of, header_of
from tests.golden.regenerate import DIRECTORIES, describe, frames, place_of
from walstore.core.format import frame, segment

FILES = [
    pytest.param(version, *item, id=f"v{version}-{item[0]}")
    for version in DIRECTORIES
    for item in frames(version)
]


def paths(version: int) -> list[Path]:
    return sorted(DIRECTORIES[version].glob("*.frame"))


@pytest.mark.parametrize("version", DIRECTORIES)
def test_the_files_are_there(version: int) -> None:
    assert [path.stem for path in paths(version)] == [name for name, *_ in frames(version)]


@pytest.mark.parametrize(("version", "name", "at", "data", "records"), FILES)
def test_a_golden_frame_reads_as_it_always_did(version, name, at, data, records) -> None:
    path = DIRECTORIES[version] / f"{name}.frame"
    found = path.read_bytes()
    batch = batch_of(found, at=at)
    assert batch.header.end == len(found)
    assert batch.header.version == version
    assert describe(found, at, batch.records()) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize(("version", "name", "at", "data", "records"), FILES)
def test_the_same_records_still_make_the_same_bytes(version, name, at, data, records) -> None:
    assert (DIRECTORIES[version] / f"{name}.frame").read_bytes() == data


@pytest.mark.parametrize("version", DIRECTORIES)
def test_golden_frames_form_one_chain(version: int) -> None:
    data = bytes(segment.HEADER_BYTES) + b"".join(path.read_bytes() for path in paths(version))
    position, next_offset, previous_crc = segment.HEADER_BYTES, 1, 0
    while position < len(data):
        header = header_of(data, position, place_of(version, position))
        assert (header.start, header.previous_crc) == (next_offset, previous_crc)
        position, next_offset, previous_crc = header.end, header.limit, header.crc
    assert next_offset == 19


def test_a_golden_frame_is_whole_at_its_place_only() -> None:
    """In version 2. A frame of version 1 is whole wherever it is found."""
    for version in DIRECTORIES:
        for _, at, data, _ in frames(version):
            header = header_of(data, at=at)
            for elsewhere in (frame.NOWHERE, place_of(2, 0), place_of(2, header.end)):
                assert frame.is_whole(memoryview(data), header, elsewhere) == (elsewhere == at)
