"""GroupCoordinator: how far it reads ahead of its members."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local import SMALL
from walstore import Wal


@pytest.mark.parametrize("size", [0, 20, 3000])
async def test_what_is_not_settled_takes_so_much_memory_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """However many members wait and whatever the records hold; all of them come, as others are settled."""
    monkeypatch.setattr("walstore.groups.coordinator.MOST_HELD_BYTES", 20_000)
    monkeypatch.setattr("walstore.groups.coordinator._READ_RECORDS", 5)  # at once
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        for _ in range(60):
            await wal.append_many([bytes(size)] * 5)
        seen: list[int] = []
        async with wal.group("g", max_ack_pending=1000) as group:
            while len(seen) < 300:
                jobs = await group.fetch(1000, max_wait=60)
                unsettled = (await group.statistics()).unsettled
                assert (unsettled - 5) * (size + 200) <= 20_000
                seen += [job.offset for job in jobs]
                await group.ack(jobs)
        assert seen == list(range(1, 301))
