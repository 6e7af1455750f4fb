"""The suite that third parties get, run on every store of ours."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from uploader.stores import LocalStore, MemoryStore, open_store
from uploader.testing import FaultyStore
from uploader.testing.suite import ObjectStoreSuite


class TestLocalStore(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path):
        async with aclosing(LocalStore(tmp_path / "not yet" / "there")) as store:
            yield store

    @pytest.fixture
    async def peer(self, store):
        async with aclosing(open_store(store.url)) as peer:
            yield peer


class TestMemoryStore(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, request):
        async with aclosing(MemoryStore(request.node.nodeid)) as store:
            yield store

    @pytest.fixture
    async def peer(self, request):
        async with aclosing(MemoryStore(request.node.nodeid)) as peer:
            yield peer


class TestFaultyStore(ObjectStoreSuite):
    """Without a plan, the wrapper changes nothing."""

    @pytest.fixture
    async def store(self, request):
        async with aclosing(FaultyStore(MemoryStore(request.node.nodeid))) as store:
            yield store

    @pytest.fixture
    async def peer(self, request):
        async with aclosing(FaultyStore(MemoryStore(request.node.nodeid))) as peer:
            yield peer


@pytest.mark.s3
class TestS3Store(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, s3_url):
        async with aclosing(open_store(s3_url)) as store:
            yield store

    @pytest.fixture
    async def peer(self, s3_url):
        async with aclosing(open_store(s3_url)) as peer:
            yield peer
