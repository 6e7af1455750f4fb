"""Whatever is passed to an append: it is refused at once and harms nobody, or it is in the log as given."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.local import SMALL
from walstore import Record, Settings, Wal, WalError

NO = object()
"""In the place of a plain value: must be refused."""


class Odd(NamedTuple):
    """What is passed, and the plain value that it stands for."""

    given: Any
    plain: Any


class OddText(str):
    """Text that lies about itself wherever Python asks it."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __str__(self) -> str:
        return "\udc00"

    def __format__(self, spec: str) -> str:
        return "\udc00"

    def encode(self, *_: object) -> bytes:
        return b"\xff"


class OddBytes(bytes):
    """Bytes that lie about themselves."""

    def __len__(self) -> int:
        return 1 << 70

    def __bytes__(self) -> bytes:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


class OddNumber(int):
    """A number that is smaller and larger than any other."""

    def __le__(self, other: object) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__

    def __index__(self) -> int:
        return 1 << 80

    __int__ = __index__


class Turning(Mapping[Any, Any]):
    """A mapping that has other items each time it is looked at."""

    def __init__(self, items: dict[Any, Any]) -> None:
        self._items = items
        self._looks = 0

    def __getitem__(self, name: Any) -> Any:
        self._looks += 1
        return self._items[name] if self._looks <= len(self._items) else 5

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def encodes(text: str) -> bool:
    """Whether text has a UTF-8 form."""
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


ANY_TEXT = st.text(st.characters(), max_size=6) | st.text(
    st.characters(categories=("Cs", "Ll")), max_size=3
)
NO_TEXT = st.sampled_from([Odd(value, NO) for value in (1, None, b"x", ["x"], object(), True)])
ANY_BYTES = st.binary(max_size=20)


def texts(most: int, least: int = 1) -> st.SearchStrategy[Odd]:
    """Text of ``least`` to ``most`` characters, and what is none."""

    def known(text: str) -> Odd:
        return Odd(text, text if encodes(text) and least <= len(text) <= most else NO)

    long = st.integers(most - 1, most + 2).map(lambda count: known("é" * count))
    plain = ANY_TEXT.map(known)
    return plain | plain.map(lambda odd: Odd(OddText(odd.given), odd.plain)) | long | NO_TEXT


def blobs() -> st.SearchStrategy[Odd]:
    """Bytes in all forms, and what is none."""
    return st.one_of(
        ANY_BYTES.map(lambda data: Odd(data, data)),
        ANY_BYTES.map(lambda data: Odd(bytearray(data), data)),
        ANY_BYTES.map(lambda data: Odd(memoryview(data)[::2], data[::2])),
        ANY_BYTES.map(lambda data: Odd(OddBytes(data), data)),
        st.sampled_from([Odd(value, NO) for value in ("x", 1, [1], object())]),
        st.just(Odd(bytes(70_000), NO)),  # larger than a record may be
    )


def numbers(low: int, high: int) -> st.SearchStrategy[Odd]:
    """Numbers of ``[low, high]``, and what is none."""
    edges = st.sampled_from([-1, 0, 1, high, high + 1, 1 << 63, 1 << 64, 1 << 200])

    def known(number: int) -> Odd:
        return Odd(number, number if low <= number <= high else NO)

    plain = (edges | st.integers(-2, 1 << 66)).map(known)
    odd = plain.map(lambda found: Odd(OddNumber(found.given), found.plain))
    return plain | odd | st.sampled_from([Odd(value, NO) for value in (True, 1.0, "1", b"1")])


def optional(found: st.SearchStrategy[Odd]) -> st.SearchStrategy[Odd]:
    """The same, or nothing."""
    return st.just(Odd(None, None)) | found.filter(lambda odd: odd.given is not None)


def mappings(names: st.SearchStrategy[Odd], values: st.SearchStrategy[Odd]) -> Any:
    """Mappings, and what is none."""

    def build(pairs: list[tuple[Odd, Odd]]) -> Odd:
        passed: dict[Any, Any] = {}
        plain: dict[Any, Any] = {}
        for name, value in pairs:
            if isinstance(name.given, list) or name.given in passed or name.plain in plain:
                continue  # cannot be a second key of a dict, or stands for the same name
            passed[name.given] = value.given
            plain[name.plain] = value.plain
        has_all = NO not in plain and NO not in plain.values() and len(plain) == len(passed)
        return Odd(passed, plain if has_all else NO)

    found = st.lists(st.tuples(names, values), max_size=2).map(build)
    turning = found.map(lambda odd: Odd(Turning(odd.given), odd.plain))
    return (
        found | turning | st.sampled_from([Odd(value, NO) for value in ([], "x", 1, [("a", b"")])])
    )


FREE_TEXT = ANY_TEXT.map(lambda text: Odd(text, text if encodes(text) else NO)) | NO_TEXT
HEADERS = mappings(FREE_TEXT, blobs())
REGISTERS = mappings(texts(256), optional(texts(4096, 0)))
OPTIONS = st.fixed_dictionaries(
    {"value": blobs()},
    optional={
        "key": optional(blobs()),
        "stream": optional(texts(256)),
        "headers": optional(HEADERS),
        "timestamp_us": optional(numbers(0, (1 << 63) - 1)),
    },
)
WAYS = st.sampled_from(["append", "nowait", "many", "transaction", "producer", "fence"])
REGISTER_WAYS = st.sampled_from(["many", "transaction", "set"])
LOOSE = SMALL.replace(
    max_timestamp_lead_seconds=10**12, max_record_bytes=60_000, channel_bytes=200_000
)


async def call(wal: Wal, way: str, options: dict[str, Any]) -> None:
    """Append one record in one of the ways there are."""
    value = options.pop("value")
    if way == "append":
        await wal.append(value, **options)
    elif way == "nowait":
        wal.append_nowait(value, **options)
    elif way == "many":
        await wal.append_many([value], **options)
    elif way == "transaction":
        async with wal.transaction() as transaction:
            await transaction.append(value, **options)
    elif way == "producer":
        await wal.producer("p").append(value, **options)
    else:
        await (await wal.fence("me")).append(value, **options)


async def refused_or_done(wal: Wal, doing: Awaitable[None], *, may_pass: bool) -> bool:
    """Return whether a call went through; it must be refused in its first step or not at all.

    Another append is made at the same moment, and must succeed.
    """
    first = asyncio.ensure_future(wal.append(b"innocent"))
    second = asyncio.ensure_future(doing)
    await asyncio.sleep(0)
    await first
    try:
        await second
    except (TypeError, ValueError, WalError) as error:
        assert getattr(error, "outcome", "not_written") == "not_written"  # noqa: PT017
        assert wal.statistics().failure is None
        return False
    assert may_pass
    return True


def in_a_log(story: Callable[[Wal], Awaitable[None]], options: Settings = LOOSE) -> list[Record]:
    """Run a story in a new log; return its records after it was closed and opened again."""

    async def main(directory: Path) -> list[Record]:
        async with Wal.open(directory, settings=options) as wal:
            await story(wal)
            await wal.append(b"last")
        async with Wal.open(directory, settings=options) as wal:
            return [record async for record in wal.reader(follow=False)]

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(main(Path(directory) / "log"))


@pytest.mark.slow
@given(st.lists(st.tuples(WAYS, OPTIONS), min_size=1, max_size=4))
@example([("append", {"value": Odd(b"", b""), "stream": Odd("\udc00", NO)})])
@example([("many", {"value": Odd(b"", b""), "timestamp_us": Odd(1 << 64, NO)})])
@example([("nowait", {"value": Odd(b"", b""), "headers": Odd({"\udc00": b""}, NO)})])
@example([("transaction", {"value": Odd(b"", b""), "headers": Odd([], NO)})])
def test_a_record_is_refused_at_once_or_in_the_log_as_given(
    calls: list[tuple[str, dict[str, Odd]]],
) -> None:
    expected: list[dict[str, Any]] = []

    async def story(wal: Wal) -> None:
        for way, options in calls:
            plain = {name: odd.plain for name, odd in options.items()}
            passed = {name: odd.given for name, odd in options.items()}
            may_pass = NO not in plain.values()
            if await refused_or_done(wal, call(wal, way, passed), may_pass=may_pass):
                expected.append(plain)

    records = in_a_log(story)
    assert records[-1].value == b"last"
    found = [record for record in records if record.value not in (b"innocent", b"last")]
    assert len(records) - len(found) == len(calls) + 1
    assert len(found) == len(expected)
    latest = 0
    for record, plain in zip(found, expected, strict=True):
        assert record.value == plain["value"]
        assert record.key == plain.get("key")
        assert record.stream == plain.get("stream")
        assert dict(record.headers) == (plain.get("headers") or {})
        latest = max(latest, plain.get("timestamp_us") or 0)
        assert record.timestamp_us >= latest


@pytest.mark.slow
@given(
    expect=optional(REGISTERS),
    update=optional(REGISTERS),
    way=st.sampled_from(["many", "transaction", "set"]),
)
@example(expect=Odd(None, None), update=Odd({"a": "\udc00"}, NO), way="many")
@example(expect=Odd({"\udc00": None}, NO), update=Odd(None, None), way="transaction")
def test_registers_are_refused_at_once_or_set_as_given(expect: Odd, update: Odd, way: str) -> None:
    async def change(wal: Wal) -> None:
        if way == "many":
            await wal.append_many([b"x"], expect=expect.given, update=update.given)
        elif way == "transaction":
            async with wal.transaction(expect=expect.given, update=update.given):
                pass
        else:
            async with wal.transaction() as transaction:
                transaction.set_registers(update.given)

    async def story(wal: Wal) -> None:
        may_pass = update.plain is not NO and (expect.plain is not NO or way == "set")
        if await refused_or_done(wal, change(wal), may_pass=may_pass):
            plain = {
                name: value for name, value in (update.plain or {}).items() if value is not None
            }
            assert dict(wal.registers) == plain
        else:
            assert dict(wal.registers) == {}

    assert in_a_log(story)[-1].value == b"last"


@pytest.mark.slow
@given(name=texts(256), metadata=mappings(FREE_TEXT, FREE_TEXT))
@example(name=Odd("s", "s"), metadata=Odd({"a": "\ud800"}, NO))
def test_names_are_refused_at_once_or_kept_as_given(name: Odd, metadata: Odd) -> None:
    async def story(wal: Wal) -> None:
        may_pass = name.plain is not NO and metadata.plain is not NO
        opening = wal.open_stream(name.given, metadata=metadata.given)
        if await refused_or_done(wal, opening, may_pass=may_pass):
            assert wal.streams()[name.plain].metadata == metadata.plain

        async def others() -> None:
            await wal.producer(name.given).append(b"")
            fence = await wal.fence(name.given, register=name.given)
            await fence.append(b"")

        if await refused_or_done(wal, others(), may_pass=name.plain is not NO):
            assert wal.registers[name.plain] == f"1 {name.plain}"
            assert await wal.producer(name.plain).last_sequence() == 1
        await refused_or_done(wal, wal.close_stream(name.given), may_pass=may_pass)

    assert in_a_log(story)[-1].value == b"last"


@pytest.mark.parametrize("count", [3, 70_000])
def test_what_is_changed_after_the_call_has_no_effect(count: int) -> None:
    update = {"a": "1", "b": "2"}
    headers = {"h": b"1"}
    values = [b"x"] * count

    async def story(wal: Wal) -> None:
        transaction = wal.transaction(update=update)
        appending = asyncio.ensure_future(wal.append_many(values, headers=headers, update=update))
        await asyncio.sleep(0)
        update["a"] = "\udc00"
        update.pop("b")
        headers["h"] = "text"  # type: ignore[assignment]
        values.clear()
        assert await appending == range(1, count + 1)
        assert dict(wal.registers) == {"a": "1", "b": "2"}
        async with transaction:
            pass
        assert dict(wal.registers) == {"a": "1", "b": "2"}

    records = in_a_log(story, SMALL.replace(channel_bytes=1 << 20))
    assert len(records) == count + 1
    assert all(record.headers == {"h": b"1"} for record in records[:-1])
