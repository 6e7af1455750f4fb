"""A small share of ``make fuzz-frames``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.fuzz import frames


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
async def test_a_server_answers_right_and_wrong_frames(first: int, tmp_path: Path) -> None:
    count = some(5000) if first else 50
    first += first_seed("frames")
    total, problems = await frames.run_log(tmp_path, range(first, first + count))
    assert total > 20 * count
    assert problems == []
