"""Sums and fragments, each compared with the minimum: bare hashing, and a bare Parquet column."""

from __future__ import annotations

import hashlib
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.frames import batch_of, build, values_only
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import decode_fragment, verify_fragment
from uploader.fragments.fragment_builder import encode_fragment
from walstore.core.batches.batch import Batch

TIME_US = 1_760_000_000_000_000
COUNTS = {100: 20_000, 1024: 8_000}
BATCH_RECORDS = 1024


def values(size: int) -> list[bytes]:
    """Return values that are half compressible."""
    return [os.urandom(size // 2) * 2 for _ in range(COUNTS[size])]


@pytest.mark.parametrize("size", COUNTS)
def test_setsum_of_records(benchmark, size: int) -> None:
    benchmark.group = f"hash {COUNTS[size]} records of {size} bytes"
    found = values(size)
    benchmark.pedantic(Setsum.of_records, args=(1, TIME_US, found), rounds=15, warmup_rounds=1)
    benchmark.extra_info["items_per_second"] = round(len(found) / benchmark.stats["min"])


@pytest.mark.parametrize("size", COUNTS)
def test_setsum_raw(benchmark, size: int) -> None:
    """The same bytes through hashlib alone: no offsets, no sums."""
    benchmark.group = f"hash {COUNTS[size]} records of {size} bytes"
    found = [bytes(16) + value for value in values(size)]

    def hash_all() -> None:
        for item in found:
            hashlib.sha3_256(item).digest()

    benchmark.pedantic(hash_all, rounds=15, warmup_rounds=1)
    benchmark.extra_info["items_per_second"] = round(len(found) / benchmark.stats["min"])


@pytest.fixture(scope="module", params=COUNTS)
def batches(request: pytest.FixtureRequest) -> list[Batch]:
    """Batches as a log commits them."""
    found = values(request.param)
    return [
        batch_of(build(values_only(*found[low : low + BATCH_RECORDS], start=1 + low)))
        for low in range(0, len(found), BATCH_RECORDS)
    ]


def describe(batches: list[Batch]) -> str:
    """Return what is in the batches, for the name of a group."""
    return f"{sum(map(len, batches))} records of {len(batches[0].values[0])} bytes"


def megabytes_per_second(benchmark, batches: list[Batch]) -> float:
    """Return the values' bytes over the best time."""
    total = sum(map(len, batches)) * len(batches[0].values[0])
    return round(total / 1e6 / benchmark.stats["min"], 1)


def test_encode_fragment(benchmark, batches: list[Batch]) -> None:
    """Columns, zstd, checksums, setsum."""
    benchmark.group = f"encode a fragment of {describe(batches)}"
    benchmark.pedantic(lambda: encode_fragment(batches, timestamp_us=TIME_US), rounds=8)
    benchmark.extra_info["megabytes_per_second"] = megabytes_per_second(benchmark, batches)


def test_encode_raw(benchmark, batches: list[Batch]) -> None:
    """The values alone, as an uncompressed Parquet column."""
    benchmark.group = f"encode a fragment of {describe(batches)}"
    table = pa.Table.from_batches([batch.to_arrow() for batch in batches]).select(["value"])

    def encode() -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(
            table, sink, compression="none", use_dictionary=False, write_statistics=False
        )
        return sink.getvalue().to_pybytes()

    benchmark.pedantic(encode, rounds=8)
    benchmark.extra_info["megabytes_per_second"] = megabytes_per_second(benchmark, batches)


@pytest.mark.parametrize("read", [decode_fragment, verify_fragment])
def test_read_fragment(benchmark, batches: list[Batch], read) -> None:
    """All values as bytes, with and without hashing every record."""
    benchmark.group = f"read a fragment of {describe(batches)}"
    encoded = encode_fragment(batches, timestamp_us=TIME_US)
    entry = encoded.entry(1)
    benchmark.pedantic(lambda: read(encoded.data, entry).values, rounds=8)
    benchmark.extra_info["megabytes_per_second"] = megabytes_per_second(benchmark, batches)
