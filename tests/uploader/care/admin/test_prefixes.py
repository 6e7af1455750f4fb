"""A prefix belongs to one log or one collection: whatever begins a log refuses that of a collection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest

from uploader import CloudTier, CloudWriter, Collection, bootstrap, fork
from walstore import InvalidSettingsError, Wal


async def a_tier(url: str, directory: Path, _: str) -> None:
    async with Wal.open(directory / "other", tier=CloudTier(url)) as wal:
        await wal.append(b"1", durability="cloud")


async def a_writer(url: str, *_: object) -> None:
    async with CloudWriter.open(url) as writer:
        await writer.append(b"1")


async def a_bootstrap(url: str, *_: object) -> None:
    await bootstrap(url, start=10)


async def a_fork(url: str, _: Path, source: str) -> None:
    await fork(source, url)


@pytest.mark.parametrize("begin", [a_tier, a_writer, a_bootstrap, a_fork])
async def test_no_log_begins_in_a_collection(
    begin: Callable[[str, Path, str], Awaitable[None]], tmp_path: Path
) -> None:
    place, source = tmp_path / "people", (tmp_path / "source").as_uri()
    async with Wal.open(tmp_path / "wal", tier=CloudTier(source)) as wal:
        await wal.append(b"1", durability="cloud")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    async with Collection.open(
        place.as_uri(), create=True, schema=schema, key=["id"], kind="upsert"
    ):
        pass
    before = sorted(place.rglob("*"))
    with pytest.raises(InvalidSettingsError, match=r"there is a collection at .*its own prefix"):
        await begin(place.as_uri(), tmp_path, source)
    assert {path.name for path in place.rglob("*")} - {path.name for path in before} <= {
        ".tmp",
        "walstore-probe",
    }
