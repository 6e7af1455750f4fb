"""KeyedLocks: one at a time for each name."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from walstore.core.runtime.keyed_locks import KeyedLocks


async def test_one_at_a_time_for_a_name_in_the_order_they_came() -> None:
    gates = KeyedLocks(1)
    order: list[str] = []

    async def visit(name: str, who: str) -> None:
        async with gates.pass_through(name):
            order.append(f"{who} in")
            await asyncio.sleep(0)
            order.append(f"{who} out")

    async with asyncio.TaskGroup() as group:
        for who in "123":
            group.create_task(visit("a", who))
    assert order == ["1 in", "1 out", "2 in", "2 out", "3 in", "3 out"]
    assert gates.busy == []


async def test_names_do_not_wait_for_each_other() -> None:
    gates = KeyedLocks(1)
    async with gates.pass_through("a"), gates.pass_through("b"):
        assert sorted(gates.busy) == ["a", "b"]
    assert gates.busy == []


async def test_who_is_cancelled_while_waiting_leaves_the_gate_to_others() -> None:
    gates = KeyedLocks(1)

    async def visit() -> str:
        async with gates.pass_through("a"):
            return "through"

    async with gates.pass_through("a"):
        first, second = asyncio.create_task(visit()), asyncio.create_task(visit())
        await asyncio.sleep(0)
        first.cancel()
        await until(first.done)
        assert gates.busy == ["a"]
    assert await second == "through"
    assert gates.busy == []


async def test_an_error_opens_the_gate() -> None:
    gates = KeyedLocks(1)
    with pytest.raises(ZeroDivisionError):
        async with gates.pass_through("a"):
            raise ZeroDivisionError
    async with gates.pass_through("a"):
        pass
