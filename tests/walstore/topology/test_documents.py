"""Documents of a cluster: what is encoded comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walstore.errors import CorruptionError, FormatVersionError, InvalidSettingsError
from walstore.topology.documents import (
    MOST_GENERATION,
    SETTING_NAMES,
    Leader,
    LogSpec,
    Member,
    Synced,
)

Document = LogSpec | Leader | Member | Synced
Decode = Callable[[bytes, str], Document]

SPEC = LogSpec(3, 2, {"env": "prod"}, ("a", "b", "c"), "b", 5, {"a": 0, "b": 5})
DOCUMENTS: list[Document] = [
    SPEC,
    Leader("a", "t", 3, ("b", "c"), ("b",), {"c": "away"}, 5),
    Synced("ab" * 16, 3, 2, {"": 7, "b": 9}),
    Member("a", "t"),
    Member("a", "t", home="h:/d", replaced="g:/d"),
]
FIELDS = [(document, field) for document in DOCUMENTS for field in document._asdict()]

TEXT = st.text(max_size=8)
LABEL = st.from_regex(r"[A-Za-z0-9_./-]{1,100}", fullmatch=True)
LEADERS = st.builds(
    Leader,
    address=TEXT,
    tag=TEXT,
    epoch=st.integers(0),
    copies=st.lists(TEXT).map(tuple),
    present=st.lists(TEXT).map(tuple),
    missing=st.dictionaries(TEXT, TEXT),
    generation=st.integers(0),
)
WEB = st.sampled_from(["", "https://10.0.0.1:7421"])
MEMBERS = st.builds(Member, address=TEXT, tag=TEXT, zone=TEXT, web=WEB, home=TEXT, replaced=TEXT)
NAMES = TEXT | st.sampled_from(sorted(SETTING_NAMES))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = st.recursive(
    SCALARS, lambda some: st.lists(some) | st.dictionaries(NAMES, some), max_leaves=5
)
SETTINGS = {"segment_bytes": 1 << 20, "linger_seconds": 0.5, "compression": "zstd"}


@st.composite
def specs(draw: st.DrawFn) -> LogSpec:
    replicas = draw(st.integers(1, 16))
    copies = draw(st.lists(st.text(min_size=1), unique=True, max_size=replicas))
    return LogSpec(
        replicas=replicas,
        quorum=draw(st.none() | st.integers(replicas // 2 + 1, replicas)),
        labels=draw(st.dictionaries(LABEL, LABEL | st.just(""), max_size=64)),
        copies=tuple(copies),
        preferred=draw(st.sampled_from(["", *copies])),
        generation=draw(st.integers(1, MOST_GENERATION)),
        joined=draw(st.dictionaries(TEXT, st.integers(0, MOST_GENERATION))),
        tier=draw(st.sampled_from(["", "s3://bucket/logs"])),
        settings={
            name: SETTINGS[name] for name in draw(st.sets(st.sampled_from(sorted(SETTINGS))))
        },
        suspended=draw(st.booleans()),
    )


SOURCES = st.builds(
    LogSpec()._replace,
    labels=st.dictionaries(LABEL, LABEL, max_size=4),
    suspended=st.booleans(),
    source=st.sampled_from(["s3://bucket/logs", "file:///srv/logs"]),
)


def changed(document: Document, **fields: Any) -> bytes:
    """Return a document in which some fields are others."""
    return json.dumps({**json.loads(document.encode()), **fields}).encode()


@given(specs() | SOURCES | LEADERS | MEMBERS)
def test_what_is_encoded_comes_back(document: Document) -> None:
    if isinstance(document, LogSpec):
        assert document.check() is document
    assert document.decode(document.encode(), "k") == document


@pytest.mark.parametrize("document", DOCUMENTS)
def test_unknown_fields_are_ignored(document: Document) -> None:
    assert document.decode(changed(document, later=[1, {"x": None}]), "k") == document


def test_a_spec_of_an_earlier_version_is_led() -> None:
    fields = json.loads(SPEC._replace(suspended=True).encode())
    del fields["suspended"], fields["source"]
    assert LogSpec.decode(json.dumps(fields).encode(), "k") == SPEC


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_newer_version_is_told_from_damage(document: Document) -> None:
    for data in (changed(document, version=2), b'{"version": 2, "other": "fields"}'):
        with pytest.raises(FormatVersionError) as caught:
            document.decode(data, "walstore/k")
        assert (caught.value.path, caught.value.found) == ("walstore/k", 2)


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": "1"}',
        b'{"version": 1.0}',
        b'{"version": 1',
        b"\xff\xfe\x00",
        b'{"version": ' + b"9" * 10_000 + b"}",
        pytest.param(b"[" * 100_000, id="deep list"),
        pytest.param(b'{"a":' * 100_000, id="deep mapping"),
    ],
)
def test_anything_else_is_damage(document: Document, data: bytes) -> None:
    with pytest.raises(CorruptionError) as caught:
        document.decode(data, "walstore/k")
    assert caught.value.path == "walstore/k"


@pytest.mark.parametrize(("document", "field"), FIELDS)
def test_a_field_of_another_type_is_damage(document: Document, field: str) -> None:
    with pytest.raises(CorruptionError):
        document.decode(changed(document, **{field: 1.5}), "k")


def test_a_document_of_another_kind_is_damage() -> None:
    for document in DOCUMENTS[:2]:
        for other in DOCUMENTS:
            if other is not document:
                with pytest.raises(CorruptionError):
                    document.decode(other.encode(), "k")


@pytest.mark.parametrize("decode", [LogSpec.decode, Leader.decode, Member.decode, Synced.decode])
@given(data=st.binary())
def test_random_bytes_are_damage(decode: Decode, data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(data, "k")


@given(st.sampled_from(FIELDS), JSON)
@settings(max_examples=100)
def test_whatever_a_field_is_nothing_but_damage_is_raised(
    where: tuple[Document, str], value: object
) -> None:
    document, field = where
    try:
        found = document.decode(changed(document, **{field: value}), "k")
    except CorruptionError:
        return
    if isinstance(found, LogSpec):
        found.check()


@pytest.mark.parametrize(
    "fields",
    [
        {"replicas": 0, "quorum": None},
        {"replicas": 17, "quorum": None},
        {"replicas": 4, "quorum": 2},
        {"quorum": 1},
        {"quorum": 4},
        {"generation": 0},
        {"joined": {"a": -1}},
        {"copies": ("a", "a", "b")},
        {"copies": tuple("abcdefghijklmnopq")},
        {"preferred": "d"},
        {"tier": "bucket/logs"},
        {"settings": {"sync": "os"}},
        {"settings": {"segment_bytes": 1}},
        {"labels": {"": "x"}},
        {"labels": {"a=b": "x"}},
        {"labels": {"a": "x y"}},
        {"labels": {"a" * 101: "x"}},
        {"labels": {str(number): "" for number in range(65)}},
    ],
)
def test_a_spec_that_cannot_be(fields: dict[str, Any]) -> None:
    bad = SPEC._replace(**fields)
    with pytest.raises(InvalidSettingsError):
        bad.check()
    with pytest.raises(CorruptionError):
        LogSpec.decode(bad.encode(), "k")


@pytest.mark.parametrize(
    "fields",
    [
        {"replicas": True},
        {"replicas": "3"},
        {"quorum": 2.0},
        {"generation": None},
        {"joined": ["a"]},
        {"joined": {"a": "1"}},
        {"copies": None},
        {"preferred": None},
        {"settings": ["sync"]},
        {"labels": "env"},
        {"labels": {1: "x"}},
        {"labels": {"x": 1}},
    ],
)
def test_a_spec_of_other_types(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        SPEC._replace(**fields).check()
