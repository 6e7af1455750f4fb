"""run_to_end: work of several steps ends, however often its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from tests.local import turns
from walstore.runtime.tasks import run_to_end


@pytest.mark.parametrize("fails", [False, True])
async def test_no_step_is_left_out_and_the_caller_is_cancelled(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged, as the caller cannot get it."""
    steps, gates = list[int](), [asyncio.Event(), asyncio.Event()]

    async def close() -> None:
        for number, gate in enumerate(gates):
            await gate.wait()
            steps.append(number)
        if fails:
            raise OSError("it failed")

    caller = asyncio.create_task(run_to_end(close()))
    for gate in gates:
        await turns()
        caller.cancel()
        await turns()
        gate.set()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert steps == [0, 1]
    await turns()
    told = ["closing failed, and nobody waited for it: it failed"]
    assert caplog.messages == (told if fails else [])


async def test_without_a_cancellation_the_caller_gets_what_comes_of_it() -> None:
    async def divide(by: int) -> int:
        return 6 // by

    assert await run_to_end(divide(2)) == 3
    with pytest.raises(ZeroDivisionError):
        await run_to_end(divide(0))
