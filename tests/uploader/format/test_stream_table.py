"""The table of streams: its bytes, what is no table, and which fragments may be named."""

from __future__ import annotations

import json

import pytest

from uploader.format import stream_table
from uploader.format.manifest import Manifest
from uploader.format.stream_table import (
    StreamTable,
    carry_closings,
    check_closings,
    closings_in,
    finished_closings,
    is_telling,
    raise_closings,
    with_closings,
    without_closings,
)
from walstore import LimitExceededError
from walstore.errors import ContentionError, CorruptionError, FormatVersionError

STORED = (
    b'{"version":1,"revision":3,"closings":1,"since":{"offset":1},"streams":['
    b'{"name":"eu","is_open":false,"opened_at":{"offset":1},"closing":1,"metadata":{"a":"b"}},'
    b'{"name":"\xc3\xbc","is_open":true,"opened_at":{"offset":7},"closing":0,"metadata":{}}]}'
)


def made() -> StreamTable:
    opened = StreamTable().open("eu", {"a": "b"}, opened_at=1)
    added = opened.add(["ü"], opened_at=7)
    return added.close("eu")


def test_the_bytes() -> None:
    """Fixed: later versions read what this one wrote."""
    assert made().serialise() == STORED
    assert StreamTable.parse(STORED) == made()


def _changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(STORED), **fields}).encode()


def _stream(**fields: object) -> bytes:
    document = json.loads(STORED)
    document["streams"][0].update(fields)
    return json.dumps(document).encode()


def test_what_is_no_table() -> None:
    for data in (
        b"",
        b"[]",
        _changed(closings=-1),
        _changed(closings=4),
        _changed(revision=2**64 - 1),
        _changed(since=1),
        _changed(streams={}),
        _changed(streams=[*json.loads(STORED)["streams"] * 2]),
        _stream(name=1),
        _stream(is_open=1),
        _stream(opened_at={"offset": -1}),
        _stream(closing=2),
        _stream(metadata=[]),
        _stream(metadata={"a": 1}),
    ):
        with pytest.raises(CorruptionError):
            StreamTable.parse(data)
    with pytest.raises(FormatVersionError):
        StreamTable.parse(_changed(version=2))


def test_a_fragment_that_was_made_before_a_closing_is_never_named() -> None:
    """Also once the stream is open again; others of its time are."""
    table = made().open("eu", {}, opened_at=9)
    assert table.closings == 1
    for names, closings, expected in (
        (["eu"], 0, False),
        (["eu", "ü"], 0, False),
        (["eu"], 1, True),
        (["ü"], 0, True),
        (["never seen"], 0, True),
        ([], 0, True),
    ):
        assert table.admits(names, closings) is expected


def test_a_fork_counts_for_itself() -> None:
    """A closing that is not finished did not happen there."""
    table = made()
    assert not table.forked(1, stop=7).streams["eu"].is_open
    assert table.forked(0, stop=7).streams["eu"].is_open
    assert not table.forked(None, stop=7).streams["eu"].is_open
    forked = table.forked(1, stop=6)
    assert (list(forked.streams), forked.closings, forked.revision) == (["eu"], 0, 1)
    assert forked.admits(["eu"], 0)


def test_there_is_an_end_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_table, "_MOST_CHANGES", 3)
    with pytest.raises(LimitExceededError):
        made().open("us", {}, opened_at=1)
    assert made().open("ü", {}, opened_at=1) is None


def test_the_number_behind_a_writers_name() -> None:
    assert with_closings("walstore-writer 0a", 7) == "walstore-writer 0a streams 7"
    assert with_closings("walstore-writer 0a streams 7", 9) == "walstore-writer 0a streams 9"
    assert without_closings("log writer streams 12") == "log writer"
    assert closings_in("walstore sealed, was: walstore-writer 0a streams 7") == 7
    for name in (
        "",
        "walstore-writer 0a",
        "streams 1",
        "x streams",
        "x streams 1 ",
        "x streams -1",
    ):
        assert (closings_in(name), without_closings(name)) == (None, name)
    assert is_telling("walstore-writer 0a")
    assert is_telling("log writer streams 3")
    assert not is_telling("log writer")


def test_who_may_append() -> None:
    for found, writer, expected in (
        ("a", "b", "b"),
        ("a streams 2", "b", "b streams 2"),
        ("a streams 2", "b streams 2", "b streams 2"),
        ("a streams 2", "b streams 3", "b streams 3"),
        ("a", "b streams 0", "b"),
        ("a", "b streams 4", "b streams 4"),
    ):
        check_closings(found, writer, url="x")
        assert carry_closings(found, writer) == expected
    with pytest.raises(ContentionError) as caught:
        check_closings("a streams 2", "b streams 1", url="x")
    assert caught.value.retriable


def test_what_a_manifest_tells() -> None:
    manifest = Manifest.initial("walstore-writer 0a")
    raised = raise_closings(manifest, 2)
    assert raised is not None
    assert (finished_closings(manifest), finished_closings(raised)) == (0, 2)
    assert raise_closings(raised, 2) is None
    assert raise_closings(raised.seal(), 3) is None
    assert finished_closings(raised.seal()) is None
    assert finished_closings(Manifest.initial("log writer")) is None
