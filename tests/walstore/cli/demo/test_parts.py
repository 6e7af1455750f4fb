"""The smaller parts of the demo: samples, text, latencies, messages, story, plan."""

from __future__ import annotations

import asyncio
import io
import os
from array import array
from itertools import pairwise

import msgpack
import pytest
from rich.console import Console

from walstore.cli.demo import messages, samples
from walstore.cli.demo.identity import producer_number
from walstore.cli.demo.latencies import LatencySamples
from walstore.cli.demo.messages import Pipe, Watch, pack_latencies, receive, unpack_latencies
from walstore.cli.demo.plan import SAMPLE_STREAMS, DemoRun
from walstore.cli.demo.progress import Display
from walstore.cli.demo.story import Story
from walstore.cli.demo.texts import Texts
from walstore.cli.location import fresh_prefix


@pytest.mark.parametrize("stream", SAMPLE_STREAMS)
def test_samples_are_of_this_machine(stream: str) -> None:
    assert samples.is_available()
    first, second = (msgpack.unpackb(samples.take(stream, at_ns)) for at_ns in (5, 6))
    assert (first["at_ns"], second["at_ns"]) == (5, 6)
    assert first[stream]
    if stream == "cpu":
        assert all(len(ticks) >= 7 for ticks in first["cpu"]["cores"].values())
        assert len(first["cpu"]["cores"]) == (os.cpu_count() or 0) + 1
    if stream == "memory":
        assert first["memory"]["MemTotal"] > first["memory"]["MemFree"] > 0
    if stream == "processes":
        assert len(first["processes"]) <= samples.MAX_PROCESSES


def test_text_never_ends_and_is_given_out_once(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    import sysconfig

    (tmp_path / "package").mkdir()
    (tmp_path / "a.py").write_text("one\n\nthree")
    (tmp_path / "package" / "b.py").write_text("four\nfive\n")
    (tmp_path / "empty.py").touch()
    (tmp_path / "notes.txt").write_text("no")
    places = dict.fromkeys(("purelib", "platlib", "stdlib"), str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: places)
    texts = Texts()
    assert sorted(texts.next_lines(4)) == [b"", b"five", b"four", b"one", b"three"]
    assert len(texts.next_lines(11)) >= 11


def test_no_text_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    import sysconfig

    places = dict.fromkeys(("purelib", "platlib", "stdlib"), str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: places)
    with pytest.raises(FileNotFoundError, match="no Python source files"):
        Texts().next_lines(1)


def test_percentiles() -> None:
    latencies = LatencySamples()
    assert latencies.percentile(50) is None
    latencies.add(range(1000, 0, -1))
    assert latencies.percentile(0) == 1e-6
    assert latencies.percentile(50) == 501e-6
    assert latencies.percentile(99) == 991e-6
    assert latencies.percentile(100) == 1000e-6


def test_beyond_the_bound_a_fair_choice_is_kept() -> None:
    latencies = LatencySamples(capacity=2000)
    latencies.add(range(100_000))
    assert latencies.count == 100_000
    found = [latencies.percentile(percent) for percent in range(0, 101, 10)]
    assert all(low is not None and high is not None and low < high for low, high in pairwise(found))
    median = latencies.percentile(50)
    assert median is not None
    assert 0.045 < median < 0.055
    again = LatencySamples(capacity=2000)
    again.add(range(100_000))
    assert again.percentile(50) == median


async def test_messages_arrive_as_they_were_sent() -> None:
    low, high = os.pipe()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(low, "rb", buffering=0)
    )
    task = asyncio.current_task()
    assert task is not None
    out, _ = await loop.connect_write_pipe(lambda: Watch(task), io.FileIO(high, "w"))
    pipe = Pipe(out)
    for number in range(1000):
        pipe.send(messages.ACK, number, 2**60, b"x" * number)
    pipe.close()
    found = [message async for message in receive(reader)]
    assert found == [[messages.ACK, n, 2**60, b"x" * n] for n in range(1000)]
    transport.close()


async def test_of_a_message_that_was_cut_off_nothing_is_seen() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(msgpack.packb(["ack", 1]) + msgpack.packb(["ack", "longer"])[:-3])
    reader.feed_eof()
    assert [message async for message in receive(reader)] == [["ack", 1]]


async def test_the_child_ends_when_its_parent_is_gone() -> None:
    async def child() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(lambda: Watch(task), io.FileIO(high, "w"))
        pipe = Pipe(transport)
        os.close(low)
        try:
            while True:
                pipe.send(messages.ACK, 1, 2, 3)
                await asyncio.sleep(0)
        finally:
            pipe.close()

    low, high = os.pipe()
    task = asyncio.get_running_loop().create_task(child())
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_story_of_two_lives() -> None:
    now = 0.0
    story = Story(lambda: now)
    counters = {"rotations": 2, "commits": 10, "appended_bytes": 100, "tier_reads": 0}
    latencies = [pack_latencies(array("I", [1000])), pack_latencies(array("I", [2000, 3000]))]
    for life in (1, 2):
        story.take([messages.OPENED, {"tail": life}])
        number = producer_number(life, 0)
        story.take([messages.PRODUCER, number, "cpu"])
        story.take([messages.ACK, number, 5, 99])
        story.take([messages.ACK, number, 7, 98])
        story.take([messages.STATUS, counters | {"uploaded_limit": 3 * life}, *latencies])
        now += 2.0
        if life == 1:
            story.end_life()
            now += 100.0
    assert story.append_seconds == 4.0
    story.take([messages.STOPPED, {"history_read": 15}])
    now += 50.0
    assert story.append_seconds == 4.0
    story.take([messages.CLOSED, {}])
    assert story.is_closed
    assert (story.acknowledged, story.uploaded) == (14, 5)
    assert [claim.checksum for claim in story.claims.values()] == [98, 98]
    assert (story.rotations, story.commits, story.appended_bytes) == (4, 20, 200)
    assert (story.append_latencies.count, story.tail_latencies.count) == (2, 4)


def test_latencies_travel() -> None:
    samples_us = array("I", [1, 2**31])
    data = pack_latencies(samples_us)
    assert len(samples_us) == 0
    assert list(unpack_latencies(data)) == [1, 2**31]


def test_the_plan_travels() -> None:
    plan = DemoRun(directory="/d", store_url="file:///s", life_seconds=1.5)
    assert DemoRun.from_json(plan.to_json()) == plan
    assert plan.second_life().life == 2


def test_a_fresh_prefix_keeps_the_options_of_a_url() -> None:
    one, two = (
        fresh_prefix("s3://bucket/a/?endpoint_url=http://x:1&region=r", "demo") for _ in range(2)
    )
    assert one != two
    assert one.startswith("s3://bucket/a/demo-")
    assert one.endswith("?endpoint_url=http://x:1&region=r")
    assert fresh_prefix("s3://bucket", "demo").startswith("s3://bucket/demo-")


def test_the_display_shows_what_the_story_tells() -> None:
    story = Story(lambda: 0.0)
    text = io.StringIO()
    with Display(
        Console(file=text, force_terminal=True, width=140, highlight=False), story, 10.0
    ) as display:
        story.take([messages.PRODUCER, 1, "cpu"])
        story.take([messages.ACK, 1, 12_345, 0])
        counters = {"rotations": 1, "commits": 1, "appended_bytes": 2_500_000, "tier_reads": 0}
        limits = {"durable_limit": 12_346, "uploaded_limit": 4_001}
        story.take([messages.STATUS, counters | limits, b"", b""])
        display.refresh()
        display.say("[something] happened")
        bar = display.add("read back", total=10)
        display.move(bar, 5)
        display.finish(bar, "all of it")
    shown = text.getvalue()
    for words in ("12 345 records", "2.5 MB", "4 000 records uploaded", "[something] happened"):
        assert words in shown
    assert "all of it" in shown


def test_without_a_terminal_each_step_is_a_line() -> None:
    text = io.StringIO()
    with Display(Console(file=text), Story(), 10.0) as display:
        display.refresh()
        display.finish(display.add("Spark", total=None), "6 streams")
    (line,) = text.getvalue().splitlines()
    assert line.startswith("Spark: 6 streams, ")
