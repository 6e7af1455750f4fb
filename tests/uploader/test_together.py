"""Tasks that run together: one error is told, and the one that matters."""

from __future__ import annotations

import asyncio

import pytest

from uploader.together import first_of, together, told_of
from walstore.errors import ContentionError, CorruptionError


async def fail(error: BaseException) -> None:
    raise error


async def test_all_end_before_the_block_does() -> None:
    async with together() as tasks:
        running = tasks.create_task(asyncio.sleep(0, "done"))
    assert running.result() == "done"


async def test_the_error_of_a_task_is_raised_with_its_cause() -> None:
    error = CorruptionError("x", path="p")
    error.__cause__ = OSError("why")
    with pytest.raises(CorruptionError) as caught:
        async with together() as outer:
            async with together() as tasks:
                tasks.create_task(fail(error))
                await asyncio.Event().wait()
            outer.create_task(fail(ValueError()))
    assert caught.value is error
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("defect", [ValueError("x"), MemoryError()])
async def test_a_defect_is_not_hidden_by_an_error_that_is_expected(defect: Exception) -> None:
    with pytest.raises(type(defect)):
        async with together() as tasks:
            tasks.create_task(fail(ContentionError("x")))
            tasks.create_task(fail(defect))


def test_the_first_of_a_group_however_deep() -> None:
    first, second = ContentionError("1"), CorruptionError("2", path="p")
    group = ExceptionGroup("", [ExceptionGroup("", [first]), second])
    assert first_of(group) is told_of(group) is first


async def test_a_cancellation_stays_one() -> None:
    async def wait() -> None:
        async with together() as tasks:
            tasks.create_task(asyncio.Event().wait())

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
