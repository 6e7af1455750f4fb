"""The marker of a restore that is under way."""

from __future__ import annotations

import json

import pytest
from crc32c import crc32c

from walstore.building.restore_marker import RestoreMarker

MARKER = RestoreMarker(url="s3://bucket/ørders", log_id="ab" * 16, head=7, stop=None)


@pytest.mark.parametrize("stop", [None, 100])
def test_there_and_back(stop: int | None) -> None:
    marker = RestoreMarker(url=MARKER.url, log_id=MARKER.log_id, head=7, stop=stop)
    assert RestoreMarker.decode(marker.encode()) == marker


def test_any_flipped_bit_or_cut_is_noticed() -> None:
    data = MARKER.encode()
    for position in range(len(data)):
        spoiled = bytearray(data)
        spoiled[position] ^= 1
        assert RestoreMarker.decode(bytes(spoiled)) is None, position
        assert RestoreMarker.decode(data[:position]) is None, position


def test_another_version_is_not_gone_on_with() -> None:
    line = MARKER.encode().partition(b"\n")[0]
    line = json.dumps(json.loads(line) | {"version": 2}).encode()
    assert RestoreMarker.decode(line + b"\n%08x\n" % crc32c(line)) is None


@pytest.mark.parametrize(
    "line",
    [
        *(b"[]", b"{}", b"[" * 100_000, b"7", b'{"version":1}', b'{"version":[]}'),
        json.dumps({**json.loads(MARKER.encode().partition(b"\n")[0]), "head": -1}).encode(),
        json.dumps({**json.loads(MARKER.encode().partition(b"\n")[0]), "url": 7}).encode(),
    ],
)
def test_what_is_no_marker_though_its_checksum_fits_is_not_gone_on_with(line: bytes) -> None:
    assert RestoreMarker.decode(line + b"\n%08x\n" % crc32c(line)) is None
