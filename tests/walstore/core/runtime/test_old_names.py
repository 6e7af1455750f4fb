"""Old names: they work for one version, and the warning is at the place that uses them."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import create_autospec

import pytest

from walstore import WrongLoopError
from walstore.core.read.reader import Reader
from walstore.core.runtime.old_names import renamed, unrenamed
from walstore.core.runtime.owned import Owned, checks_itself


@renamed(old="new")
def plain(new: int = 0) -> int:
    return new


@renamed(old="new", older="newer")
async def coroutine(new: int = 0, *, newer: int = 0) -> int:
    return new + newer


@renamed(old="new")
async def generator(new: int = 0) -> AsyncIterator[int]:
    yield new


async def _all(**options: Any) -> list[int]:
    return [plain(**options), await coroutine(**options), await anext(generator(**options))]


async def test_an_argument_has_two_names_for_a_version() -> None:
    assert await _all() == [0, 0, 0]
    assert await _all(new=7) == [7, 7, 7]
    with pytest.warns(DeprecationWarning, match=r"\w+\(\) takes new= now, which was old=") as said:
        assert await _all(old=7) == [7, 7, 7]
    assert [one.filename for one in said] == [__file__] * 3
    with pytest.warns(DeprecationWarning, match="newer= now, which was older="):
        assert await coroutine(3, older=4) == 7


async def test_one_name_at_a_time() -> None:
    for call in (plain, coroutine):
        with pytest.raises(TypeError, match="got 'old' and 'new'"):
            await call(old=1, new=2)
    with (
        pytest.warns(DeprecationWarning, match="new= now"),
        pytest.raises(TypeError, match="multiple values"),
    ):
        plain(1, old=2)


class Handle(Owned):
    """A handle whose owner is the caller, or is not."""

    is_home = True

    def check_owner(self) -> None:
        if not self.is_home:
            raise WrongLoopError("elsewhere")

    @renamed(old="new")
    async def coroutine(self, new: int = 0) -> int:
        return new

    @renamed(old="new")
    @checks_itself
    async def quick(self, new: int = 0) -> int:
        return new

    @renamed(old="new")
    async def generator(self, new: int = 0) -> AsyncIterator[int]:
        yield new

    @renamed(old="new")
    @asynccontextmanager
    async def context(self, new: int = 0) -> AsyncIterator[int]:
        yield new

    @classmethod
    @renamed(old="new")
    async def of_class(cls, new: int = 0) -> int:
        return new


@pytest.mark.parametrize("call", [coroutine, Handle().coroutine, Handle().quick, Handle.of_class])
async def test_the_warning_is_where_the_call_is_also_of_a_task(call: Callable[..., Any]) -> None:
    with pytest.warns(DeprecationWarning, match="new= now") as said:
        waiting = call(old=7)
    assert [one.filename for one in said] == [__file__], "not before it is awaited"
    async with asyncio.TaskGroup() as group:  # a warning in here would be an error
        task = group.create_task(waiting)
    assert task.result() == 7


async def test_the_owner_is_checked_when_the_call_runs() -> None:
    handle = Handle()
    assert [one async for one in handle.generator(3)] == [3]
    async with handle.context(4) as found:
        assert found == 4
    handle.is_home = False
    waiting = handle.coroutine(3), anext(handle.generator(3))
    for one in waiting:
        with pytest.raises(WrongLoopError):
            await one
    assert await handle.quick(3) == 3


def test_it_looks_like_what_it_renames() -> None:
    assert str(inspect.signature(plain)) == "(new: 'int' = 0) -> 'int'"
    assert inspect.iscoroutinefunction(unrenamed(coroutine)[0])
    assert inspect.iscoroutinefunction(unrenamed(Handle.coroutine)[0])
    assert inspect.isasyncgenfunction(unrenamed(Handle.generator)[0])
    assert not inspect.iscoroutinefunction(unrenamed(Handle.context)[0])
    assert unrenamed(test_one_name_at_a_time)[0] is test_one_name_at_a_time
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(coroutine)
        assert inspect.iscoroutinefunction(Handle().coroutine)
    else:
        assert asyncio.iscoroutinefunction(coroutine)
        assert asyncio.iscoroutinefunction(Handle().coroutine)


async def test_mocks_of_a_reader_are_awaited() -> None:
    reader = create_autospec(Reader, instance=True)
    reader.fetch.return_value = 7
    assert await reader.fetch(max_wait_seconds=1.0) == 7
