"""Old names: they work for one version, and the warning is at the place that uses them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from walstore.core.runtime.old_names import renamed


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


def test_it_looks_like_what_it_renames() -> None:
    assert str(inspect.signature(plain)) == "(new: 'int' = 0) -> 'int'"
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isasyncgenfunction(generator)
