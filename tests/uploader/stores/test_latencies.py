"""Quantiles over the last samples."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from uploader.stores.latencies import Latencies


@given(
    st.lists(st.floats(0, 100), min_size=1),
    st.integers(1, 20),
    st.floats(0.01, 0.99),
)
def test_a_quantile_is_a_sample_that_so_many_do_not_exceed(samples, window, fraction):
    latencies = Latencies(window)
    for sample in samples:
        latencies.add(sample)
    last = samples[-window:]
    found = latencies.quantile(fraction)
    assert len(latencies) == len(last)
    assert found == sorted(last)[math.ceil(fraction * len(last)) - 1]
