"""No public call takes one text for a list of texts: its letters are never what the caller means."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

import walstore.sync
from tests.cases import case
from tools.class_section import function_of, members_of
from tools.reference_contents import INSIDE, PAGES
from uploader import Collection, LogTable, plan_rebuild, rebuild
from uploader.stores import MeteredStore, ObjectStore, open_store
from uploader.stores.hedged import HedgedStore
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryingStore
from uploader.stores.wrapper import StoreWrapper
from uploader.testing import FaultyStore, LatencyStore, ShuffledStore
from uploader.testing.latency import fixed
from walstore import Replication, Wal
from walstore.http import HttpServer

TEXTS = re.compile(r"\b(?:Sequence|Iterable|Collection|AbstractSet|Set)\[(?:\w+ \| )*str\]")
ALSO_ONE = re.compile(r"(?:^|\| )str(?: \||$)")
"""A parameter that takes one text, too, and means it."""
SCHEMA = pa.schema([("i", pa.int64()), ("d", pa.int64())])
"""Its columns have names of one letter, so that the letters of a text are a list that fits."""


async def _replication(_: Any) -> None:
    Replication(nodes=cast("Any", "tls://a:1"))


async def _http(name: str, tmp_path: Any) -> None:
    async with Wal.open(tmp_path / "log") as log:
        await HttpServer.open(log, listen="127.0.0.1:0", **cast("Any", {name: "http://a"}))


def _deletes(make: Callable[[ObjectStore], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def delete(_: Any) -> None:
        await make(MemoryStore()).delete("ab")

    return delete


async def _local(tmp_path: Any) -> None:
    await open_store(f"file://{tmp_path}").delete(cast("Any", "ab"))


async def _s3(_: Any) -> None:
    await open_store("s3://bucket/x?region=us-east-1").delete(cast("Any", "ab"))


async def _arrow(tmp_path: Any) -> None:
    async with Wal.open(tmp_path / "arrow") as log:
        await log.to_arrow(cast("Any", "offset"))


async def _arrow_batches(tmp_path: Any) -> None:
    async with Wal.open(tmp_path / "arrow") as log:
        log.reader(follow=False).arrow_batches(cast("Any", "offset"))


def _blocking(
    call: Callable[[walstore.sync.BlockingLog], object],
) -> Callable[[Any], Awaitable[Any]]:
    def in_thread(path: Any) -> None:
        with walstore.sync.open(path) as log:
            call(log)

    async def blocking(tmp_path: Any) -> None:
        await asyncio.to_thread(in_thread, tmp_path / "arrow")

    return blocking


CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "Replication.nodes": _replication,
    "HttpServer.open.allow_origins": partial(_http, "allow_origins"),
    "HttpServer.open.allow_hosts": partial(_http, "allow_hosts"),
    "rebuild.exclude": lambda _: rebuild(MemoryStore(), "w", exclude=cast("Any", "ab")),
    "plan_rebuild.exclude": lambda _: plan_rebuild("memory://x", exclude=cast("Any", "ab")),
    "Collection.open.key": lambda _: Collection.open(
        "memory://x", create=True, schema=SCHEMA, key="id", kind="upsert", store=MemoryStore()
    ),
    "LogTable.open.columns": lambda _: LogTable.open(
        "memory://x", "iceberg:a.b", columns=cast("Any", "id:long")
    ),
    "Wal.to_arrow.columns": _arrow,
    "Reader.arrow_batches.columns": _arrow_batches,
    "BlockingLog.to_arrow.columns": _blocking(lambda log: log.to_arrow(cast("Any", "offset"))),
    "BlockingReader.arrow_batches.columns": _blocking(
        lambda log: log.reader(follow=False).arrow_batches(cast("Any", "offset"))
    ),
    "LocalStore.delete.keys": _local,
    "S3Store.delete.keys": _s3,
    "MemoryStore.delete.keys": _deletes(lambda inner: inner),
    "StoreWrapper.delete.keys": _deletes(StoreWrapper),
    "RetryingStore.delete.keys": _deletes(RetryingStore),
    "HedgedStore.delete.keys": _deletes(HedgedStore),
    "MeteredStore.delete.keys": _deletes(MeteredStore),
    "FaultyStore.delete.keys": _deletes(FaultyStore),
    "LatencyStore.delete.keys": _deletes(lambda inner: LatencyStore(inner, fixed(0))),
    "ShuffledStore.delete.keys": _deletes(ShuffledStore),
}
NOT_HERE = {
    "ObstoreStore.delete.keys": "needs a bucket; by the same function as the others",
    "ObjectStore.delete.keys": "a protocol",
    "ClusterMember.replication.nodes": "gives them to Replication",
    **{
        f"{name}.to_arrow.columns": "by the same function as Wal; tests/contract/test_arrow.py"
        for name in [
            "CloudLog",
            "Log",
            "ReadableLog",
            "ReadonlyWal",
            "RemoteReadonlyWal",
            "RemoteWal",
        ]
    },
}


def _parameters() -> Iterator[str]:
    """Yield the parameters of documented functions that are several texts and never one."""
    for page in PAGES:
        for module, names in page.names.items():
            for name in names.split():
                for place, function in _functions(getattr(importlib.import_module(module), name)):
                    for parameter in inspect.signature(function).parameters.values():
                        kind = str(parameter.annotation)
                        if TEXTS.search(kind) and not ALSO_ONE.search(kind):
                            yield ".".join(part for part in (name, place, parameter.name) if part)


def _functions(value: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isfunction(value):
        yield "", value
    if inspect.isclass(value):
        if INSIDE not in (value.__init__.__doc__ or "") and "__init__" in vars(value):
            yield "", value.__init__
        for name, member in members_of(value):
            function = function_of(member)[0]
            if function is not None:
                yield name, function


def test_every_such_parameter_is_known() -> None:
    assert set(_parameters()) == CALLS.keys() | NOT_HERE.keys()


async def test_one_text_is_refused(tmp_path):
    for name, call in CALLS.items():
        with case(name), pytest.raises(TypeError, match="list"):
            await call(tmp_path)
