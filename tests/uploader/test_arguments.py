"""What callers pass by mistake: refused at the door of every call, by name, before anything is contacted."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from uploader import (
    ChainSettings,
    CloudLog,
    CloudTier,
    CloudWriter,
    CollectorSettings,
    DirtyLog,
    FragmentCache,
    GarbageCollector,
    Scrubber,
    UploadSettings,
    WriterSettings,
    bootstrap,
    destroy,
    fork,
    open_store,
    plan_rebuild,
    restore,
    seal,
)
from uploader.stores import MemoryStore
from walstore.errors import InvalidSettingsError

PLACE = "memory://arguments"

Call = Callable[..., Awaitable[Any]]


async def _tier(url: Any, **options: Any) -> CloudTier:
    return CloudTier(url, **options)


async def _opened(url: Any) -> Any:
    return open_store(url)


async def _restored(url: Any, **options: Any) -> Any:
    return await restore(url, "/nowhere/log", **options)


CALLS: dict[str, Call] = {
    "CloudWriter.open": CloudWriter.open,
    "CloudLog.open": CloudLog.open,
    "CloudTier": _tier,
    "DirtyLog.open": DirtyLog.open,
    "GarbageCollector.open": GarbageCollector.open,
    "Scrubber.open": Scrubber.open,
    "seal": seal,
    "bootstrap": lambda url, **options: bootstrap(url, start=5, **options),
    "destroy": lambda url, **options: destroy(url, confirm=True, **options),
    "plan_rebuild": plan_rebuild,
    "restore": _restored,
}


async def refused(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        await call()


async def test_a_url_is_text() -> None:
    for name, run in CALLS.items():
        for url in (5, None, b"memory://x", Path("/nowhere/log")):
            with case(name, url):
                call = functools.partial(run, url)
                await refused(call, TypeError, "a store URL must be a str, not ")


async def test_both_urls_of_a_fork_are_text() -> None:
    await refused(lambda: fork(5, PLACE), TypeError, "a store URL must be a str")  # type: ignore[arg-type]
    await refused(lambda: fork(PLACE, 5), TypeError, "a store URL must be a str")  # type: ignore[arg-type]
    await refused(lambda: _opened(5), TypeError, "a store URL must be a str")


async def test_a_path_is_told_how_it_becomes_a_url() -> None:
    await refused(lambda: _opened(Path("x")), TypeError, r"path\.absolute\(\)\.as_uri\(\)")


async def test_a_store_has_the_methods_of_one() -> None:
    for name, run in CALLS.items():
        for store in (5, "memory://x", object(), MemoryStore):
            with case(name, store):
                call = functools.partial(run, PLACE, store=store)
                await refused(call, TypeError, "store must be an object store")


async def test_settings_are_of_their_class() -> None:
    for name, kind in (
        ("CloudWriter.open", WriterSettings),
        ("CloudTier", UploadSettings),
        ("DirtyLog.open", WriterSettings),
    ):
        for settings in (5, {}, "x", WriterSettings, ChainSettings()):
            with case(name, kind, settings):
                message = f"settings must be {kind.__name__} or None, not "
                call = functools.partial(CALLS[name], PLACE, settings=settings)
                await refused(call, TypeError, message)


async def test_settings_of_a_collector_and_a_chain_are_of_their_class() -> None:
    async with CloudWriter.open(PLACE) as log:
        await log.append(b"x")
    await refused(
        lambda: GarbageCollector.open(PLACE, settings={}),  # type: ignore[arg-type]
        TypeError,
        f"settings must be {CollectorSettings.__name__}",
    )
    await refused(
        lambda: CloudWriter.open(PLACE, chain=5),  # type: ignore[arg-type]
        TypeError,
        "chain must be ChainSettings or None, not int",
    )


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, InvalidSettingsError),
        (65, InvalidSettingsError),
        (1.0, TypeError),
        (True, TypeError),
        ("4", TypeError),
        (None, TypeError),
    ],
)
async def test_how_much_is_done_at_once_is_a_whole_number(
    value: Any, error: type[Exception]
) -> None:
    for call, name in (
        (lambda: fork(PLACE, f"{PLACE}/fork", concurrency=value), "concurrency"),
        (lambda: plan_rebuild(PLACE, concurrency=value), "concurrency"),
        (lambda: _restored(PLACE, concurrency=value), "concurrency"),
        (lambda: Scrubber.open(PLACE, concurrency=value), "concurrency"),
    ):
        await refused(call, error, f"{name} must be ")


@pytest.mark.parametrize("value", [1.0, True, "4", None])
async def test_offsets_and_sizes_are_whole_numbers(value: Any, tmp_path: Path) -> None:
    async def cache() -> FragmentCache:
        return FragmentCache(tmp_path, max_bytes=value)

    for call, name in (
        (lambda: bootstrap(f"{PLACE}/new", start=value), "start"),
        (lambda: CloudLog.open(PLACE, cache_bytes=value), "cache_bytes"),
        (lambda: _tier(PLACE, cache_bytes=value), "cache_bytes"),
        (cache, "max_bytes"),
    ):
        await refused(call, TypeError, f"{name} must be an int")


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_the_highest_settings_write_a_log_that_can_be_read(layout: Any) -> None:
    most = (1 << 63) - 1
    url = f"{PLACE}/highest/{layout}"
    settings = WriterSettings(
        interval_seconds=1e12,
        patience_seconds=1e12,
        max_timestamp_lead_seconds=1e12,
        pending_bytes=most,
        pending_records=most,
        max_record_bytes=most,
        contention_attempts=most,
    )
    chain = ChainSettings(alpha=32, shards=12)
    async with CloudWriter.open(url, layout=layout, settings=settings, chain=chain) as log:
        assert [await log.append(b"x"), await log.append(b"y")] == [1, 2]
    async with CloudLog.open(url) as found:
        assert (await found.verify()).records == 2
