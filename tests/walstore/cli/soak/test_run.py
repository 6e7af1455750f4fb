"""The parent of a soak: what its processes say is held against what the log has."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from walstore.cli.soak import child
from walstore.cli.soak.child import STREAMS, SoakJob
from walstore.cli.soak.run import Actor, Soak

FIRST = [1] * len(STREAMS)


class Heard:
    """A soak, and what its processes say."""

    def __init__(self, place: Path, durability: Any = "disk") -> None:
        plan = SoakJob(
            url=place.as_uri(),
            directory=str(place),
            layout="swap",
            durability=durability,
            seed=1,
            rate=10,
            collect_seconds=1,
        )
        self.soak = Soak(plan, place, seconds=1, kill_seconds=0)
        self.writer = Actor("writer", tuple(FIRST))

    def say(self, kind: str, *items: Any) -> None:
        self.soak._take(self.writer, kind, list(items))

    def report(self, tail: int = 1) -> dict[str, Any]:
        return self.soak.report(1.0, tail, 1)


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    heard = Heard(tmp_path)
    heard.say(child.BEGUN, 0, 5)
    heard.say(child.ACKNOWLEDGED, 0, 5, 1000)
    heard.say(child.BEGUN, 1, 4)
    return heard


def _found(*numbers: int) -> list[int]:
    return [*numbers, *FIRST[len(numbers) :]]


@pytest.mark.parametrize(("found", "written"), [(1, 0), (4, 3), (2, 1)])
def test_an_append_that_a_kill_cut_off_is_in_the_log_or_not(
    heard: Heard, found: int, written: int
) -> None:
    heard.say(child.FOUND, _found(5, found))
    report = heard.report()
    assert report["problems"] == []
    assert (report["unknown_written"], report["unknown_not_written"]) == (written, 3 - written)
    assert (report["acknowledged"], report["appended"]) == (4, 4 + written)
    heard.say(child.FOUND, _found(5, found))  # killed again at once: nothing new is unknown
    assert heard.report() == report


def test_an_acknowledged_record_that_a_restart_does_not_find_is_lost(heard: Heard) -> None:
    heard.say(child.FOUND, _found(4, 1))
    (problem,) = heard.report()["problems"]
    assert problem == (
        "stream 0 ended before record 4 when writer was restarted; all before 5 were acknowledged"
    )
    assert heard.soak._stop.is_set()


def test_at_level_memory_it_is_taken_back(tmp_path: Path) -> None:
    heard = Heard(tmp_path, "memory")
    heard.say(child.BEGUN, 0, 5)
    heard.say(child.ACKNOWLEDGED, 0, 5, 1000)
    heard.say(child.FOUND, _found(2))
    report = heard.report()
    assert (report["problems"], report["taken_back"], report["appended"]) == ([], 3, 1)


def test_a_record_that_nobody_tried_to_append_is_named(heard: Heard) -> None:
    heard.say(child.FOUND, _found(6, 1))
    assert heard.report()["problems"] == ["nobody appended record 5 of stream 0"]


def test_a_reader_that_saw_less_or_more_is_named(heard: Heard) -> None:
    for number in (4, 5, 6, 0):
        heard.soak._compare("store", _found(number))
    assert heard.report()["problems"] == [
        "store: stream 0 goes to record 3, 4 were written",
        "store: stream 0 goes to record 5, 4 were written",
    ]


def test_a_plan_crosses_to_a_process(heard: Heard) -> None:
    plan = heard.soak._plan
    again = SoakJob(**json.loads(json.dumps(asdict(plan))))
    assert replace(again, numbers=tuple(again.numbers)) == plan
    assert list(again.numbers) == FIRST
