"""Every handle that a program may have of a log, and every call on it, found by looking at its class.

A method that is added to a handle is called from a wrong place by ``test_owners.py`` without a line there.
If it needs an argument of a new name, say one in ``ARGUMENTS``; if it only makes an object or looks, in
``ANYWHERE``.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple

import walstore.sync
from tests.contract.faces import FACES, QUICK, URL, Face
from uploader import DirtyLog
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.stores import MemoryStore
from walstore import Record, Wal, WalStore
from walstore.core.runtime.old_names import unrenamed

ARGUMENTS: Final[dict[str, Any]] = {
    "at": 1,
    "before": 1,
    "compacted": {"a": 2},
    "entry": Fragment("f", 1, 1, 2, 1, Setsum()),
    "handler": None,
    "headers": (None,),
    "jobs": (),
    "kind": None,
    "error": None,
    "trace": None,
    "limit": 2,
    "max_bytes": 1,
    "name": "n",
    "offset": 1,
    "owner": "me",
    "position": 1,
    "producer_id": "p",
    "record": Record(1, b"x"),
    "seconds": 9.0,
    "sequence": 1,
    "start": 1,
    "stream": "s",
    "timestamp_us": 0,
    "update": {"a": "b"},
    "value": b"x",
    "values": [b"x"],
}
"""What is given to a parameter of that name that has no default."""

ANYWHERE: Final = frozenset(
    (
        # make an object, which refuses to be used elsewhere itself
        "arrow_batches",
        "batches",
        "consumer",
        "follow",
        "group",
        "note_for",
        "producer",
        "reader",
        "transaction",
        # look, without waiting
        "extents",
        "level",
        "opened",
        "statistics",
        "streams",
        # of the class
        "open",
        "open_in",
        "open_readonly",
        "of_store",
    )
)
"""Methods without ``async`` that any thread may call."""

INTERNAL: Final = frozenset(
    (
        "abandon",
        "append_letter",
        "announce",
        "check",
        "check_home",
        "check_open",
        "check_owner",
        "coordinator",
        "has_group",
        "make_group_tag",
        "new",
        "newest",
        "offsets",
        "on_commit",
        "on_fence",
        "on_rollback",
        "removed",
        "resume_cursor",
        "swap",
        "watch_cursor",
    )
)
"""Not for callers, says their docstring."""

_BLOCKS: Final = ("__aenter__", "__aexit__", "__anext__", "__enter__", "__exit__")


class Call(NamedTuple):
    """A call on a handle."""

    name: str
    make: Callable[[], Any]


def calls(handle: object) -> Iterator[Call]:
    """Yield every call of a handle that only its owner may make."""
    for name in dir(type(handle)):
        if name in INTERNAL or (name.startswith("_") and name not in _BLOCKS):
            continue
        found = inspect.getattr_static(type(handle), name)
        if not isinstance(found, FunctionType):
            continue  # a property, which looks; or of the class
        found = unrenamed(found)[0]
        is_waiting = inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found)
        if name in ANYWHERE and not is_waiting:
            continue
        yield Call(f"{type(handle).__name__}.{name}", _prepared(handle, name, found))


def _prepared(handle: object, name: str, found: FunctionType) -> Callable[[], Any]:
    parameters = list(inspect.signature(found).parameters.values())[1:]
    given: dict[str, Any] = {}
    rest: list[None] = []
    for one in parameters:
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = [None] * 3 if name in _BLOCKS else []
        elif one.default is inspect.Parameter.empty and one.kind is not one.VAR_KEYWORD:
            assert one.name in ARGUMENTS, f"{found.__qualname__} needs {one.name!r}: say one"
            given[one.name] = ARGUMENTS[one.name]
    is_generator = inspect.isasyncgenfunction(found)

    def make() -> Any:
        made = getattr(handle, name)(*rest, **given)
        return anext(made) if is_generator else made

    return make


# -- the handles of a face -------------------------------------------------------------------------


@asynccontextmanager
async def handles_of(name: str, path: Path) -> AsyncIterator[tuple[Face, list[Any]]]:
    """Open a face, and yield every handle that it offers."""
    async with FACES[name](path) as face, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await face.writer.append_many([b"1", b"2", b"3"])
        log, found = face.log, [face.log]
        if hasattr(log, "find_logs"):
            await log.find_logs()
        if hasattr(log, "refresh"):
            await log.refresh()
        if hasattr(log, "reader"):
            reader = await enter(log.reader(follow=False))
            await anext(reader)  # others are in its memory
            found.append(reader)
        if hasattr(log, "cursor"):
            found.append(await log.cursor("d", lease_seconds=1000))
        if hasattr(log, "consumer"):
            found.append(await enter(log.consumer("c", auto_commit_seconds=1000)))
        elif hasattr(log, "cursors"):
            found.append(log.cursors)
        if hasattr(log, "group"):
            group = await enter(log.group("g"))
            found += [group, *await group.fetch()]
        if hasattr(log, "producer"):
            transaction = await enter(log.transaction())
            await transaction.append(b"x")
            writing = await enter(log.consumer("e", output=log))
            found += [log.producer("p"), await log.fence("me"), transaction, writing.transaction()]
        yield face, found


@asynccontextmanager
async def handles_of_stores(path: Path) -> AsyncIterator[list[Any]]:
    """Yield those that are not of a log."""
    async with (
        WalStore.open(path / "store") as store,
        DirtyLog.open(URL, store=MemoryStore(), settings=QUICK) as dirty,
    ):
        assert isinstance(await store.wal("n"), Wal)
        yield [store, dirty]


def blocking_handles(log: walstore.sync.BlockingLog) -> Iterator[Any]:
    """Yield the handles of a log for threads."""
    log.append_many([b"1", b"2"])
    group = log.group("g")
    group.__enter__()
    transaction = log.transaction()
    transaction.__enter__()
    yield from (log, log.follow(), log.cursor("d"), group, group.fetch()[0], transaction)


async def awaited(make: Callable[[], Any]) -> Any:
    """Make a call, and wait for it if it is one to be awaited."""
    found = make()
    return await found if isinstance(found, Awaitable) else found
