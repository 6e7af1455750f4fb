"""Messages that no primary sends: one error names the machine and the field, and nothing is changed.

They come through the real client to the real server of a node, from a sender that the copy obeys.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clocks import SkippingClock
from tests.waiting import until
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS, Cluster, Machine
from walstore import InvalidSettingsError, Replication, WalError
from walstore.cluster.replication.messages import CALLS
from walstore.cluster.replication.node import VERBS
from walstore.cluster.replication.remote_copy import client_of
from walstore.core.format.packed import MOST_OFFSET
from walstore.net.remote.client import Client
from walstore.net.wire.address import parse_address
from walstore.net.wire.verbs import Fate, Verb

pytestmark = pytest.mark.timeout(60)
EPOCH, TAG, SEGMENT = 9, "ab" * 8, 1
BEYOND: Final = (MOST_OFFSET + 1, (1 << 64) - 1)
NO_NUMBER: Final = (
    None,
    True,
    -1,
    -(1 << 63),
    *BEYOND,
    1.5,
    float("inf"),
    "1",
    b"1",
    [],
    [1],
    {"a": 1},
)
NO_FLAG: Final = (None, 2, -1, 1.0, "true", b"\1", [], [True], {})
NO_TAG: Final = (None, 7, "", "a" * 65, "no hex", "\x00", "ab\n", TAG.encode(), [TAG], {TAG: 1})
NO_PLACE: Final = (
    *(one for one in NO_NUMBER if one != [1]),
    7,
    [1],
    [1, 2],
    [1, 2, 3, 4],
    [[1], 2, 3],
    *([1, one, 3] for one in NO_NUMBER),
)
NO_PAIR: Final = (None, 7, "ab", b"ab", [1], [1, 2, 3], {}, *([one, 1] for one in NO_NUMBER))
NO_NAME: Final = (
    None,
    7,
    "",
    "../x",
    "a b",
    "a\n",
    "x" * 101,
    b"orders",
    ["orders"],
    {"orders": 1},
)
NO_VERB: Final = ("", "nope", "_obey", "OBEY", "obey\n", "x" * 10_000)
PLACE: Final = [SEGMENT, 0, 64]

ARGUMENTS: Final[Mapping[str, Sequence[tuple[str, Any, Sequence[Any]]]]] = {
    "look": (),
    "obey": (
        ("is_elected", False, NO_FLAG),
        ("generation", 0, NO_NUMBER),
        ("joined", 0, NO_NUMBER),
    ),
    "confirm": (),
    "make_whole": (),
    "extents": (),
    "frames": (("start", SEGMENT, NO_NUMBER), ("begin", 0, NO_NUMBER)),
    "read": (("place", PLACE, NO_PLACE), ("size", 10, NO_NUMBER)),
    "write": (
        ("place", PLACE, NO_PLACE),
        ("seals", False, NO_FLAG),
        ("shown", 0, NO_NUMBER),
        ("checks", 0, NO_FLAG),
    ),
    "cut": (
        ("start", SEGMENT, NO_NUMBER),
        ("position", 64, NO_NUMBER),
        ("agreed", [1, 64], NO_PAIR),
        ("first", 0, NO_NUMBER),
    ),
    "trim": (("head", 1, NO_NUMBER),),
    "keep_hint": (("place", PLACE, NO_PLACE),),
    "show": (("shown", 0, NO_NUMBER),),
    "check": (
        ("start", SEGMENT, NO_NUMBER),
        ("begin", 0, NO_NUMBER),
        ("most_bytes", 10, [one for one in NO_NUMBER if one is not None]),
    ),
    "mend": (("place", PLACE, NO_PLACE),),
}
"""Of each call: its arguments behind the name of the log and the primary, and what none of them may be."""
WITH_PAYLOAD = ("write", "keep_hint", "mend")


def fields_of(verb: str) -> list[tuple[str, Any, Sequence[Any]]]:
    """Return all arguments of a call, with the name of the log."""
    author = (("epoch", EPOCH, (0, *NO_NUMBER)), ("primary", TAG, NO_TAG))
    return [("name", "orders", NO_NAME), *(() if verb == "look" else author), *ARGUMENTS[verb]]


class Copy:
    """A copy with records, which obeys the sender."""

    def __init__(self, machine: Machine, client: Client, caplog: pytest.LogCaptureFixture) -> None:
        self.machine, self.client, self.caplog = machine, client, caplog
        self.told = 0

    async def call(self, verb: Any, *arguments: Any, payload: bytes = b"") -> Any:
        pieces = [memoryview(payload)] if payload else ()
        return await self.client.call(Verb(verb, fate=Fate.DROPPED), *arguments, payload=pieces)

    async def refused(self, verb: Any, *arguments: Any, payload: bytes = b"") -> str:
        """Return the error of a message that is none, which the node logs, too; nothing has changed."""
        before = self.files()
        self.caplog.clear()
        with pytest.raises(InvalidSettingsError) as error:
            await self.call(verb, *arguments, payload=payload)
        assert self.files() == before
        records = [one for one in self.caplog.records if one.levelno >= logging.WARNING]
        assert [one.getMessage() for one in records if one.exc_info] == []
        said = str(error.value)
        assert [one.getMessage() for one in records] in ([], [f"a local client sent {said}"])
        self.told += len(records)
        assert "Nothing was changed" in said
        assert len(said) < 1000
        return said

    def files(self) -> dict[str, bytes]:
        """Return all files of all copies of the machine."""
        paths = [path for path in self.machine.path.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}


@asynccontextmanager
async def obeying(path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Copy]:
    async with Cluster(path) as cluster:
        wal = await cluster.primary(0)
        await wal.append_many([b"value"] * 100)
        await until(lambda: all(not copy.lag for copy in wal.statistics().copies))
        await wal.aclose()
        machine = cluster.machines[1]
        settings = Replication(nodes=[machine.address], patience_seconds=PATIENCE_SECONDS)
        client = client_of(
            parse_address(machine.address),
            settings,
            clock=SkippingClock(),
            make_tag=lambda: os.urandom(8),
        )
        try:
            await client.connect()
            copy = Copy(machine, client, caplog)
            await copy.call("obey", "orders", EPOCH, TAG, False)
            yield copy
        finally:
            await client.aclose()


def test_the_matrix_has_every_call_and_argument() -> None:
    assert set(ARGUMENTS) == set(CALLS) == {*VERBS, "look", "write"}
    for verb, call in CALLS.items():
        names = [name for name, *_ in fields_of(verb)]
        assert names == ["name", *(field.name for field in call.fields)]
        assert call.has_payload is (verb in WITH_PAYLOAD)


@pytest.mark.parametrize("verb", ARGUMENTS)
async def test_every_argument_is_checked(
    verb: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = fields_of(verb)
    good = [value for _, value, _ in fields]
    async with obeying(tmp_path, caplog) as copy:
        for number, (name, _, bad) in enumerate(fields):
            for value in bad:
                said = await copy.refused(verb, *good[:number], value, *good[number + 1 :])
                assert f"{name} must be" in said or f"{name}: " in said, said
                assert verb in said
        await copy.refused(verb, *good, "more")
        if len(good) > 1:
            await copy.refused(verb, *good[:2])
        if verb not in WITH_PAYLOAD:
            assert "payload must be empty" in await copy.refused(verb, *good, payload=b"x" * 9)
        assert await copy.call("confirm", "orders", EPOCH, TAG) is True
        assert copy.told > len(fields)


async def test_calls_that_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with obeying(tmp_path, caplog) as copy:
        for verb in NO_VERB:
            assert "has no call" in await copy.refused(verb, "orders", EPOCH, TAG)
        assert await copy.call("confirm", "orders", EPOCH, TAG) is True


async def test_numbers_that_could_be_and_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No segment and no byte has them. The copy says so, and has what it had."""
    far = [MOST_OFFSET, MOST_OFFSET, MOST_OFFSET]
    calls: list[tuple[str, list[Any], bytes]] = [
        ("frames", [SEGMENT, MOST_OFFSET], b""),
        ("frames", [MOST_OFFSET, 0], b""),
        ("read", [far, MOST_OFFSET], b""),
        ("read", [[SEGMENT, 0, MOST_OFFSET], MOST_OFFSET], b""),
        ("write", [far, False, 0, 0], b"x" * 100),
        ("write", [[MOST_OFFSET, 0, 0], False, 0, 0], b"x" * 100),
        ("write", [[SEGMENT, 0, 64], True, 0, 1], b"x" * 100),
        ("keep_hint", [far], b"x" * 100),
        ("keep_hint", [[SEGMENT, 0, 64]], b"x" * 100),
        ("check", [MOST_OFFSET, MOST_OFFSET, MOST_OFFSET], b""),
        ("check", [SEGMENT, MOST_OFFSET, MOST_OFFSET], b""),
        ("mend", [far], b"x" * 100),
        ("mend", [[SEGMENT, 0, 64]], b"x" * 100),
    ]
    async with obeying(tmp_path, caplog) as copy:
        before = copy.files()
        for verb, arguments, payload in calls:
            caplog.clear()
            said = ""
            try:
                await copy.call(verb, "orders", EPOCH, TAG, *arguments, payload=payload)
            except WalError as error:
                said = str(error)
            assert "the server failed" not in said, (verb, arguments)
            assert [one.getMessage() for one in caplog.records if one.exc_info] == []
            assert copy.files() == before, (verb, arguments)
        assert await copy.call("confirm", "orders", EPOCH, TAG) is True


async def test_a_cut_behind_the_end_cuts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with obeying(tmp_path, caplog) as copy:
        end = await copy.call("obey", "orders", EPOCH, TAG, False)
        before = {path: data for path, data in copy.files().items() if path.endswith(".wal")}
        await copy.call("cut", "orders", EPOCH, TAG, SEGMENT, MOST_OFFSET)
        assert await copy.call("obey", "orders", EPOCH, TAG, False) == end
        assert {path: data for path, data in copy.files().items() if path in before} == before


async def test_a_primary_without_a_name_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy that has promised nothing yet obeys epoch 0 of nobody: that is no promise to a caller."""
    async with obeying(tmp_path, caplog) as copy:
        await copy.refused("confirm", "fresh", 0, "")
        await copy.refused("make_whole", "fresh", 0, "")
        assert not (copy.machine.path / "fresh").exists()
