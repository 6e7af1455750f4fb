"""Plans of compaction: repeated passes leave layers that decrease."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.versioned.shapes import head_of, merged, version_key
from uploader.versioned.compaction import CompactionPlan, plan_compaction
from uploader.versioned.head import Head
from uploader.versioned.transitions import next_version
from walstore.errors import ContentionError


def apply(head: Head, plan: CompactionPlan) -> Head:
    """Return the head after a pass that removes no update."""
    output = merged(plan.lower, plan.upper, plan.rows, since=plan.since)
    version = next_version(head, run=plan.run, output=output, created_us=1)
    return dataclasses.replace(head, version=version, version_key=version_key(version.n))


@given(rows=st.lists(st.integers(0, 5000), min_size=1, max_size=30), is_full=st.booleans())
def test_repeated_passes_leave_layers_that_decrease(rows: list[int], is_full: bool) -> None:
    head = head_of(*rows)
    while (plan := plan_compaction(head, [], is_full=is_full)) is not None:
        assert head.version.position_of(plan.run) is not None
        assert plan.is_oldest == (plan.lower == 0)
        head = apply(head, plan)
    layers = [batch.layer for batch in head.version.batches]
    assert layers == sorted(set(layers), reverse=True)
    assert len(layers) <= 1 + math.log2(max(sum(rows), 1))
    assert (head.version.rows, head.upper) == (sum(rows), 10 * len(rows))
    assert not is_full or len(layers) == 1


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 2), (1, 2), (1, 3), (0, 3)])
def test_a_version_takes_exactly_what_replaces_a_run(start: int, end: int) -> None:
    head = head_of(8, 4, 2)
    run = head.version.batches[start:end]
    output = merged(10 * start, 10 * end, 1)
    assert output in next_version(head, run=run, output=output, created_us=0).batches
    wrong = [merged(10 * start + 1, 10 * end), merged(10 * start, 10 * end - 1)]
    wrong += [merged(10 * start + 1, 10 * end + 1), merged(10 * start, 10 * end, since=1)]
    for other in wrong:
        with pytest.raises(ContentionError):
            next_version(head, run=run, output=other, created_us=0)
    if end < 3:
        with pytest.raises(ContentionError):
            next_version(head, run=run, output=merged(10 * start, 10 * end + 1), created_us=0)


def test_a_run_that_is_not_there_is_not_replaced() -> None:
    head = head_of(8, 4, 2)
    one, two, three = head.version.batches
    for run in ([one, three], [two, one], [two, three, merged(30, 40)]):
        with pytest.raises(ContentionError, match="no longer"):
            next_version(head, run=run, output=merged(0, 30), created_us=0)
