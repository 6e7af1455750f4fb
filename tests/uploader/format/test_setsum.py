"""Setsum: published vectors, the algebra, and the bulk path against the definition."""

from __future__ import annotations

import struct
import threading
from array import array
from itertools import accumulate, permutations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.wal3.regenerate import setsum_hex
from uploader.format import setsum
from uploader.format.setsum import ITEM_WORK, PAUSE_WORK, PRIMES, SLICE_ITEMS, Setsum

TIME_US = 1_234_567_890_123_456
WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
SEVEN = [f"this is the {word} value".encode() for word in WORDS]
SEVEN_HEX = "c5b3fd4d01f2b8040f54ab7412ca53bbfc990e272a40add1c4ceba6b2fe472d5"

ITEMS = st.lists(st.binary(max_size=40), max_size=8)
SETSUMS = st.builds(Setsum.of_items, ITEMS) | st.builds(
    lambda *columns: Setsum(columns), *(st.integers(0, prime - 1) for prime in PRIMES)
)


def from_words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


# -- published vectors -------------------------------------------------------------------------


def test_the_primes_are_those_of_wal3() -> None:
    assert PRIMES == (
        4294967291,
        4294967279,
        4294967231,
        4294967197,
        4294967189,
        4294967161,
        4294967143,
        4294967111,
    )


def test_the_sum_of_nothing_is_zeroes() -> None:
    assert Setsum() == Setsum.of_items([]) == Setsum.of_records(1, TIME_US, [])
    assert Setsum().hexdigest() == "00" * 32


def test_the_empty_item() -> None:
    found = Setsum.of_items([b""])
    assert found.columns == from_words(
        "f8c6ffa7 66d71ebf 5647c151 62d661a0 4dff80f5 fa493be4 4b0ad882 4a43f880"
    )
    assert found.hexdigest() == "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"


def test_seven_values_in_any_order() -> None:
    for order in list(permutations(SEVEN))[::97]:
        assert Setsum.of_items(order).hexdigest() == SEVEN_HEX


def test_the_sum_of_two_sums() -> None:
    left = "4eec78e0b5cd15df7b36fd42cdc3aecb1986ffa3655c338201db88f80d855465"
    right = "dd901afef0e5d336aaa52a2df7f785c909091fd0aa011980de443a61a889d3e1"
    both = "307d93deb6b3e91525dc277027bc34958d8f1e74965e4c027820c3596e0f2847"
    summed = Setsum.from_hexdigest(left) + Setsum.from_hexdigest(right)
    assert summed.hexdigest() == both
    assert summed - Setsum.from_hexdigest(right) == Setsum.from_hexdigest(left)


def test_the_inverse() -> None:
    columns = from_words("ffffeeee ddddcccc bbbbaaaa 99998888 77776666 66665555 44443333 22221111")
    assert (Setsum() - Setsum(columns)).columns == (
        4365,
        572666659,
        1145328917,
        1717991189,
        2290653487,
        2576984612,
        3149646900,
        3722309174,
    )


@pytest.mark.parametrize(
    ("offset", "body", "expected"),
    [
        (1, "2a2b2c2d", "9a2712dcd8675fd36a0d3283d6bda7a87a4a8bf81b4af96a98dd7b283d6f1cfe"),
        (2, "51525354", "5479a7c97105994f22b8011f5132a52125b6e393b5ef95c546cb13c88e4df269"),
        (0, "010203", "5a5d464629dc8d19455cf744e8fba68b5e693915f11c0fb35dcd73e1c904f46c"),
    ],
)
def test_one_record(offset: int, body: str, expected: str) -> None:
    assert Setsum.of_records(offset, TIME_US, [bytes.fromhex(body)]).hexdigest() == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (100, "7751cc108d8a2a134d6e3c62d5a47499ca465d50d52841c8bf5c56e678e53320"),
        (0, "8ab4181e47a93dd5fb9d21f9bae97f6b89a8addc734d3b261fe039d63e90869c"),
    ],
    ids=["absolute", "relative"],
)
def test_three_records(start: int, expected: str) -> None:
    bodies = [bytes.fromhex(body) for body in ("010203", "040506", "070809")]
    assert Setsum.of_records(start, TIME_US, bodies).hexdigest() == expected


# -- the hex form ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00" * 31,
        "00" * 33,
        SEVEN_HEX.upper(),
        "+0" + "00" * 31,
        " 0" + "00" * 31,
        "0x" + "00" * 31,
        "\N{ARABIC-INDIC DIGIT ZERO}" * 2 + "00" * 31,
        "ff" * 32,
        struct.pack("<8I", *PRIMES).hex(),
    ],
)
def test_only_canonical_lowercase_hex_is_read(text: str) -> None:
    with pytest.raises(ValueError, match="setsum"):
        Setsum.from_hexdigest(text)


@pytest.mark.parametrize("column", range(8))
def test_a_column_that_is_not_reduced_is_refused(column: int) -> None:
    columns = [0] * 8
    columns[column] = PRIMES[column] - 1
    assert Setsum(tuple(columns)).columns == tuple(columns)
    columns[column] = PRIMES[column]
    with pytest.raises(ValueError, match="out of range"):
        Setsum(tuple(columns))
    with pytest.raises(ValueError, match="out of range"):
        Setsum.from_digest(struct.pack("<8I", *columns))


def test_bad_columns_and_digests_are_refused() -> None:
    for columns in ((), (0,) * 7, (0,) * 9, (-1,) + (0,) * 7):
        with pytest.raises(ValueError, match="out of range"):
            Setsum(columns)
    with pytest.raises(ValueError, match="32 bytes"):
        Setsum.from_digest(b"")


def test_it_is_a_value() -> None:
    one, same = Setsum.of_items(SEVEN), Setsum.from_hexdigest(SEVEN_HEX)
    assert one == same
    assert len({one, same, Setsum()}) == 2
    assert repr(one) == f"Setsum({SEVEN_HEX})"
    with pytest.raises(AttributeError):
        one.columns = ()  # type: ignore[misc]


# -- the algebra -------------------------------------------------------------------------------


@given(SETSUMS, SETSUMS, SETSUMS)
def test_addition_is_a_commutative_group(a: Setsum, b: Setsum, c: Setsum) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Setsum() == a
    assert a + b - b == a
    assert a - a == Setsum()
    assert a + (Setsum() - a) == Setsum()
    assert Setsum.total([a, b, c]) == a + b + c


@given(SETSUMS)
def test_digests_can_be_read_back(a: Setsum) -> None:
    assert Setsum.from_digest(a.digest()) == a
    assert Setsum.from_hexdigest(a.hexdigest()) == a


@given(ITEMS, st.randoms(use_true_random=False))
def test_items_may_come_and_go_in_any_order(items: list[bytes], random) -> None:
    total = Setsum()
    for item in items:
        total += Setsum.of_items([item])
    assert total.hexdigest() == setsum_hex(items)
    assert total == Setsum.of_items(iter(items))
    random.shuffle(items)
    for item in items:
        total -= Setsum.of_items([item])
    assert total == Setsum()


def test_total_of_nothing_is_zero() -> None:
    assert Setsum.total([]) == Setsum()


# -- the bulk path -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [1, 2, 3, SLICE_ITEMS - 1, SLICE_ITEMS, SLICE_ITEMS + 1, 2 * SLICE_ITEMS + 7]
)
def test_bulk_sums_are_those_of_the_definition(count: int) -> None:
    values = [index.to_bytes(2, "big") * (index % 5) for index in range(count)]
    items = [struct.pack(">QQ", 7 + index, TIME_US) + value for index, value in enumerate(values)]
    assert Setsum.of_items(items).hexdigest() == setsum_hex(items)
    assert Setsum.of_records(7, TIME_US, values).hexdigest() == setsum_hex(items)


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(0, 30), st.integers(0, 1 << 63))
def test_sums_of_parts_add_up(values: list[bytes], cut: int, start: int) -> None:
    whole = Setsum.of_records(start, TIME_US, values)
    head, tail = values[:cut], values[cut:]
    parts = (
        Setsum.of_records(start, TIME_US, head),
        Setsum.of_records(start + len(head), TIME_US, tail),
    )
    assert whole == parts[0] + parts[1]


@given(st.lists(st.binary(max_size=20), max_size=600), st.integers(0, 5))
def test_slices_of_one_buffer_count_as_values(values: list[bytes], skipped: int) -> None:
    """Also if the first one does not begin where the buffer does."""
    data = memoryview(bytes(skipped) + b"".join(values))
    bounds = list(accumulate(map(len, values), initial=skipped))
    expected = Setsum.of_records(9, TIME_US, values)
    assert Setsum.of_slices(9, TIME_US, data, bounds) == expected
    assert Setsum.of_slices(9, TIME_US, data, memoryview(array("i", bounds))) == expected


def test_columns_carry_into_none_of_their_neighbours() -> None:
    """All columns of all digests as large as can be: every lane of the fold gets its largest sum."""
    count = SLICE_ITEMS
    even, odd = setsum._fold([b"\xff" * 32] * count, 0, 0)
    columns = setsum._from_lanes(even, odd).columns
    assert columns == tuple(count * 0xFFFFFFFF % prime for prime in PRIMES)


@pytest.mark.parametrize(
    ("start", "time_us", "count"),
    [(-1, 0, 1), (0, -1, 1), (1 << 64, 0, 0), ((1 << 64) - 1, 0, 1), (0, 1 << 64, 1)],
)
def test_numbers_beyond_64_bits_are_refused(start: int, time_us: int, count: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        Setsum.of_records(start, time_us, [b""] * count)
    with pytest.raises(ValueError, match="64-bit"):
        Setsum.of_slices(start, time_us, memoryview(b""), [0] * (count + 1))


def test_the_largest_numbers_are_taken() -> None:
    largest = (1 << 64) - 1
    item = struct.pack(">QQ", largest - 1, largest) + b"v"
    assert Setsum.of_records(largest - 1, largest, [b"v"]).hexdigest() == setsum_hex([item])


def test_other_threads_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pauses no more is done than a bounded amount, whatever the size of the records."""
    pauses: list[float] = []
    monkeypatch.setattr(setsum, "time", SimpleNamespace(sleep=pauses.append))
    Setsum.of_records(1, TIME_US, [b""] * (4 * SLICE_ITEMS))
    assert pauses == [0] * (4 * SLICE_ITEMS * ITEM_WORK // PAUSE_WORK)
    pauses.clear()
    Setsum.of_items([bytes(PAUSE_WORK // SLICE_ITEMS)] * (3 * SLICE_ITEMS))
    assert pauses == [0, 0, 0]
    pauses.clear()
    size, count = PAUSE_WORK // SLICE_ITEMS, 3 * SLICE_ITEMS
    Setsum.of_slices(1, 1, memoryview(bytes(size * count)), range(0, size * count + 1, size))
    assert pauses == [0, 0, 0]


def test_it_may_run_on_many_threads_at_once() -> None:
    values = [index.to_bytes(4, "big") for index in range(2000)]
    found: list[Setsum] = []
    threads = [
        threading.Thread(target=lambda: found.append(Setsum.of_records(1, TIME_US, values)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Setsum.of_records(1, TIME_US, values)] * 4
