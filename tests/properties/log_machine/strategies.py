"""What Hypothesis chooses from: settings, records, conditions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.local import SMALL
from tests.properties.log_model import MOST_PRODUCERS, WINDOW, Item
from walstore.core.settings import KIB
from walstore.testing.power import KEEP_ALL, LOSE_ALL

BASE = SMALL.replace(
    max_record_bytes=9000,
    channel_bytes=20_000,
    cache_bytes=8 * KIB,
    transaction_memory_bytes=2 * KIB,
    producer_window=WINDOW,
    max_producers=MOST_PRODUCERS,
    min_free_bytes=0,
)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"sync": "os"},
    {"sync": 1.0, "durability": "memory"},
    {"compression": "zstd"},
    {"batch_bytes": 64 * KIB, "cache_bytes": 0, "read_ahead_bytes": 64 * KIB},
    {"linger_seconds": 0.001, "segment_bytes": 256 * KIB},
    {"channel_records": 5, "durability": "memory"},
]
VARIANT = st.sampled_from(VARIANTS)
FORGOTTEN = st.sampled_from([(), (), ("CHECKPOINT",), ("DURABLE",), ("CHECKPOINT", "DURABLE")])
SEEDS = st.one_of(st.just(KEEP_ALL), st.just(LOSE_ALL), st.integers(2, 1 << 16))
STREAMS = st.sampled_from(["eu", "us", "asia"])
NAMES = st.sampled_from("abc")
LEVELS = st.sampled_from([None, "memory", "disk"])
VALUES = st.one_of(st.binary(max_size=20), st.integers(0, 4000).map(lambda size: b"v" * size))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.binary(max_size=5),
        "stream": STREAMS,
        "headers": st.dictionaries(NAMES, st.binary(max_size=3), max_size=2),
    },
)
ITEMS = st.tuples(VALUES, OPTIONS)
# Nothing is drawn in the middle of a rule: what the log has done by then is not the same each time.
PICK = st.integers(0, 1 << 30)
"""Picks a place or a thing among those that there are."""
UPDATES = st.dictionaries(NAMES, st.sampled_from([None, "x", "y"]), max_size=2)


def records_of(size: int, count: int) -> list[Item]:
    """Return records whose place can be told."""
    return [((b"%d " % at).ljust(size, b"."), {}) for at in range(count)]


EXPECTED = st.one_of(st.none(), st.none(), UPDATES)
BEHIND = st.sampled_from([None, None, None, None, 0, 0, 1, -1])
BODIES = st.one_of(
    st.lists(ITEMS, max_size=3),
    st.builds(records_of, st.sampled_from([300, 1000, 8900]), st.integers(3, 30)),
    st.builds(records_of, st.just(8000), st.just(40)),
)
"""Records of a transaction: none, a few, more than its memory, more than one batch of its file."""
