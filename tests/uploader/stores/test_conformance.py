"""The suites that third parties get, run on every store of ours and on every wrapper."""

from __future__ import annotations

import os
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.s3.rgw import ENDPOINT
from tests.uploader.stores.gcs_server import CREDENTIALS, GcsServer, url_of
from uploader.stores import (
    HedgedStore,
    HedgeSettings,
    LocalStore,
    MemoryStore,
    MeteredStore,
    RetryingStore,
    StoreWrapper,
    open_store,
)
from uploader.testing import FaultyStore, LatencyStore
from uploader.testing.latency import fixed
from uploader.testing.suite import ObjectStoreLoadSuite, ObjectStoreSuite

EAGER = HedgeSettings(
    least_samples=1,
    least_wait_seconds=1e-6,
    quantile=0.01,
    hedges_per_second=1e6,
    max_under_way=1000,
    settle_seconds=60,
)
"""Hedges nearly everything."""


def passing_on(inner):
    """Return the wrappers that make each call once, around one store.

    Every call goes through each of them. The one that might hide what another one does is inside.
    """
    slow = LatencyStore(FaultyStore(RetryingStore(inner)), fixed(1e-4))
    return StoreWrapper(MeteredStore(slow))


WRAPPERS = {"passing on": passing_on, "hedged": lambda inner: HedgedStore(inner, EAGER)}


def stacked(inner):
    """Return all wrappers that a program may want, around one store."""
    return MeteredStore(HedgedStore(RetryingStore(MeteredStore(inner)), EAGER))


class InMemory:
    @pytest.fixture
    async def store(self, request):
        async with aclosing(MemoryStore(request.node.nodeid)) as store:
            yield store

    @pytest.fixture
    async def peer(self, request):
        async with aclosing(MemoryStore(request.node.nodeid)) as peer:
            yield peer


class OnDisk:
    @pytest.fixture
    async def store(self, tmp_path):
        async with aclosing(LocalStore(tmp_path / "not yet" / "there")) as store:
            yield store

    @pytest.fixture
    async def peer(self, store):
        async with aclosing(open_store(store.url)) as peer:
            yield peer


class OverHttp:
    @pytest.fixture
    async def store(self, s3_url):
        async with aclosing(open_store(s3_url)) as store:
            yield store

    @pytest.fixture
    async def peer(self, s3_url):
        async with aclosing(open_store(s3_url)) as peer:
            yield peer


class TestMemoryStore(InMemory, ObjectStoreSuite):
    pass


class TestLocalStore(OnDisk, ObjectStoreSuite):
    pass


@pytest.mark.s3
class TestS3Store(OverHttp, ObjectStoreSuite):
    pass


class ByObstore:
    @pytest.fixture
    async def store(self, s3_url):
        async with aclosing(open_store(f"{s3_url}&client=obstore")) as store:
            yield store

    @pytest.fixture
    async def peer(self, s3_url):
        async with aclosing(open_store(f"{s3_url}&client=obstore")) as peer:
            yield peer


@pytest.mark.s3
class TestObstoreStore(ByObstore, ObjectStoreSuite):
    pass


@pytest.mark.s3
class TestGoogle(ObjectStoreSuite):
    """With generations for ETags, on a server of ours: no emulator has Google's XML interface."""

    @pytest.fixture
    async def gcs(self, monkeypatch):
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", CREDENTIALS)
        server = GcsServer()
        await server.start()
        yield server
        await server.stop()

    @pytest.fixture
    async def store(self, gcs):
        async with aclosing(open_store(url_of(gcs, "logs/orders"))) as store:
            yield store

    @pytest.fixture
    async def peer(self, gcs):
        async with aclosing(open_store(url_of(gcs, "logs/orders"))) as peer:
            yield peer


class TestWrappers(ObjectStoreSuite):
    """None of them changes what a store does."""

    @pytest.fixture(params=WRAPPERS.values(), ids=WRAPPERS)
    async def wrap(self, request):
        return request.param

    @pytest.fixture
    async def store(self, wrap, request):
        async with aclosing(wrap(MemoryStore(request.node.nodeid))) as store:
            yield store

    @pytest.fixture
    async def peer(self, wrap, request):
        async with aclosing(wrap(MemoryStore(request.node.nodeid))) as peer:
            yield peer


class TestAllWrappersOnDisk(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path):
        async with aclosing(stacked(LocalStore(tmp_path))) as store:
            yield store

    @pytest.fixture
    async def peer(self, tmp_path):
        async with aclosing(stacked(LocalStore(tmp_path))) as peer:
            yield peer


@pytest.mark.slow
@pytest.mark.s3
class TestAllWrappersOverHttp(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, s3_url):
        async with aclosing(stacked(open_store(s3_url))) as store:
            yield store

    @pytest.fixture
    async def peer(self, s3_url):
        async with aclosing(stacked(open_store(s3_url))) as peer:
            yield peer


class TestMemoryStoreUnderLoad(InMemory, ObjectStoreLoadSuite):
    pass


@pytest.mark.slow
class TestLocalStoreUnderLoad(ObjectStoreLoadSuite):
    """In memory, if there is a directory there: thousands of syncs say nothing about listings."""

    @pytest.fixture
    async def store(self, tmp_path):
        memory = Path("/dev/shm")
        parent = memory if memory.is_dir() else tmp_path
        with tempfile.TemporaryDirectory(dir=parent, prefix="walstore-test-") as directory:
            async with aclosing(LocalStore(Path(directory))) as store:
                yield store

    @pytest.fixture
    async def peer(self, store):
        async with aclosing(open_store(store.url)) as peer:
            yield peer


@pytest.mark.s3
@pytest.mark.slow
class TestS3StoreUnderLoad(OverHttp, ObjectStoreLoadSuite):
    # The emulator takes ten milliseconds for each object.
    objects = ObjectStoreLoadSuite.objects if ENDPOINT in os.environ else 1_020


@pytest.mark.s3
@pytest.mark.slow
class TestObstoreStoreUnderLoad(ByObstore, ObjectStoreLoadSuite):
    objects = TestS3StoreUnderLoad.objects
