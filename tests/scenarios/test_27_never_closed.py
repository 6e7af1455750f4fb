"""Logs and writers that a program forgets: it is told, and they hold nothing any more."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests import programs
from uploader import CloudLog, CloudWriter, Collection, Controller, GarbageCollector, Scrubber
from walstore import Wal
from walstore.cluster.member import ClusterMember
from walstore.http import HttpServer
from walstore.serve import ReplicaNode, Server
from walstore.topology.memory import MemoryKeyValues

PROGRAM = """
import asyncio, gc, os, sys, time, warnings
from pathlib import Path
from walstore import Wal, WalStore
from walstore.testing import FaultyFileSystem
from walstore.core.files.posix import PosixFileSystem

kind, path = sys.argv[1], Path(sys.argv[2])
warnings.simplefilter("always", ResourceWarning)
told = []
warnings.showwarning = lambda message, category, *_: told.append(str(message))
fs = FaultyFileSystem(PosixFileSystem())

async def open_it():
    if kind == "store":
        opened = await WalStore.open(path / "store", fs=fs)
        wal = await opened.wal("a")
    else:
        opened = wal = await Wal.open(path / "log", fs=fs)
    await wal.append(b"1")
    if kind == "readonly":
        await wal.aclose()
        opened = wal = await Wal.open_readonly(path / "log", fs=fs)
    elif sys.argv[3] == "loop":
        hold = fs.hold("pwrite", name="[0n]*")
        for _ in range(3):
            wal.append_nowait(b"lost")
        await hold.wait_entered()
        hold.release()
    return opened

def held():
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [name for name in names if os.path.exists(name) and str(path) in os.readlink(name)]

loop = asyncio.new_event_loop()
loop.set_exception_handler(lambda *_: None)  # tasks that are destroyed while pending
opened = loop.run_until_complete(open_it())
assert held()
if sys.argv[3] == "loop":
    loop.close()
opened = None
if sys.argv[3] == "loop":
    loop = None
deadline = time.monotonic() + 60
while held() and time.monotonic() < deadline:
    gc.collect()
    if loop is None:
        time.sleep(0.01)
    else:
        loop.run_until_complete(asyncio.sleep(0.01))
assert not held(), held()
print(chr(10).join(sorted(line for line in told if "walstore" in line or "was not closed" in line)))
if sys.argv[3] != "loop":
    loop.close()

async def again():
    if kind == "store":
        async with WalStore.open(path / "store") as store:
            await store.wal("a")
    else:
        async with Wal.open(path / "log") as wal:
            pass

asyncio.run(again())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["object", "loop"])
@pytest.mark.parametrize("kind", ["log", "store", "readonly"])
async def test_a_warning_names_it_and_its_descriptors_are_closed(
    tmp_path: Path, kind: str, how: str
) -> None:
    done = await asyncio.to_thread(programs.run, PROGRAM, kind, tmp_path, how)
    assert done.returncode == 0, done.stderr
    advice = "; use 'async with', or await aclose() before its event loop ends"
    lost = f"; {3 if how == 'loop' else 0} accepted records were not written"
    wanted = {
        "log": [f"the log at {tmp_path}/log was not closed{lost}{advice}"],
        "readonly": [f"the reader of the log at {tmp_path}/log was not closed{advice}"],
        "store": [
            f"the log at {tmp_path}/store/a was not closed{lost}{advice}",
            f"the store at {tmp_path}/store was not closed{advice}",
        ],
    }[kind]
    assert done.stdout.splitlines() == wanted


WRITER = """
import asyncio, gc, sys, time, warnings
from uploader import CloudWriter

kind, url, is_busy, how = sys.argv[1], sys.argv[2], sys.argv[3] == "busy", sys.argv[4]
warnings.simplefilter("ignore")
warnings.simplefilter("always", ResourceWarning)
told = []
warnings.showwarning = lambda message, category, *_: told.append(str(message))

async def open_it():
    log = await CloudWriter.open(url, layout=kind)
    await log.append(b"1")
    appending = asyncio.create_task(log.append_many([b"2", b"3"])) if is_busy else None
    while is_busy and not log.statistics().fragments_under_way:
        await asyncio.sleep(0)
    return log, appending

loop = asyncio.new_event_loop()
loop.set_exception_handler(lambda *_: None)  # tasks that are destroyed while pending
opened = loop.run_until_complete(open_it())
if how == "loop":
    loop.close()
    loop = None
opened = None
deadline = time.monotonic() + 60
while not any("the writer" in line for line in told) and time.monotonic() < deadline:
    gc.collect()
    if loop is None:
        time.sleep(0.01)  # a thread may still hold it
    else:
        loop.run_until_complete(asyncio.sleep(0.01))
print(chr(10).join(line for line in told if "the writer" in line))
if loop is not None:
    loop.close()

async def again():
    async with CloudWriter.open(url) as log:
        await log.append(b"4")

asyncio.run(again())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "state"), [("object", "idle"), ("loop", "idle"), ("loop", "busy")])
@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_a_writer_in_object_storage_warns_and_says_nothing_else(
    tmp_path: Path, layout: str, how: str, state: str
) -> None:
    url = (tmp_path / "bucket").as_uri()
    done = await asyncio.to_thread(
        programs.run, WRITER, layout, url, state, how, imports=programs.CLOUD
    )
    assert (done.returncode, done.stderr) == (0, "")
    lost = f"; {2 if state == 'busy' else 0} accepted records may not be committed"
    advice = "; use 'async with', or await aclose() before its event loop ends"
    assert done.stdout.splitlines() == [f"the writer of {url} was not closed{lost}{advice}"]


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """The URL of a log and, below it, of a collection."""
    url = (tmp_path / "bucket").as_uri()
    columns = pa.schema([pa.field("a", pa.int64())])

    async def make() -> None:
        async with CloudWriter.open(url) as log:
            await log.append(b"1")
        async with Collection.open(f"{url}/c", create=True, schema=columns):
            pass

    asyncio.run(make())
    return url


async def _opened(what: str, url: str) -> Any:
    if what == "log":
        return await CloudLog.open(url)
    return await (Collection if what == "collection" else Controller).open(f"{url}/c")


@pytest.mark.parametrize(
    ("what", "told"), [("log", "log"), ("collection", "collection"), ("controller", "collection")]
)
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_open_in_object_storage_warns(
    stored: str, what: str, told: str, *, closed: bool
) -> None:
    async def use() -> None:
        opened = await _opened(what, stored)
        if closed:
            await opened.aclose()
            await opened.aclose()

    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(use())
        gc.collect()
    place = stored if what == "log" else f"{stored}/c"
    wanted = [] if closed else [f"the {told} at {place} was not closed; use 'async with'"]
    messages = [str(one.message) for one in found if "not closed" in str(one.message)]
    assert [text.partition(", or")[0] for text in messages] == wanted


@asynccontextmanager
async def _served(what: str, path: Path, url: str) -> AsyncIterator[Any]:
    async with Wal.open(path / "log") as log:
        yield await {
            "server": lambda: Server.open(log, unix=path / "s.sock"),
            "http": lambda: HttpServer.open(log, "127.0.0.1:0"),
            "node": lambda: ReplicaNode.open(path / "copies"),
            "member": lambda: ClusterMember.open(path / "copies", MemoryKeyValues().client()),
            "collector": lambda: GarbageCollector.open(url),
            "scrubber": lambda: Scrubber.open(url),
        }[what]()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("server", ["the server at unix://PATH/s.sock"]),
        ("http", ["the server at http://127.0.0.1"]),
        ("node", ["the node with the copies below PATH/copies"]),
        (
            "member",
            [
                "the member of a cluster at PATH/copies",
                "the node with the copies below PATH/copies",
            ],
        ),
        ("collector", ["the collector of the log at URL"]),
        ("scrubber", ["the scrubber of the log at URL"]),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_what_serves_or_keeps_logs_warns(
    tmp_path: Path, stored: str, what: str, told: list[str], *, closed: bool
) -> None:
    async def use() -> None:
        async with _served(what, tmp_path, stored) as opened:
            if closed:
                await opened.aclose()
                await opened.aclose()

    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(use())
        gc.collect()
    messages = sorted(str(one.message) for one in found if "not closed" in str(one.message))
    wanted = (
        []
        if closed
        else [one.replace("PATH", str(tmp_path)).replace("URL", stored) for one in told]
    )
    assert [text[: len(start)] for text, start in zip(messages, wanted, strict=True)] == wanted


def test_a_child_process_is_not_told_of_what_its_parent_opened(stored: str) -> None:
    for what in ("log", "collection"):
        done = programs.run(CHILD, what, stored, imports=programs.CLOUD)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["child 0", "parent 1"]


CHILD = """
import asyncio, gc, os, sys, warnings
from uploader import CloudLog
from uploader.versioned.collection import Collection

what, url = sys.argv[1:]
told = []
warnings.simplefilter("ignore")
warnings.simplefilter("always", ResourceWarning)
warnings.showwarning = lambda message, *_: told.append(str(message))

async def open_it():
    return await (CloudLog.open(url) if what == "log" else Collection.open(url + "/c"))

loop = asyncio.new_event_loop()
opened = loop.run_until_complete(open_it())
child = os.fork()
opened = None
gc.collect()
loop.close()
gc.collect()
count = sum(" at " in line and "not closed" in line for line in told)
if child:
    assert os.waitpid(child, 0)[1] == 0
print("parent" if child else "child", count, flush=True)
os._exit(0)
"""
