"""Every call of every handle, from where it does not belong: it is refused at once, and the owner goes on."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import os
import pickle
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import uploader
import walstore
import walstore.sync
from tests.contract.faces import FACES, Face, on
from tests.contract.handles import (
    Call,
    awaited,
    blocking_handles,
    calls,
    handles_of,
    handles_of_stores,
)
from tests.walstore.serve.served import serving_from_a_thread
from walstore import WalClosedError, WrongLoopError
from walstore.core.runtime.old_names import unrenamed
from walstore.core.runtime.owned import Owned

WITH_LOOPS: Final = [name for name in FACES if name not in ("blocking", "distant")]
_SECONDS: Final = 60


UNOWNED: Final = {
    "CloudTier": "its log calls it",
    "Collection": "collections have guards of their own",
    "CollectionMetrics": "collections have guards of their own",
    "CollectionReader": "collections have guards of their own",
    "CollectionWriter": "collections have guards of their own",
    "Controller": "collections have guards of their own",
    "FragmentCache": "shared by threads",
    "GarbageCollector": "does one thing for one caller",
    "LogTable": "does one thing for one caller",
    "Materializer": "collections have guards of their own",
    "MergeEngine": "collections have guards of their own",
    "Scrubber": "does one thing for one caller",
}
"""Public classes with coroutines that are no handles of a log, and why not."""


async def refused(some: Sequence[Call], error: type[Exception], text: str) -> list[str]:
    """Make calls, and return those that were not refused with an error, or not at once."""
    problems: list[str] = []
    for name, make in some:
        try:
            async with asyncio.timeout(_SECONDS):
                await awaited(make)
        except error as found:
            if text not in str(found):
                problems.append(f"{name}: {found}")
        except BaseException as found:  # noqa: BLE001 - it is what is asked for
            problems.append(f"{name}: {found!r}")
        else:
            problems.append(f"{name}: was not refused")
    return problems


def from_another_loop(some: Sequence[Call]) -> list[str]:
    return asyncio.run(refused(some, WrongLoopError, "belongs to the event loop"))


def from_another_thread(some: Sequence[Call]) -> list[str]:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(from_another_loop(some)))
    thread.start()
    thread.join()
    return found


def from_a_child(some: Sequence[Call], text: str = "opened in process") -> list[str]:
    """Fork, and return what the child says."""
    said, say = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        pid = os.fork()
    if not pid:
        try:
            with asyncio.Runner() as runner:
                found = runner.run(refused(some, WalClosedError, text))
        except BaseException:  # noqa: BLE001 - the parent is told
            found = [traceback.format_exc()]
        os.write(say, "\n".join(found).encode()[: 1 << 15])
        os._exit(0)
    os.close(say)
    with open(said, "rb") as pipe:
        problems = pipe.read().decode()
    os.waitpid(pid, 0)
    return problems.splitlines()


PLACES: Final[dict[str, Callable[[Sequence[Call]], list[str]]]] = {
    "another event loop": from_another_loop,
    "another thread": from_another_thread,
    "a child": from_a_child,
}


ALLOWED: Final = frozenset(("from another event loop, Reader.__anext__: was not refused",))
"""A record in a reader's memory costs one comparison: of threads. Another event loop of the same thread gets
it while the reader's own stands still, which harms nobody; what is not in memory is refused."""


def intrude(some: Sequence[Call]) -> list[str]:
    """Make all calls from all wrong places, and return what was not refused."""
    found = [f"from {place}, {one}" for place, go in PLACES.items() for one in go(some)]
    return [one for one in found if one not in ALLOWED]


@contextmanager
def at_home(opening: AbstractAsyncContextManager[Any]) -> Iterator[tuple[asyncio.Runner, Any]]:
    """Enter a block in an event loop that stands still meanwhile, and yield it."""
    with asyncio.Runner() as home:
        found = home.run(awaited(opening.__aenter__))
        try:
            yield home, found
        finally:
            home.run(awaited(lambda: opening.__aexit__(None, None, None)))


@pytest.mark.parametrize("name", WITH_LOOPS)
def test_every_call_of_every_handle_from_every_wrong_place(name: str, tmp_path: Path) -> None:
    """The owner notices nothing: neither that its connection was cut, nor that something was begun."""
    with at_home(handles_of(name, tmp_path)) as (home, (face, handles)):
        connections, tail = face.connections, face.writer.tail
        some = [call for handle in handles for call in calls(handle)]
        assert len({type(handle).__name__ for handle in handles}) > 1
        problems = intrude(some)
        assert not problems, "\n".join(problems)
        assert face.writer.tail == tail
        home.run(awaited(lambda: face.writer.append_many([b"4"])))
        assert face.connections == connections


def test_every_public_class_with_coroutines_is_a_handle_or_says_why_not() -> None:
    found = {
        name: kind
        for module in (walstore, uploader)
        for name in module.__all__
        if inspect.isclass(kind := getattr(module, name)) and has_coroutines(kind)
    }
    assert {name for name, kind in found.items() if not issubclass(kind, Owned)} == set(UNOWNED)


def has_coroutines(kind: type) -> bool:
    return any(
        inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
        for name, member in vars(kind).items()
        if not name.startswith("_") and (call := unrenamed(member)[0])
    )


def test_stores_of_logs(tmp_path: Path) -> None:
    with at_home(handles_of_stores(tmp_path)) as (_, handles):
        problems = intrude([call for handle in handles for call in calls(handle)])
        assert not problems, "\n".join(problems)


@pytest.mark.parametrize("is_served", [False, True])
def test_handles_for_threads_in_an_event_loop_and_in_a_child(
    tmp_path: Path, is_served: bool
) -> None:
    """Any thread may use them, and none with an event loop; in a child, closing only closes nothing."""
    with serving_from_a_thread(tmp_path / "log") as address:
        opening = (
            walstore.sync.connect(address) if is_served else walstore.sync.open(tmp_path / "l")
        )
        with opening as log:
            some = [call for handle in blocking_handles(log) for call in calls(handle)]
            assert len(some) > 20
            some = [call for call in some if call.name != "BlockingLog.__enter__"]  # it looks
            problems = asyncio.run(refused(some, WrongLoopError, "would stop this event loop"))
            ends = ("BlockingLog.close", "BlockingLog.__exit__")
            problems += from_a_child([call for call in some if call.name not in ends])
            assert not problems, "\n".join(problems)
            assert log.append(b"3") == 3


@on(*WITH_LOOPS)
async def test_a_log_is_neither_copied_nor_pickled(face: Face) -> None:
    """A copy would close what the log has open, and write beside it."""
    for copy_it in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copy_it(face.log)
    gc.collect()  # what is left of the attempts
    await face.writer.append(b"the owner goes on")


@pytest.mark.parametrize(
    "opening",
    [
        walstore.Wal.open("nowhere"),
        walstore.Wal.open_readonly("nowhere"),
        walstore.WalStore.open("nowhere"),
        walstore.connect("unix:///nowhere"),
        walstore.open("nowhere"),
        uploader.CloudLog.open("memory://nowhere"),
    ],
    ids=lambda opening: type(opening).__name__,
)
def test_what_is_not_open_yet_says_how_it_is_opened(opening: Any) -> None:
    """The commonest mistake: a call without await, or a block without async."""
    with pytest.raises(AttributeError, match="write 'async with"):
        opening.append  # noqa: B018
    with pytest.raises(TypeError, match="write 'async with"), opening:
        pytest.fail("it is open")
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(opening)
