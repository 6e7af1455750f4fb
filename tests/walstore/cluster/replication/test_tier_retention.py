"""Segments of a replicated log leave its machines once they are in the bucket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.shipped import IDLE, serve_again, sound, tier
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import Settings, Wal
from walstore.log.retention_plan import RetentionHold

pytestmark = pytest.mark.timeout(60)

KEEPS_LITTLE = Settings(segment_bytes=65536, retention_bytes=65536)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def fill(wal: Wal, numbers: range) -> list[bytes]:
    """Append records, several segments of them."""
    content = [b"%06d" % number + b"v" * 4000 for number in numbers]
    for start in range(0, len(content), 8):
        await wal.append_many(content[start : start + 8])
    return content


def segments(cluster: Cluster, number: int) -> list[int]:
    """Return the first offsets of the segments of a machine."""
    return sorted(int(name.split(".")[0]) for name in cluster.files(number))


async def test_copies_keep_no_more_than_the_primary(cluster: Cluster) -> None:
    """What is shipped goes at all of them, and readers go on in the bucket."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store), settings=KEEPS_LITTLE)
    content = await fill(wal, range(1, 161))
    await wal.append(b"last", durability="cloud")
    await until(lambda: wal.statistics().local_head > 100)
    await until(lambda: all(segments(cluster, one)[0] > 100 for one in (1, 2)))
    assert wal.head == 1
    assert await values(wal) == [*content, b"last"]
    await wal.aclose()
    assert await sound(store) == [*content, b"last"]


async def test_nobody_removes_what_is_not_shipped(cluster: Cluster) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    wal = await cluster.primary(0, tier=tier(store), settings=KEEPS_LITTLE)
    store.on("put_if_absent", faults.fail(faults.timeout()), times=10**6, key_prefix="log/")
    content = await fill(wal, range(1, 81))
    await until(lambda: held(wal) is RetentionHold.NOT_UPLOADED)
    assert wal.statistics().local_head == 1
    new = await cluster.primary(1, tier=tier(inner), settings=KEEPS_LITTLE)
    assert segments(cluster, 1)[0] == 1
    assert await new.append(b"last", durability="cloud") == 81
    await until(lambda: new.statistics().local_head > 40)
    assert await values(new) == [*content, b"last"]
    store.is_killed = True
    with contextlib.suppress(BaseException):
        await wal.aclose()
    await new.aclose()
    assert await sound(inner) == [*content, b"last"]


def held(wal: Wal) -> RetentionHold | None:
    """Return why retention keeps a segment."""
    plan = wal._engine.retention.plan
    return plan.held.hold if plan is not None and plan.held is not None else None


async def test_a_new_copy_begins_where_the_primary_does(cluster: Cluster) -> None:
    """The rest is in the bucket only. It becomes the primary, on a machine that never had the rest."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store), settings=KEEPS_LITTLE)
    content = await fill(wal, range(1, 81))
    await cluster.machines[2].stop()
    for path in (cluster.machines[2].path / "orders").iterdir():
        path.unlink()
    content += await fill(wal, range(81, 161))
    content.append(b"last")
    await wal.append(b"last", durability="cloud")
    await until(lambda: wal.statistics().local_head > 100)
    await cluster.machines[2].start()
    await until(lambda: wal.statistics().copies[1].is_present)
    await wal.append(b"and more")
    content.append(b"and more")
    await until(lambda: wal.statistics().copies[1].limit == wal.tail)
    await wal.aclose()

    await serve_again(cluster, 0)
    await cluster.machines[1].stop()
    new = await cluster.primary(2, tier=tier(store, settings=IDLE), settings=KEEPS_LITTLE)
    local_head = new.statistics().local_head
    assert 100 < local_head == segments(cluster, 2)[0]
    assert (new.head, new.tail) == (1, 163)
    await until(lambda: new.uploaded_limit == 163)
    assert await values(new) == content
    assert await new.append(b"new", durability="cloud") == 163
    await new.aclose()
    assert await sound(store) == [*content, b"new"]


async def test_a_copy_that_is_too_far_behind_is_made_anew(cluster: Cluster) -> None:
    """The primary has removed what follows its end; it still has older segments, which go."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store), settings=KEEPS_LITTLE)
    content = await fill(wal, range(1, 17))
    await cluster.machines[1].stop()
    content += await fill(wal, range(17, 161))
    await wal.append(b"last", durability="cloud")
    content.append(b"last")
    await until(lambda: wal.statistics().local_head > 100)
    await cluster.machines[1].start()
    await until(lambda: wal.statistics().copies[0].limit == wal.tail)
    await wal.aclose()
    await cluster.machines[2].stop()
    await serve_again(cluster, 0)
    new = await cluster.primary(1, tier=tier(store), settings=KEEPS_LITTLE)
    assert new.statistics().local_head > 100
    assert await values(new) == content
    assert await new.append(b"new", durability="cloud") == 162
    await new.aclose()
