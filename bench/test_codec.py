"""The cost of compressing a batch, for compressible and incompressible content."""

from __future__ import annotations

import json
from random import Random

import pytest

from walstore.core.format import codec

CHANCE = Random(1)


def json_lines() -> list[bytes]:
    return [
        json.dumps(
            {
                "ts": 1_750_000_000 + n,
                "user": CHANCE.randrange(1_000_000),
                "action": CHANCE.choice(["view", "click", "buy", "leave"]),
                "path": f"/item/{CHANCE.randrange(5000)}",
                "ms": round(CHANCE.random() * 400, 2),
            }
        ).encode()
        for n in range(35_000)
    ]


CONTENT = {
    "json": json_lines(),
    "random": [CHANCE.randbytes(100) for _ in range(40_000)],
    "zeroes": [bytes(100)] * 40_000,
}


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("content", CONTENT)
def test_compress(benchmark, content: str, level: int) -> None:
    values = CONTENT[content]
    packed = benchmark(codec.compress, values, level)
    benchmark.extra_info["megabytes"] = sum(map(len, values)) / 1e6
    benchmark.extra_info["stored"] = len(packed) / sum(map(len, values))


@pytest.mark.parametrize("content", ["json", "zeroes"])
def test_decompress(benchmark, content: str) -> None:
    values = CONTENT[content]
    size = sum(map(len, values))
    packed = memoryview(codec.compress(values))
    assert len(benchmark(codec.decompress, packed, size)) == size
    benchmark.extra_info["megabytes"] = size / 1e6


@pytest.mark.parametrize("size_bytes", [300, 4096, 65_536])
def test_compress_small(benchmark, size_bytes: int) -> None:
    data = b"".join(CONTENT["json"])[:size_bytes]
    assert len(benchmark(codec.compress, [data])) < size_bytes
