"""Compression of batches: what went in comes out, and what is damaged or forged costs no memory."""

from __future__ import annotations

import importlib
import threading
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import programs
from walstore.core.format import codec
from walstore.core.format.codec import BodyError, compress, decompress

TEXT = b"".join(
    b"user=%d action=click page=/item/%d\n" % (n % 97, n * n % 1009) for n in range(3000)
)
NOISE = Random(1).randbytes(50_000)


def libraries() -> list[tuple[Callable[[object], object], str]]:
    """Both libraries, as far as they are here; a backport stands in for Python 3.14's own."""
    found = []
    for kind, names in (
        (codec._Standard, ("compression.zstd", "backports.zstd")),
        (codec._Package, ("zstandard",)),
    ):
        for name in names:
            try:
                found.append(pytest.param((kind, importlib.import_module(name)), id=name))
                break
            except ImportError:
                continue
    return found


@pytest.fixture(autouse=True, params=libraries())
def library(request, monkeypatch):
    """Every test runs with each library that is installed."""
    monkeypatch.setattr(codec, "_find", lambda: request.param)
    monkeypatch.setattr(codec, "_of_thread", threading.local())
    return request.param


def test_what_goes_in_comes_out() -> None:
    packed = compress([TEXT[:1000], memoryview(TEXT)[1000:2000], bytearray(TEXT[2000:])])
    assert len(packed) < len(TEXT) // 3
    found = decompress(memoryview(packed), len(TEXT))
    assert found == TEXT
    assert found.readonly


def test_either_library_reads_what_the_other_wrote() -> None:
    packed = {}
    for found in libraries():
        kind, module = found.values[0]
        packed[found.id] = kind(module).compress(TEXT, 3)
    for data in packed.values():
        assert decompress(memoryview(data), len(TEXT)) == TEXT


@pytest.mark.parametrize("level", [1, 3, 9, 19])
def test_levels(level) -> None:
    packed = compress([TEXT], level)
    assert decompress(memoryview(packed), len(TEXT)) == TEXT


@pytest.mark.parametrize("size", [256, 257, 65_791, 65_792, 1 << 17, 1 << 20, (1 << 22) + 1])
def test_sizes_around_those_of_the_format(size) -> None:
    data = (TEXT * (size // len(TEXT) + 1))[:size]
    packed = compress([data])
    assert len(packed) < size
    assert decompress(memoryview(packed), size) == data


@pytest.mark.parametrize("data", [b"", b"a", b"a" * (codec.LEAST_BYTES - 1), NOISE])
def test_what_does_not_become_smaller_is_left_as_it_is(data) -> None:
    assert compress([data]) == data


def test_what_is_too_large_is_left_as_it_is(monkeypatch) -> None:
    monkeypatch.setattr(codec, "MOST_BYTES", 1000)
    assert compress([bytes(1001)]) == bytes(1001)
    assert len(compress([bytes(1000)])) < 100


chunks = st.lists(
    st.binary(max_size=300)
    | st.builds(bytes.__mul__, st.binary(min_size=1, max_size=4), st.integers(0, 5000)),
    max_size=8,
)


@given(chunks, st.integers(1, 19))
def test_any_pieces_survive_or_stay_as_they_are(pieces, level) -> None:
    data = b"".join(pieces)
    packed = compress(pieces, level)
    assert len(packed) <= len(data)
    if len(packed) < len(data):
        assert decompress(memoryview(packed), len(data)) == data
    else:
        assert packed == data


# -- damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, 1, -len(TEXT), 1 << 20])
def test_another_size_than_claimed_is_refused(wrong) -> None:
    with pytest.raises(BodyError, match="instead of"):
        decompress(memoryview(compress([TEXT])), len(TEXT) + wrong)


def test_any_flipped_bit_is_found_or_harmless() -> None:
    """The frame's CRC finds them all before this; here they must neither crash nor yield other sizes."""
    packed = compress([TEXT[:2000]])
    for at in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[at // 8] ^= 1 << at % 8
        try:
            found = decompress(memoryview(damaged), 2000)
        except BodyError:
            continue
        assert len(found) == 2000


def test_any_cut_is_found() -> None:
    packed = compress([TEXT])
    for size in {*range(30), *range(30, len(packed), 97), len(packed) - 1}:
        with pytest.raises(BodyError):
            decompress(memoryview(packed)[:size], len(TEXT))


@pytest.mark.parametrize("more", [b"\0", b"more", bytes(9)])
def test_bytes_behind_the_end_are_refused(more) -> None:
    with pytest.raises(BodyError):
        decompress(memoryview(compress([TEXT]) + more), len(TEXT))


def test_two_frames_are_refused() -> None:
    with pytest.raises(BodyError):
        decompress(memoryview(compress([TEXT]) * 2), len(TEXT))


@given(st.binary(max_size=60), st.integers(0, 1 << 32))
def test_any_bytes_are_refused_or_fit(data, size) -> None:
    for start in (b"", codec._MAGIC):
        try:
            found = decompress(memoryview(start + data), size)
        except BodyError:
            continue
        assert len(found) == size


def frame_of(size: int, blocks: bytes, *, window: int | None = None) -> memoryview:
    """Return a zstd frame that claims ``size`` bytes and wants a window of 2 ** ``window``."""
    single = window is None
    header = bytes([0b1100_0000 | (0x20 if single else 0)])
    if window is not None:
        header += bytes([(window - 10) << 3])
    return memoryview(codec._MAGIC + header + size.to_bytes(8, "little") + blocks)


def repeat_block(size: int, *, last: bool) -> bytes:
    return ((size << 3) | 2 | last).to_bytes(3, "little") + b"x"


def test_a_frame_made_by_hand_is_read() -> None:
    data = frame_of(100, repeat_block(100, last=True))
    assert decompress(data, 100) == b"x" * 100


def test_more_than_was_claimed_takes_no_memory() -> None:
    """4 bytes stand for 128 KiB: 2 000 of such blocks would be 250 MiB."""
    bomb = frame_of(1000, repeat_block(1 << 17, last=False) * 2000 + repeat_block(1, last=True))
    tracemalloc.start()
    try:
        with pytest.raises(BodyError):
            decompress(bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [codec.MOST_BYTES + 1, 1 << 40])
def test_a_claim_beyond_all_bounds_is_refused(size) -> None:
    with pytest.raises(BodyError, match="the maximum is"):
        decompress(frame_of(size, b""), size)


def test_a_window_beyond_the_content_is_refused() -> None:
    data = repeat_block(5000, last=True)
    assert decompress(frame_of(5000, data, window=13), 5000) == b"x" * 5000
    with pytest.raises(BodyError, match="needs 1073741824 bytes of memory"):
        decompress(frame_of(5000, data, window=30), 5000)


def test_a_dictionary_is_refused() -> None:
    data = codec._MAGIC + bytes([0x20 | 1, 7]) + bytes([100]) + repeat_block(100, last=True)
    with pytest.raises(BodyError, match="dictionary"):
        decompress(memoryview(data), 100)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    data = codec._MAGIC + bytes([0, 0]) + repeat_block(100, last=True)
    with pytest.raises(BodyError):
        decompress(memoryview(data), 100)


# -- threads -----------------------------------------------------------------------------------------


def test_each_thread_has_contexts_of_its_own_and_keeps_them() -> None:
    found: list[object] = []
    failures: list[object] = []

    def work(number: int) -> None:
        data = Random(number).randbytes(100) * 500
        for _ in range(50):
            if decompress(memoryview(compress([data])), len(data)) != data:
                failures.append(number)
        found.extend([codec._library(), codec._library()])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(map(id, found))) == 4


# -- without a library -------------------------------------------------------------------------------


WITHOUT = """
import sys
sys.modules["zstandard"] = sys.modules["compression.zstd"] = None  # importing one of these now fails
import walstore
from walstore.core.format import codec
from walstore.errors import InvalidSettingsError
for call in (codec.require, lambda: codec.compress([bytes(1000)])):
    try:
        call()
    except InvalidSettingsError as error:
        assert "walstore[zstd]" in str(error), error
    else:
        raise AssertionError("nothing was raised")
assert codec.compress([b"short"]) == b"short"
packed = bytes.fromhex(sys.argv[1])
try:
    codec.decompress(memoryview(packed), 1000)
except ValueError as error:
    assert not isinstance(error, codec.BodyError)
    assert "walstore[zstd]" in str(error), error
else:
    raise AssertionError("nothing was raised")
"""


def test_without_a_library_the_core_runs_and_says_what_is_missing() -> None:
    packed = compress([bytes(1000)])
    done = programs.run(WITHOUT, packed.hex())
    assert done.returncode == 0, done.stderr


def test_with_a_library_nothing_is_missing() -> None:
    codec.require()
