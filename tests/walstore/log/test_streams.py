"""Streams: opened, closed, listed; a closed one takes no more records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local import SMALL, read_all
from walstore import LimitExceededError, StreamClosedError, StreamInfo, Wal
from walstore.core.batches import conditions


@pytest.fixture
async def wal(log_directory: Path):
    """An open log."""
    async with Wal.open(log_directory, settings=SMALL) as opened:
        yield opened


async def test_a_stream_is_opened_with_metadata_or_by_its_first_record(wal) -> None:
    await wal.open_stream("eu", metadata={"region": "eu-west"})
    await wal.append(b"x")
    await wal.append(b"y", stream="us")
    assert wal.streams() == {
        "eu": StreamInfo(is_open=True, metadata={"region": "eu-west"}, opened_at=1),
        "us": StreamInfo(is_open=True, metadata={}, opened_at=2),
    }


async def test_a_closed_stream_takes_no_more_records(wal) -> None:
    await wal.append(b"1", stream="eu")
    await wal.close_stream("eu")
    for call in (
        lambda: wal.append(b"2", stream="eu"),
        lambda: wal.append_many([b"2"], stream="eu"),
        lambda: wal.producer("p").append(b"2", stream="eu"),
    ):
        with pytest.raises(StreamClosedError, match="'eu' is closed") as caught:
            await call()
        assert (caught.value.stream, caught.value.outcome) == ("eu", "not_written")
    with pytest.raises(StreamClosedError):
        wal.append_nowait(b"2", None, "eu")
    assert await wal.append(b"2", stream="us") == 2
    assert [record.value for record in await read_all(wal)] == [b"1", b"2"]
    assert await wal.producer("p").last_sequence() == 0


@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_streams_survive_reopening(log_directory: Path, *, has_checkpoint: bool) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.open_stream("eu", metadata={"a": "b"})
        await wal.append(b"x", stream="us")
        await wal.rotate()
        await wal.append(b"x", stream="asia")
        await wal.close_stream("us")
        before = wal.streams()
    if not has_checkpoint:
        (log_directory / "CHECKPOINT").unlink()
    async with Wal.open(log_directory) as wal:
        assert wal.streams() == before
        with pytest.raises(StreamClosedError):
            await wal.append(b"x", stream="us")


async def test_there_is_a_limit(wal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "MAX_STREAMS", 2)
    await wal.append(b"", stream="a")
    await wal.append(b"", stream="b")
    with pytest.raises(LimitExceededError) as caught:
        await wal.append(b"", stream="c")
    assert caught.value.limit == 2
    assert await wal.append(b"", stream="a") == 3


async def test_streams_opened_by_name_are_limited_too(wal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "MAX_STREAMS", 2)
    await wal.open_stream("a")
    await wal.append(b"", stream="b")
    with pytest.raises(LimitExceededError):
        await wal.open_stream("c")
    await wal.open_stream("b", metadata={"again": "yes"})


async def test_names_are_bounded_in_every_append(wal) -> None:
    longest = "é" * 256
    for name, why in (("x" * 257, "1 to 256 characters, not 257"), ("", "must not be empty")):
        for call in (
            lambda name=name: wal.append(b"", stream=name),
            lambda name=name: wal.append_many([b""], stream=name),
            lambda name=name: wal.producer("p").append(b"", stream=name),
        ):
            with pytest.raises(ValueError, match=why):
                await call()
        with pytest.raises(ValueError, match=why):
            wal.append_nowait(b"", None, name)
        async with wal.transaction() as transaction:
            with pytest.raises(ValueError, match=why):
                await transaction.append(b"", stream=name)
    assert await wal.append(b"", stream=longest) == 1
    assert list(wal.streams()) == [longest]


async def test_all_that_a_log_remembers_is_bounded_together(
    wal, log_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers, streams with metadata and producers; what does not grow, or makes room, still works."""
    monkeypatch.setattr(conditions, "MAX_LEDGER_BYTES", 2900)
    await wal.append_many([b""], update={"r": "v" * 1000})
    await wal.open_stream("s", metadata={"m": "v" * 1000})
    await wal.producer("p" * 256).append(b"")
    grown = {
        "register": lambda: wal.append_many([b""], update={"q": "v" * 900}),
        "longer": lambda: wal.append_many([b""], update={"r": "v" * 2000}),
        "stream": lambda: wal.open_stream("t", metadata={"m": "v" * 900}),
        "metadata": lambda: wal.open_stream("s", metadata={"m": "v" * 2000}),
        "both": lambda: wal.append_many([b""], stream="u" * 256, update={"q": "v" * 400}),
        "fence": lambda: wal.fence("o" * 256, register="f" * 256),
        "producers": lambda: wal.producer("é" * 256).append(b""),
    }
    await wal.append_many([b""], update={"q": "v" * 100})
    before, tail = dict(wal.registers), wal.tail
    for name, call in grown.items():
        with pytest.raises(LimitExceededError, match="nothing was written") as caught:
            await call()
        assert (caught.value.limit, caught.value.outcome) == (2900, "not_written"), name
    with pytest.raises(LimitExceededError):
        async with wal.transaction(update={"q": "v" * 900}) as transaction:
            await transaction.append(b"")
    assert transaction.span is None
    assert (wal.tail, wal.registers, list(wal.streams())) == (tail, before, ["s"])
    await wal.append(b"", stream="s")
    await wal.producer("p" * 256).append(b"")
    await wal.append_many([b""], update={"r": None, "q": "v" * 900})
    await wal.open_stream("t")
    await wal.aclose()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"q": "v" * 900}
        with pytest.raises(LimitExceededError):
            await again.append_many([b""], update={"r": "v" * 1000})


async def test_removing_makes_room_for_registers_in_the_same_append(
    wal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "MAX_REGISTERS", 2)
    await wal.append_many([b""], update={"a": "1", "b": "2"})
    await wal.append_many([b""], update={"a": None, "c": "3"})
    assert wal.registers == {"b": "2", "c": "3"}


async def test_registers_have_a_limit(wal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "MAX_REGISTERS", 2)
    async with wal.transaction(update={"a": "1", "b": "2"}):
        pass
    with pytest.raises(LimitExceededError):
        async with wal.transaction(update={"c": "3"}):
            pass
    async with wal.transaction(update={"a": "9"}):
        pass
    assert wal.registers == {"a": "9", "b": "2"}


@pytest.mark.parametrize(
    ("name", "metadata", "error"),
    [
        ("", {}, ValueError),
        (7, {}, TypeError),
        ("x" * 257, {}, ValueError),
        ("x", {"a": 1}, TypeError),
        ("x", {"a": "b" * 5000}, ValueError),
    ],
)
async def test_bad_streams(wal, name, metadata, error) -> None:
    with pytest.raises(error):
        await wal.open_stream(name, metadata=metadata)
