"""A small share of ``make fuzz-frames``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import frames


@pytest.mark.parametrize("first", [1, pytest.param(1001, marks=pytest.mark.slow)])
async def test_a_server_answers_right_and_wrong_frames(first: int, tmp_path: Path) -> None:
    count = 50 if first == 1 else 1000
    total, problems = await frames.run_log(tmp_path, range(first, first + count))
    assert total > 20 * count
    assert problems == []
