"""walstore.open: a log for reading, by its location alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import walstore
from tests.walstore.serve.served import serving
from uploader import CloudWriter
from uploader.layouts.log_session import Layout
from uploader.stores.url import SCHEMES
from walstore import InvalidSettingsError, LogNotFoundError, Wal


@asynccontextmanager
async def directory(path: Path) -> AsyncIterator[Any]:
    async with Wal.open(path / "log") as wal:
        await wal.append(b"v")
        yield path / "log"


@asynccontextmanager
async def store(path: Path) -> AsyncIterator[Any]:
    url = (path / "log").as_uri()
    async with CloudWriter.open(url) as log:
        await log.append(b"v")
        yield url


@asynccontextmanager
async def server(path: Path) -> AsyncIterator[Any]:
    async with serving(path / "log") as served:
        await served.wal.append(b"v")
        yield served.address


@pytest.mark.parametrize("place", [directory, store, server])
async def test_a_log_is_opened_wherever_it_is(tmp_path: Path, place: Any) -> None:
    async with place(tmp_path) as location:
        async with walstore.open(location) as log:
            assert (log.head, log.limit) == (1, 2)
            assert [record.value async for record in log.reader(follow=False)] == [b"v"]
        again = await walstore.open(location)
        await again.aclose()


async def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    async with serving(tmp_path / "served") as served:
        for location in (
            tmp_path / "none",
            str(tmp_path / "none"),
            (tmp_path / "none").as_uri(),
            "memory://none",
            f"{served.address}?log=none",
        ):
            with pytest.raises(LogNotFoundError):
                await walstore.open(location)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served"]


@pytest.mark.parametrize(
    ("location", "error", "said"),
    [
        ("http://host/log", InvalidSettingsError, "must begin with .* not http:"),
        ("://", InvalidSettingsError, "must begin with"),
        ("tcp://host", InvalidSettingsError, "not an address"),
        ("", InvalidSettingsError, r"^walstore.open\(\) needs a directory"),
        ("s3:/bucket", InvalidSettingsError, r"s3:// .* write \./s3:/bucket for a directory"),
        ("file:log", InvalidSettingsError, "file://"),
        ("unix:x", InvalidSettingsError, r"unix:// .* write \./unix:x for a directory"),
        ("tcp:host:7420", InvalidSettingsError, "tcp://"),
        ("~/log", InvalidSettingsError, r"^walstore.open\(\) does not expand"),
        (b"log", TypeError, "str or a path"),
        (7, TypeError, "str or a path"),
    ],
)
def test_no_location_is_refused_at_once(location: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        walstore.open(location)


async def test_a_directory_may_have_the_name_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Wal.open("unix:x") as wal:
        await wal.append(b"v")
    for location in ("./unix:x", Path("unix:x")):
        async with walstore.open(location) as log:
            assert log.limit == 2


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_a_log_of_the_other_kind_is_named(tmp_path: Path, layout: Layout) -> None:
    here, stored = tmp_path / "a log", tmp_path / "stored %"
    async with Wal.open(here) as wal, CloudWriter.open(stored.as_uri(), layout=layout) as log:
        await wal.append(b"v")
        await log.append(b"v")
    with pytest.raises(LogNotFoundError) as told:
        await walstore.open(stored)
    assert str(told.value).endswith(
        f"; its files are those of a stored log: open {stored.as_uri()}"
    )
    assert told.value.location == str(stored)
    with pytest.raises(LogNotFoundError) as told:
        await walstore.open(here.as_uri())
    assert str(told.value).endswith(f"; its files are those of a local log: open {here}")
    for nothing in (tmp_path, tmp_path / "none", tmp_path.as_uri(), "memory://none"):
        with pytest.raises(LogNotFoundError) as told:
            await walstore.open(nothing)
        assert "its files" not in str(told.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_stores_are_known(scheme: str) -> None:
    walstore.open(f"{scheme}:///bucket" if scheme == "file" else f"{scheme}://bucket")


WITHOUT = """
import sys
sys.modules["pyarrow"] = None
import walstore
walstore.open("log"), walstore.open("unix:///run/log.sock")
try:
    walstore.open("s3://bucket/log")
except walstore.MissingExtraError as error:
    assert error.extra == "cloud" and "walstore[cloud]" in str(error), error
else:
    raise AssertionError("it opened")
"""


def test_only_a_store_needs_an_extra() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
