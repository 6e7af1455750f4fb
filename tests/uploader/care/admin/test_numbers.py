"""Numbers in stored documents: whoever may write to a bucket makes them anything; errors are typed ones."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.cases import case
from tests.cloud import FAST, URL, copy_store, snapshot
from tests.uploader.logs import begin, roll_up
from uploader import CloudLog, CloudWriter, GarbageCollector
from uploader.care.admin.scrubber import Scrubber
from uploader.format import layout
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from walstore.core.runtime.threads import Worker
from walstore.errors import WalError

EXTREMES = (-1, 2**63, 2**64 - 1, 2**64, 1.5, True)


async def _scrub(store: ObjectStore) -> None:
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        await scrubber.scrub()


async def _read(store: ObjectStore) -> None:
    async with CloudLog.open(URL, store=store, retry=FAST) as log:
        await log.verify()
        await log.fragments()


async def _plan(store: ObjectStore) -> None:
    async with GarbageCollector.open(URL, store=store, retry=FAST) as collector:
        await collector.plan()


async def _write(store: ObjectStore) -> None:
    async with CloudWriter.open(URL, store=store, retry=FAST) as writer:
        await writer.append(b"x")


DOORS: dict[str, Callable[[ObjectStore], Awaitable[None]]] = {
    door.__name__: door for door in (_scrub, _read, _plan, _write)
}


async def _a_log() -> MemoryStore:
    """Return a bucket with a manifest, a tree of snapshots, a cursor, and what a collector noted."""
    store, worker = MemoryStore(), Worker("test")
    try:
        log = await begin(store, worker, 9)
        await roll_up(log, store)
    finally:
        worker.close()
    async with CloudLog.open(URL, store=store, retry=FAST) as stored:
        await stored.cursors.create("c", 6)
    return store


def _edited(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a document with one number, or all of one name, made extreme."""
    places = list(_numbers(document, ()))
    for extreme in EXTREMES:
        for path in places:
            yield f"{path} {extreme}", _with(document, [path], extreme)
        for name in {path[-1] for path in places}:
            same = [path for path in places if path[-1] == name]
            yield f"all {name} {extreme}", _with(document, same, extreme)


def _numbers(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
        if type(item) is int:
            yield (*path, name)
        elif isinstance(item, dict | list):
            yield from _numbers(item, (*path, name))


def _with(document: Any, paths: list[tuple[Any, ...]], number: Any) -> Any:
    edited = copy.deepcopy(document)
    for *owners, name in paths:
        place = edited
        for owner in owners:
            place = place[owner]
        place[name] = number
    return edited


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
async def test_a_number_out_of_range_is_a_typed_error(door: str) -> None:
    store = await _a_log()
    documents = {key: data for key, data in (await snapshot(store)).items() if data[:1] == b"{"}
    assert layout.MANIFEST in documents
    assert len(documents) > 4
    for key, data in documents.items():
        for what, edited in _edited(json.loads(data)):
            forged = await copy_store(store, {key: json.dumps(edited).encode()})
            with case(key, what), contextlib.suppress(WalError):
                await DOORS[door](forged)
