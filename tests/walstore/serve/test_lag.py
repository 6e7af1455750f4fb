"""The lag of cursors, consumers and groups, as the owner of a served log sees it."""

from __future__ import annotations

from pathlib import Path

from tests.local import SMALL
from tests.walstore.serve.served import connected
from walstore import Wal
from walstore.core.runtime.clock import SystemClock


class Calendar(SystemClock):
    """The real clock, whose date a test moves."""

    skipped_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.skipped_us


async def test_statistics_have_the_lag_of_clients(tmp_path: Path) -> None:
    """Also after a client has ended: what nobody moves any more is what an alert is for."""
    clock = Calendar()
    async with connected(tmp_path / "log", settings=SMALL, clock=clock) as (served, remote):

        def lags() -> dict[str, int]:
            return dict(served.wal.statistics().cursor_lag_records)

        await remote.append_many([b"%d" % n for n in range(10)])
        async with served.connect() as other:
            consumer = other.consumer("billing", auto_commit_seconds=None)
            async with consumer:
                assert lags() == {"billing": 10}
                await consumer.fetch(max_records=4)
                await consumer.commit()
                assert lags() == {"billing": 6}
            group = other.group("mail")
            async with group:
                await group.fetch(3)
                assert served.wal.statistics().groups["mail"].pending == 3
        await remote.append(b"more")
        assert lags()["billing"] == 7
        leased = await remote.cursor("leased", lease_seconds=60)
        assert lags()["leased"] == 11
        clock.skipped_us += 61_000_000
        assert "leased" not in lags()
        await leased.renew()
        assert lags()["leased"] == 11
        await leased.delete()
        assert await remote.delete_cursor("billing")
        assert not {"leased", "billing"} & lags().keys()


async def test_a_cursor_that_is_deleted_has_no_lag(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        await wal.append(b"x")
        first, second = await wal.cursor("a"), await wal.cursor("b")
        assert wal.statistics().cursor_lag_records == {"a": 1, "b": 1}
        await first.delete()
        await wal.delete_cursor("b")
        assert wal.statistics().cursor_lag_records == {}
        assert second.position == 1
