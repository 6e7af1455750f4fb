"""A log for the benchmarks of Spark, shipped to a store.

``WALSTORE_BENCH_SPARK_RECORDS`` sets the number of records of 100 B (default 2 000 000).
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from uploader import CloudTier
from walstore import Wal

RECORDS = int(os.environ.get("WALSTORE_BENCH_SPARK_RECORDS", "2000000"))
VALUE_BYTES = 100
_MANY = 5000


def make_log(root: Path, records: int = RECORDS) -> tuple[Path, Path]:
    """Return a log and the store it was shipped to; the values are hexadecimal digits."""
    log, store = root / "log", root / "store"
    asyncio.run(_fill(log, store, records))
    return log, store


async def _fill(log: Path, store: Path, records: int) -> None:
    chance = random.Random(1)
    async with Wal.open(log, tier=CloudTier(f"file://{store}")) as wal:
        for _ in range(records // _MANY):
            digits = chance.randbytes(VALUE_BYTES * _MANY // 2).hex().encode()
            values = [digits[at : at + VALUE_BYTES] for at in range(0, len(digits), VALUE_BYTES)]
            await wal.append_many(values, durability="memory")
