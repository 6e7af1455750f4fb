"""Replicated logs that ship to a bucket: their tiers, and what is there."""

from __future__ import annotations

import pytest

from tests.cloud import FAST, SMALL, URL, cloud_values
from tests.walstore.cluster.replication.cluster import Cluster
from uploader import CloudTier, Scrubber, UploadSettings
from uploader.layouts.log_session import Layout
from uploader.stores.port import ObjectStore
from walstore import (
    Wal,
    WalError,
)

IDLE = UploadSettings(fragment_bytes=4096, fragment_age_seconds=3600.0)
"""Ships nothing that nobody waits for."""

both = pytest.mark.parametrize("shape", ["swap", "chain"])


def tier(
    store: ObjectStore,
    shape: Layout = "swap",
    settings: UploadSettings = SMALL,
    *,
    take_over: bool = False,
) -> CloudTier:
    """Return a tier in that layout."""
    return CloudTier(
        URL, store=store, settings=settings, retry=FAST, layout=shape, take_over=take_over
    )


async def end(wal: Wal) -> WalError | None:
    """Close a log and return what that raised."""
    try:
        await wal.aclose()
    except WalError as error:
        return error
    return None


async def sound(store: ObjectStore) -> list[bytes]:
    """Return everything in the bucket, which has no fault and names nothing twice."""
    async with Scrubber.open(URL, store=store) as scrubber:
        report = await scrubber.scrub()
    assert report.is_sound, report.findings
    return await cloud_values(store)


async def serve_again(cluster: Cluster, *numbers: int) -> None:
    """Let machines that were primaries hold copies again."""
    for number in numbers:
        await cluster.machines[number].start()
