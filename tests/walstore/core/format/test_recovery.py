"""Recovery: which frames survive, and whether the rest is torn (may go) or corrupt (may not)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import frames
from walstore.core.format import frame, recovery
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.recovery import Chain, Evidence, Verdict
from walstore.core.format.segment import SegmentIndex

SECTOR = 512


def build_log(
    counts: list[int], *, sync_each: bool = True, size: int = 20, epoch: int = 1
) -> list[bytes]:
    """Return chained frames, each synced before the next was made, or none of them."""
    found: list[bytes] = []
    start, crc = 1, 0
    for count in counts:
        values = [bytes([65 + start % 26]) * size] * count
        records = frames.values_only(*values, start=start, timestamp_us=start)
        synced = start if sync_each else 1
        data = frames.build(records, previous_crc=crc, epoch=epoch, synced_limit=synced)
        crc = frames.header_of(data).crc
        start += count
        found.append(data)
    return found


def fresh_chain() -> Chain:
    return Chain(1, 0, 0, 1)


def walk(data: bytes, chain: Chain | None = None) -> tuple[int, Chain]:
    chain = chain or fresh_chain()
    return follow(data, chain), chain


def follow(data: bytes, chain: Chain, index: SegmentIndex | None = None, at: int = 64) -> int:
    """Follow the frames of a segment that begin at a byte; return how many bytes they take."""
    scan = FrameScan.of(memoryview(data), at, None)
    return recovery.follow(scan, chain, index or SegmentIndex(), at) - at


def known(durable_limit: int) -> Evidence:
    return Evidence(durable_limit=durable_limit)


def verdict(data: bytes, durable_limit: int = 0) -> Verdict:
    at, chain = walk(data)
    return recovery.judge(memoryview(data)[at:], chain, known(durable_limit))[0]


def test_it_follows_every_whole_frame_and_notes_where_the_log_stands() -> None:
    log = build_log([2, 3, 1])
    at, chain = walk(b"".join(log))
    assert at == sum(map(len, log))
    last = frames.header_of(log[-1])
    assert chain == Chain(7, last.crc, last.max_timestamp_us, 1)


def test_it_notes_the_time_of_the_last_record_not_of_the_last_batch() -> None:
    first, last = frames.values_only(b"a", b"b")
    data = frames.build([first._replace(timestamp_us=5), last._replace(timestamp_us=9)])
    _, chain = walk(data)
    assert chain.timestamp_us == 9


def test_it_indexes_frames_by_their_place_in_the_file() -> None:
    log = build_log([1] * 3, size=20_000)
    index = SegmentIndex()
    follow(b"".join(log), fresh_chain(), index, 5000)
    assert list(index.starts) == [1, 2, 3]
    assert list(index.positions) == [5000, 5000 + len(log[0]), 5000 + len(log[0]) + len(log[1])]


@pytest.mark.parametrize("zeroes", [0, 8, 100_000])
def test_nothing_but_zeroes_is_the_end(zeroes) -> None:
    assert verdict(b"".join(build_log([2, 2])) + bytes(zeroes)) is Verdict.END


@pytest.mark.parametrize("tail", ["cut", "zeroed"])
def test_a_last_frame_cut_off_at_any_byte_is_torn(tail) -> None:
    log = build_log([2, 2, 3])
    whole = b"".join(log)
    keep = len(log[0]) + len(log[1])
    for size in range(keep + 1, len(whole)):
        data = whole[:size] + (bytes(len(whole) - size) if tail == "zeroed" else b"")
        at, chain = walk(data)
        assert (at, chain.next_offset) == (keep, 5)
        found, why = recovery.judge(memoryview(data)[at:], chain, known(5))
        assert found is (Verdict.TORN if any(data[at:]) else Verdict.END), size
        assert found is Verdict.END or why == "an unfinished batch at offset 5"


def test_a_torn_frame_stays_torn_when_checkpoint_or_cell_know_better_but_it_was_cut() -> None:
    """A file cut by somebody else: what is left is all there is."""
    log = build_log([2, 2])
    data = b"".join(log)[:-9]
    assert verdict(data, durable_limit=5) is Verdict.TORN


def test_any_loss_of_sectors_in_an_unsynced_commit_is_torn() -> None:
    """One commit of several frames, synced together, of which any sectors reached the disk."""
    durable = build_log([2])
    chain = fresh_chain()
    follow(durable[0], chain)
    commit = _continue(chain, [5, 5, 5], size=100)
    whole = b"".join(commit)
    sectors = -(-len(whole) // SECTOR)
    for kept in itertools.product([True, False], repeat=sectors):
        data = b"".join(
            whole[at * SECTOR : (at + 1) * SECTOR] if keep else bytes(SECTOR)
            for at, keep in enumerate(kept)
        )
        data = durable[0] + data + bytes(SECTOR)
        at, now = walk(data)
        found, why = recovery.judge(memoryview(data)[at:], now, known(chain.next_offset))
        assert found is not Verdict.CORRUPT, (kept, why)
        assert now.next_offset >= 3


def _continue(chain: Chain, counts: list[int], size: int = 20) -> list[bytes]:
    found, start, crc = [], chain.next_offset, chain.previous_crc
    for count in counts:
        records = frames.values_only(*[b"c" * size] * count, start=start, timestamp_us=start)
        data = frames.build(
            records, previous_crc=crc, epoch=chain.epoch, synced_limit=chain.next_offset
        )
        found.append(data)
        crc, start = frames.header_of(data).crc, start + count
    return found


def test_every_flipped_bit_in_a_synced_frame_is_corruption() -> None:
    log = build_log([2, 2, 2])
    whole = b"".join(log)
    for bit in range(8 * (len(log[0]) + len(log[1]))):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        at, chain = walk(bytes(data))
        assert at in (0, len(log[0]))
        assert recovery.judge(memoryview(data)[at:], chain, known(0))[0] is Verdict.CORRUPT, bit


def test_every_flipped_bit_in_the_last_frame_is_corruption_once_it_is_known_to_be_synced() -> None:
    log = build_log([2, 2])
    whole = b"".join(log)
    for bit in range(8 * len(log[0]), 8 * len(whole)):
        for behind in (b"", bytes(4096)):
            data = bytearray(whole + behind)
            data[bit // 8] ^= 1 << bit % 8
            assert verdict(bytes(data), durable_limit=5) is Verdict.CORRUPT, bit
            assert verdict(bytes(data), durable_limit=3) is Verdict.TORN, bit


def test_a_synced_frame_that_became_zeroes_is_corruption_if_a_later_one_tells() -> None:
    log = build_log([2, 2, 2])
    assert verdict(log[0] + bytes(len(log[1])) + log[2]) is Verdict.CORRUPT


def test_an_unsynced_frame_before_a_whole_one_of_the_same_commit_is_torn() -> None:
    log = build_log([2, 2, 2], sync_each=False)
    assert verdict(log[0] + bytes(len(log[1])) + log[2]) is Verdict.TORN


def test_frames_that_do_not_continue_the_log_are_corruption() -> None:
    log = build_log([2, 2, 2])
    foreign = build_log([2, 2], size=21)
    older = build_log([2], epoch=1)
    assert verdict(log[0] + log[2]) is Verdict.CORRUPT  # one is missing
    assert verdict(log[0] + log[1] + log[1]) is Verdict.CORRUPT  # one is repeated
    assert verdict(log[1] + log[0]) is Verdict.CORRUPT  # reordered
    assert verdict(log[0] + foreign[1]) is Verdict.CORRUPT  # of another log
    chain = Chain(1, 0, 0, 2)
    assert follow(older[0], chain) == 0  # of an older writer
    assert recovery.judge(memoryview(older[0]), chain, known(0))[0] is Verdict.CORRUPT


def test_garbage_that_was_never_synced_is_torn() -> None:
    log = build_log([2])
    assert verdict(log[0] + b"garbage" * 100) is Verdict.TORN


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_nonzero(data, zeroes) -> None:
    padded = data + bytes(zeroes)
    assert recovery.any_nonzero(memoryview(padded)) == any(padded)


@pytest.mark.parametrize("at", [0, 65_535, 65_536, 131_071, 199_999])
def test_a_single_byte_far_behind_is_seen(at) -> None:
    data = bytearray(200_000)
    assert not recovery.any_nonzero(memoryview(data))
    data[at] = 1
    assert recovery.any_nonzero(memoryview(data))


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    lost=st.data(),
)
def test_whatever_is_lost_of_the_last_commit_the_synced_prefix_stays(counts, lost) -> None:
    log = build_log([1, *counts])
    durable = log[0]
    chain = fresh_chain()
    follow(durable, chain)
    commit = b"".join(_continue(chain, counts))
    kept = bytearray(commit)
    for _ in range(lost.draw(st.integers(0, 4))):
        low = lost.draw(st.integers(0, len(kept)))
        high = lost.draw(st.integers(low, len(kept)))
        kept[low:high] = bytes(high - low)
    data = durable + bytes(kept[: lost.draw(st.integers(0, len(kept)))])
    at, now = walk(data)
    assert at >= len(durable)
    assert (
        recovery.judge(memoryview(data)[at:], now, known(chain.next_offset))[0]
        is not Verdict.CORRUPT
    )


def test_frames_inside_values_are_not_taken_for_frames_of_the_log() -> None:
    """A log may hold the frames of another log as values; a torn batch of them is still torn."""
    inner = build_log([2, 2, 2, 2])
    padding = next(
        pad
        for pad in range(frame.ALIGNMENT)
        if _place(frames.build(_nesting(inner, pad)), inner[-1]) % frame.ALIGNMENT == 0
    )
    outer = frames.build(_nesting(inner, padding))
    for size in range(len(outer) - 30, len(outer)):
        assert verdict(outer[:size]) is Verdict.TORN


def _nesting(inner: list[bytes], padding: int):
    return frames.values_only(b"p" * padding, *inner)


def _place(outer: bytes, wanted: bytes) -> int:
    return outer.index(wanted)
