"""The suite finds what is wrong with a store, and its example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from uploader.stores import MemoryStore, ObjectNotFoundError, StoredObject
from uploader.stores.port import ListedObject
from uploader.testing.suite import ObjectStoreLoadSuite, ObjectStoreSuite
from walstore.errors import WalError

PAGE = Path(__file__).parents[3] / "docs" / "stores.md"


class OverwritesOnCreate(MemoryStore):
    async def put_if_absent(self, key, data):
        await self.delete([key])
        return await super().put_if_absent(key, data)


class OverwritesOnSwap(MemoryStore):
    async def put_if_match(self, key, data, etag):
        return await super().put_if_match(key, data, (await self.get(key)).etag)


class CreatesOnSwap(MemoryStore):
    async def put_if_match(self, key, data, etag):
        if await self.head(key) is None:
            return await self.put_if_absent(key, data)
        return await super().put_if_match(key, data, etag)


class QuotesETags(MemoryStore):
    async def get(self, key):
        found = await super().get(key)
        return StoredObject(found.data, f'"{found.etag}"')


class IgnoresTheLimit(MemoryStore):
    async def get(self, key, *, max_bytes=None):
        return await super().get(key)


class TakesNoLimit(MemoryStore):
    """Sound: the port asks for none."""

    async def get(self, key):
        return await super().get(key)


class EndsRangesLate(MemoryStore):
    async def get_range(self, key, start, limit):
        return await super().get_range(key, start, limit + 1)


class RefusesRangesPastTheEnd(MemoryStore):
    async def get_range(self, key, start, limit):
        found = await super().get_range(key, start, limit)
        if not found:
            raise ObjectNotFoundError("out of range", key=key)
        return found


class ListsOnePage(MemoryStore):
    async def list(self, prefix, *, after=None):
        count = 0
        async for listed in super().list(prefix, after=after):
            count += 1
            if count > 1000:
                return
            yield listed


class ListsFromIncluding(MemoryStore):
    async def list(self, prefix, *, after=None):
        if after is not None and await self.head(after) is not None and after.startswith(prefix):
            yield ListedObject(after, 0)
        async for listed in super().list(prefix, after=after):
            yield listed


class OrdersAsUtf16(MemoryStore):
    async def list(self, prefix, *, after=None):
        found = [listed async for listed in super().list(prefix, after=after)]
        for listed in sorted(found, key=lambda listed: listed.key.encode("utf-16-be")):
            yield listed


class MixesUpUnicode(MemoryStore):
    def _normal(self, key):
        return key.replace("e\u0301", "é")

    async def put_if_absent(self, key, data):
        return await super().put_if_absent(self._normal(key), data)

    async def get(self, key):
        return await super().get(self._normal(key))


class CannotDeleteWhatIsMissing(MemoryStore):
    async def delete(self, keys):
        for key in keys:
            await self.get(key)
            await super().delete([key])


class ChecksThenPuts(MemoryStore):
    """In two steps, with a gap between them."""

    async def put_if_match(self, key, data, etag):
        if (await self.get(key)).etag != etag:
            return await super().put_if_match(key, data, etag)
        await self.head(key)
        return self._put(key, data)


BROKEN: dict[type[MemoryStore], str] = {
    OverwritesOnCreate: "test_create_refuses_a_second",
    OverwritesOnSwap: "test_swap",
    CreatesOnSwap: "test_swap_of_a_missing_object",
    QuotesETags: "test_etags_have_no_quotes_and_are_the_same_everywhere",
    IgnoresTheLimit: "test_get_with_a_limit",
    EndsRangesLate: "test_get_range",
    RefusesRangesPastTheEnd: "test_get_range_at_the_edges",
    ListsOnePage: "test_many_objects",
    ListsFromIncluding: "test_list_after",
    OrdersAsUtf16: "test_list_order_beyond_ascii",
    MixesUpUnicode: "test_unusual_keys",
    CannotDeleteWhatIsMissing: "test_delete",
    ChecksThenPuts: "test_concurrent_swappers",
}


async def run(name: str, make: Callable[[str], MemoryStore]) -> None:
    """Run one test of the suites on two stores of one name."""
    place = f"test_suite/{make.__name__}/{name}"
    suite = ObjectStoreSuite() if hasattr(ObjectStoreSuite, name) else ObjectStoreLoadSuite()
    test = getattr(suite, name)
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    await test(**{each: make(place) for each in ("store", "peer") if each in wanted})


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
async def test_a_broken_store_is_found(broken):
    """And the same test passes on a sound one."""
    await run(BROKEN[broken], MemoryStore)
    with pytest.raises((AssertionError, WalError, pytest.fail.Exception)):
        await run(BROKEN[broken], broken)


async def test_a_store_without_a_limit_is_sound():
    await run("test_get_with_a_limit", TakesNoLimit)


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path: Path):
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "test_my_store.py").write_text(code)
    command = re.search(r"pytest .*", code)
    assert command is not None
    done = subprocess.run(
        [sys.executable, "-m", *command[0].split(), "-p", "no:cacheprovider", "--rootdir=."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"[4-9]\d passed", done.stdout), done.stdout
