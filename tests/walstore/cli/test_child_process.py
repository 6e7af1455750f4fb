"""Messages of a child process to its parent, and percentiles over many samples."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import pairwise
from typing import Any

import msgpack

from walstore.cli.child_process import LatencySamples, receive

PROGRAM = """
import sys
from walstore.cli.child_process import say
for number in range(int(sys.argv[1])):
    say("ack", number, 2**60, b"x" * number)
"""


def _child(messages: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, str(messages)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def _receive(data: bytes) -> list[list[Any]]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return [message async for message in receive(reader)]


def test_messages_arrive_as_they_were_sent() -> None:
    out, error = _child(1000).communicate()
    assert error == b""
    assert asyncio.run(_receive(out)) == [["ack", n, 2**60, b"x" * n] for n in range(1000)]


async def test_a_message_that_was_cut_off_is_dropped() -> None:
    data = msgpack.packb(["ack", 1]) + msgpack.packb(["ack", "longer"])[:-3]
    assert await _receive(data) == [["ack", 1]]


def test_a_child_ends_when_its_parent_is_gone() -> None:
    with _child(1_000_000) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert b"BrokenPipeError" in child.stderr.read()
    assert child.returncode == 1


def test_percentiles() -> None:
    latencies = LatencySamples()
    assert latencies.milliseconds(50) is None
    latencies.add(range(1000, 0, -1))
    found = [latencies.milliseconds(percent) for percent in (0, 50, 99, 100)]
    assert found == [0.001, 0.501, 0.991, 1.0]


def test_beyond_the_bound_a_fair_choice_is_kept() -> None:
    latencies = LatencySamples(capacity=2000)
    latencies.add(range(100_000))
    assert latencies.count == 100_000
    found = [latencies.milliseconds(percent) for percent in range(0, 101, 10)]
    assert all(low is not None and high is not None and low < high for low, high in pairwise(found))
    median = latencies.milliseconds(50)
    assert median is not None
    assert 45 < median < 55
    again = LatencySamples(capacity=2000)
    again.add(range(100_000))
    assert again.milliseconds(50) == median
