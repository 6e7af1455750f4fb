"""The faults of a ``FaultyStore``.

Each function here returns a fault, which replaces one call. It makes the call or not, and
returns what it returned or raises. ``faults.py`` owns the plan of when.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from uploader.stores.errors import ObjectNotFoundError, PreconditionFailedError
from uploader.stores.wrapper import Request
from walstore.errors import Outcome, StorageUnavailableError, WalError

Fault = Callable[[Request[Any]], Awaitable[object]]
"""Replaces a call: makes it or not, and returns what it returned or raises."""

Says = Literal["ok", "timeout", "412", "409", "500"]
"""What a store reports about a call, whatever its outcome."""

SAYS: tuple[Says, ...] = ("ok", "timeout", "412", "409", "500")
"""All that a store may report."""

_NUMBERS = itertools.count()


class StoreKilled(BaseException):
    """The process is dead: this call and every further one of the store raise this."""


def timeout(outcome: Outcome = "unknown") -> StorageUnavailableError:
    """Return the error of an answer that never came."""
    return StorageUnavailableError("the answer was lost (injected)", outcome=outcome)


def conflict() -> StorageUnavailableError:
    """Return the error for a 409: nothing was decided."""
    return StorageUnavailableError("the object was busy (injected)", outcome="not_written")


def busy() -> StorageUnavailableError:
    """Return the error for a 500: the server failed, before or after the change."""
    return StorageUnavailableError("the server failed (injected)", outcome="unknown")


def report(says: Says, *, happens: bool) -> Fault:
    """Make the call or not, and report an answer that may not match.

    ``report("ok", happens=False)`` is the fault no protocol survives: the store reports success for a call
    it did not make. Such a put returns an ETag that no object has, and such a read what it would return
    if the store had lost everything.

    Args:
        says: ``"ok"`` returns what the call returns, or raises what it raises if it was made and refused;
            the others raise :func:`timeout`, PreconditionFailedError, :func:`conflict` and :func:`busy`.
        happens: Whether the call is made.
    """

    async def fault(request: Request[Any]) -> object:
        answer, refusal = None, None
        if happens:
            try:
                answer = await request()
            except WalError as error:
                refusal = error
        if says != "ok":
            raise _error(says, request.key) from refusal
        if refusal is not None:
            raise refusal
        return answer if happens else _pretend(request)

    return fault


def _error(says: Says, key: str) -> WalError:
    if says == "412":
        return PreconditionFailedError("the precondition failed (injected)", key=key)
    return {"timeout": timeout, "409": conflict}.get(says, busy)()


def _pretend(request: Request[Any]) -> object:
    if request.kind in {"get", "get_range"}:
        raise ObjectNotFoundError("there is no such object (injected)", key=request.key)
    if request.kind in {"put_if_absent", "put_if_match"}:
        return f"lost-{next(_NUMBERS)}"
    return () if request.kind == "list" else None


def fail(error: Exception) -> Fault:
    """Raise without making the call."""

    async def fault(_request: Request[Any]) -> object:
        raise error

    return fault


def happen_then_fail(error: Exception) -> Fault:
    """Make the call, then raise: an answer that was lost. What the call itself raises is lost too."""

    async def fault(request: Request[Any]) -> object:
        try:
            await request()
        except Exception as unseen:
            raise error from unseen
        raise error

    return fault


def hang(release: asyncio.Event, reached: asyncio.Event | None = None) -> Fault:
    """Set ``reached``, wait for ``release``, then make the call."""

    async def fault(request: Request[Any]) -> object:
        if reached is not None:
            reached.set()
        await release.wait()
        return await request()

    return fault


def happen_then_hang(release: asyncio.Event, reached: asyncio.Event | None = None) -> Fault:
    """Make the call, set ``reached``, and hold the answer until ``release``."""

    async def fault(request: Request[Any]) -> object:
        answer = await request()
        if reached is not None:
            reached.set()
        await release.wait()
        return answer

    return fault


def call(action: Callable[[], Awaitable[object]]) -> Fault:
    """Await something else first, such as a competitor's action; then make the call."""

    async def fault(request: Request[Any]) -> object:
        await action()
        return await request()

    return fault


def kill() -> Fault:
    """Die before the call is made."""

    async def fault(_request: Request[Any]) -> object:
        raise StoreKilled

    return fault


def happen_then_kill() -> Fault:
    """Make the call and die before its answer arrives."""

    async def fault(request: Request[Any]) -> object:
        await request()
        raise StoreKilled

    return fault


def postpone(late: list[Request[Any]], error: Exception | None = None) -> Fault:
    """Do not make the call yet, and report a timeout (or ``error``): it is still in flight.

    The call joins ``late``. A test makes it at any time, an hour later or in another order; see
    :meth:`FaultyStore.deliver`, which has such a list.
    """

    async def fault(request: Request[Any]) -> object:
        late.append(request)
        raise error or timeout()

    return fault


def outlive_caller(late: list[Request[Any]], reached: asyncio.Event | None = None) -> Fault:
    """Hang until the caller is cancelled; the call is then still in flight, as for
    :func:`postpone`. Sets ``reached`` once it hangs."""

    async def fault(request: Request[Any]) -> object:
        if reached is not None:
            reached.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            late.append(request)
            raise

    return fault


def reverse(count: int) -> Fault:
    """Hold ``count`` calls until all have arrived, then make them one by one, the last one first.

    Plan it with ``times=count``. The calls must be concurrent, or none of them ends.
    """
    held: list[asyncio.Future[None]] = []

    async def fault(request: Request[Any]) -> object:
        turn = asyncio.get_running_loop().create_future()
        held.append(turn)
        if len(held) == count:
            held.pop().set_result(None)
        await turn
        try:
            return await request()
        finally:
            if held:
                held.pop().set_result(None)

    return fault
