"""What the members of a group share: exact bytes, and any bad shape refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.format.group_document import GroupDocument, JobRow
from walstore.errors import CorruptionError, FormatVersionError

ROW = st.builds(
    JobRow,
    st.integers(0, 1 << 20),
    st.booleans(),
    st.integers(0, 1 << 40),
    st.sampled_from(["a-1", "a-2", "b-1"]),
    st.integers(0, 1 << 32),
)


@given(
    rows=st.dictionaries(st.integers(1, 1 << 40), ROW, max_size=20),
    beyond=st.integers(1, 1 << 40),
    stream=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    is_ordered=st.booleans(),
)
def test_what_is_written_is_read(
    rows: dict[int, JobRow], beyond: int, stream: str | None, is_ordered: bool
) -> None:
    document = GroupDocument(
        made="0a",
        tag="a-3",
        position=max(rows, default=0) + beyond,
        stream=stream,
        is_ordered=is_ordered,
        rows=dict(sorted(rows.items())),
    )

    assert GroupDocument.parse(document.serialise(), name="g") == document


def test_its_bytes() -> None:
    rows = {7: JobRow(1, is_leased=True, wait_ms=30_000, tag="a-1", key=0)}
    document = GroupDocument(made="0a", tag="a-2", position=9, rows=rows)

    assert document.serialise() == (
        b'{"version":1,"made":"0a","tag":"a-2","position":{"offset":9},"stream":null,'
        b'"is_ordered":false,"tags":["a-1"],"jobs":[[7,1,1,30000,0,0]]}'
    )
    assert document.floor == 7
    removed = GroupDocument(made="0a", tag="a-3", is_removed=True)
    assert removed.serialise() == b'{"version":1,"made":"0a","tag":"a-3","removed":true}'
    assert GroupDocument.parse(removed.serialise(), name="g") == removed


GOOD: dict[str, Any] = {
    "version": 1,
    "made": "0a",
    "tag": "a-2",
    "position": {"offset": 9},
    "stream": None,
    "is_ordered": False,
    "tags": ["a-1"],
    "jobs": [[7, 1, 1, 30_000, 0, 0]],
}


@pytest.mark.parametrize(
    "changed",
    [
        {"made": ""},
        {"made": "../x"},
        {"tag": 1},
        {"position": 9},
        {"position": {"offset": 7}},
        {"jobs": [[0, 1, 1, 1, 0, 0]]},
        {"jobs": [[7, 1, 2, 1, 0, 0]]},
        {"jobs": [[7, 1, 1, 1, 0, 1]]},
        {"jobs": [[7, 1, 1, 1, 0]]},
        {"jobs": [[7, 1, 1, -1, 0, 0]]},
        {"jobs": [[8, 1, 1, 1, 0, 0], [7, 1, 1, 1, 0, 0]]},
        {"jobs": [[7, 1, 1, 1, 0, 0], [7, 1, 1, 1, 0, 0]]},
        {"tags": [1]},
        {"is_ordered": 1},
        {"stream": 1},
    ],
    ids=str,
)
def test_a_bad_shape_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError, match=r"group/g\.json"):
        GroupDocument.parse(json.dumps({**GOOD, **changed}).encode(), name="g")


def test_a_newer_one_is_refused() -> None:
    with pytest.raises(FormatVersionError):
        GroupDocument.parse(json.dumps({**GOOD, "version": 2}).encode(), name="g")
