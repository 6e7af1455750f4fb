"""Cursors of version 1 stay readable. See regenerate_cursor.py for what they hold."""

from __future__ import annotations

import pytest

from tests.golden.regenerate_cursor import DIRECTORY, EXPECTED
from walstore.positions.cursors.directory import decode_cursor, encode_cursor


def test_the_files_are_there() -> None:
    assert sorted(path.name for path in DIRECTORY.iterdir()) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_reads_and_is_written_the_same(name: str) -> None:
    data = (DIRECTORY / name).read_bytes()
    assert decode_cursor(data, name) == EXPECTED[name]
    assert encode_cursor(EXPECTED[name]) == data
