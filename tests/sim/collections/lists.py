"""Transactions on lists: programs that read keys, append to their lists, and commit by compare-and-append.

Each transaction reads as of the newest time and appends what follows from it where that time ends, so the
whole collection should be strictly serializable. What they saw goes into a book; ``anomalies.py`` judges it.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tests.sim.collections.anomalies import Append, List, Read, Transaction, find_anomalies
from tests.sim.collections.truth import CollectionViolationError, to_table
from uploader.versioned.collection import Collection
from uploader.versioned.collection_reader import CollectionReader
from uploader.versioned.collection_writer import CollectionWriter
from walstore.errors import (
    LeaseExpiredError,
    OutcomeUnknownError,
    StorageUnavailableError,
    UpperMismatchError,
)

if TYPE_CHECKING:
    from tests.sim.collections.history import Program

KEYS: Final = 4
_TROUBLES: Final = (StorageUnavailableError, OutcomeUnknownError)
Lists = dict[int, List]


class Book:
    """All transactions of a history. Those whose program died have an unknown outcome."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.elements = count(1)

    def begin(self, name: str, at: float, *, is_stale: bool = False) -> Transaction:
        begun = Transaction(f"{name}.{len(self.transactions)}", at, is_stale=is_stale)
        self.transactions.append(begun)
        return begun

    def check(self) -> None:
        """Judge the whole history."""
        found = find_anomalies(self.transactions)
        if found:
            story = "\n".join(f"{anomaly.name}: {anomaly.story}" for anomaly in found[:5])
            raise CollectionViolationError("serializable", story)


def lists_of(table: pa.Table) -> Lists:
    """Return the lists in the content of a collection, whose values are their elements."""
    found: Lists = {}
    for row in table.to_pylist():
        if row.get("_d", 1) != 1 or row["k"] in found:
            raise CollectionViolationError(
                "serializable", f"not one list of a key: {table.to_pylist()}"
            )
        found[row["k"]] = tuple(map(int, row["v"].split()))
    return found


async def transact(program: Program, number: int) -> None:
    """Run transactions until the life ends."""
    random = program.random
    async with program.opened() as collection:
        client: Client | None = None
        for _ in range(program.plan.calls):
            await program.pause()
            try:
                if client is None:
                    reader = await collection.reader(f"t{number}", lease_seconds=900)
                    client = Client(program, collection, reader)
                await (client.change() if random.random() < 0.8 else client.look_back())
            except _TROUBLES as error:
                program.trace(f"transaction: {error!r}")
            except LeaseExpiredError as error:
                program.trace(f"transaction: {error!r}")
                program.count("expired leases")
                client = None


class Client:
    """One program's transactions."""

    def __init__(self, program: Program, collection: Collection, reader: CollectionReader) -> None:
        self._program = program
        self._random = program.random
        self._reader = reader
        self._writer: CollectionWriter = collection.writer("w0")

    def _begin(self, *, is_stale: bool = False) -> Transaction:
        program = self._program
        now = asyncio.get_running_loop().time()
        return program.history.book.begin(program.process.name, now, is_stale=is_stale)

    def _end(self, transaction: Transaction, *, happened: bool) -> None:
        transaction.ended = asyncio.get_running_loop().time()
        transaction.status = "ok" if happened else "failed"
        self._program.trace(f"{transaction.name} {transaction.status}: {transaction.steps}")
        self._program.count(f"transactions {transaction.status}")

    async def look_back(self) -> None:
        """Read as of an earlier time."""
        limit = await self._reader.upper()
        if limit <= self._reader.frontier:
            return
        as_of = self._random.randint(self._reader.frontier, limit - 1)
        transaction = self._begin(is_stale=True)
        for key, found in (await self.lists(as_of, range(KEYS))).items():
            transaction.steps.append(Read(key, found))
        self._end(transaction, happened=True)
        if self._random.random() < 0.3:
            await self._reader.downgrade_since(as_of)

    async def change(self) -> None:
        """Read as of now, append to some lists, and commit if nothing else was committed since."""
        random = self._random
        transaction = self._begin()
        upper = await random.choice([self._reader.upper, self._writer.upper])()
        base: Lists = {}
        now: Lists = {}
        for _ in range(random.randint(1, 4)):
            key = random.randrange(KEYS)
            if key not in now or random.random() < 0.2:
                # Nothing that happens meanwhile may change what is read.
                seen = (await self.lists(upper - 1, [key]))[key]
                now[key] = seen + now.get(key, ())[len(base.get(key, ())) :]
                base[key] = seen
            if random.random() < 0.5:
                transaction.steps.append(Read(key, now[key]))
            else:
                element = next(self._program.history.book.elements)
                transaction.steps.append(Append(key, element))
                now[key] = (*now[key], element)
        changed = {key: now[key] for key in now if now[key] != base[key]}
        if changed or random.random() < 0.3:
            await self._commit(transaction, base, changed, upper)
        else:
            self._end(transaction, happened=True)

    async def lists(self, as_of: int, keys: range | list[int]) -> Lists:
        """Read keys as of a time: at once, or with the changes since an earlier time."""
        if as_of < 0:
            return dict.fromkeys(keys, ())
        if self._random.random() < 0.6:
            found = lists_of(await self._reader.snapshot(as_of=as_of))
        else:
            found = await self._followed(self._random.randint(self._reader.frontier, as_of), as_of)
        return {key: found.get(key, ()) for key in keys}

    async def _followed(self, start: int, as_of: int) -> Lists:
        rows: dict[tuple[int, str], int] = {}
        async with contextlib.aclosing(self._reader.subscribe(as_of=start)) as steps:
            async for table, frontier in steps:
                for row in table.to_pylist():
                    if row["_t"] > as_of:
                        continue
                    if "_deleted" in row:
                        rows = {one: 1 for one in rows if one[0] != row["k"]}
                    at = row["k"], row["v"]
                    rows[at] = rows.get(at, 0) + row.get("_d", 1)
                if frontier > as_of:
                    break
        left = [(*row, diff) for row, diff in rows.items() if diff]
        keys, values, diffs = zip(*left, strict=True) if left else ((), (), ())
        return lists_of(pa.table({"k": keys, "v": values, "_d": diffs}))

    async def _commit(
        self, transaction: Transaction, base: Lists, changed: Lists, lower: int
    ) -> None:
        """Append what a transaction changed, until the outcome is known or patience ends."""
        program, random = self._program, self._random
        upper = lower + random.choice([1, 2, 5])
        time = random.randrange(lower, upper)
        updates = [(time, key, _text(found), 1) for key, found in changed.items()]
        if program.plan.kind == "diff":
            updates += [(time, key, _text(base[key]), -1) for key in changed if base[key]]
        table = to_table(updates, program.plan.kind)
        for _ in range(random.choice([1, 3, 10])):
            try:
                limit = 0.2 if random.random() < program.plan.cancels else None
                async with asyncio.timeout(limit):
                    await self._writer.append(table, lower=lower, upper=upper)
            except UpperMismatchError as error:
                program.trace(f"{transaction.name}: {error}")
                self._end(transaction, happened=False)
                return
            except (*_TROUBLES, TimeoutError) as error:
                program.trace(f"{transaction.name}: {error!r}")
                await program.pause()
            else:
                self._end(transaction, happened=True)
                return
        program.count("transactions unknown")


def _text(found: List) -> str:
    return " ".join(map(str, found))


async def read_last(program: Program, reader: CollectionReader, limit: int) -> None:
    """Read all lists at the end, and judge the history."""
    book = program.history.book
    if limit:
        last = book.begin("last", asyncio.get_running_loop().time())
        found = lists_of(await reader.snapshot(as_of=limit - 1))
        last.steps += [Read(key, found.get(key, ())) for key in range(KEYS)]
        last.ended, last.status = asyncio.get_running_loop().time(), "ok"
    book.check()
