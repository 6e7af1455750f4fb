"""Links: their bytes, who follows whom, and how slots are handed out."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.chain.chains import run
from tests.uploader.documents import SETSUMS, TEXT, U64
from uploader.format.layout import MAX_U64
from uploader.format.link import (
    KEPT_SECONDS,
    MOST_ALPHA,
    MOST_INLINE,
    MOST_RANGES,
    Kept,
    Link,
    PreviousLink,
    encode_content,
)
from uploader.format.manifest import Manifest
from walstore.errors import CorruptionError, FormatVersionError

EMPTY = Manifest.initial("w")
HOUR_US = round(KEPT_SECONDS * 1e6)


def after(link: Link, author: str, *, alpha: int = 4, now_us: int = 0) -> Link:
    return link.successor(link.manifest, author=author, alpha=alpha, base=link.slot, now_us=now_us)


def test_the_bytes_of_a_link() -> None:
    """Those of the manifest, with one more field at the end; docs/chain.md shows them."""
    manifest = EMPTY.apply_fragments(run(3), "walstore 00")
    link = Link.root(EMPTY, author="a", alpha=2).successor(
        manifest, author="b", alpha=4, base=0, now_us=7
    )
    link = dataclasses.replace(link, kept=(Kept(1, 5, 7),))
    zeroes = "0" * 64
    expected = (
        manifest.serialise()[:-1]
        + (
            ',"chain":{"version":1,"slot":1,"next":3,'
            f'"prev":{{"slot":0,"author":"a","setsum":"{zeroes}"}},'
            '"base":0,"author":"b","alpha":4,"kept":[[1,5,7]]}}'
        ).encode()
    )
    assert link.serialise() == expected
    assert Link.parse(expected, slot=1) == link
    assert Manifest.parse(expected) == manifest


def test_the_bytes_of_a_link_with_inline_fragments() -> None:
    """Version 2 has two fields more; docs/chain.md describes them."""
    first, second = run(3, 2)
    before = Link.root(EMPTY, author="a", alpha=2).successor(
        EMPTY.apply_fragments([first], "w"),
        author="a",
        alpha=2,
        base=0,
        now_us=7,
        contents={first.path: encode_content(b"one")},
    )
    link = before.successor(
        before.manifest.apply_fragments([second], "w"),
        author="a",
        alpha=2,
        base=0,
        now_us=7,
        inline=before.inline,
        contents={second.path: encode_content(b"two")},
    )
    data = link.serialise()
    fields = (
        f'"inline":{{"{first.path}":1,"{second.path}":2}},"contents":{{"{second.path}":"dHdv"}}'
    )
    assert data.endswith(b',"kept":[],%s}}' % fields.encode())
    assert b'"chain":{"version":2,"slot":2,' in data
    assert Link.parse(data, slot=2) == link
    assert (link.content(second.path), link.content(first.path)) == (b"two", None)
    assert [link.is_kept(slot) for slot in (0, 1, 2, 3)] == [True, True, True, False]


def inline_document() -> dict:
    (entry,) = run(3)
    manifest = EMPTY.apply_fragments([entry], "w")
    link = Link.root(EMPTY, author="a", alpha=4).successor(
        manifest,
        author="a",
        alpha=4,
        base=0,
        now_us=0,
        contents={entry.path: encode_content(b"content")},
    )
    return json.loads(link.serialise())


@pytest.mark.parametrize(
    "changes",
    [
        {"inline": {}, "contents": {}},
        {"inline": None},
        {"contents": {}},
        {"inline": {"log/other": 1}, "contents": {"log/other": ""}},
        {"inline": {run(3)[0].path: 2}, "contents": {}},
        {
            "inline": {run(1, salt=str(n))[0].path: 0 for n in range(MOST_INLINE + 1)},
            "contents": {},
        },
        {"contents": {run(3)[0].path: "", run(2)[0].path: ""}},
        {"contents": {run(3)[0].path: 1}},
    ],
)
def test_what_no_author_writes_of_inline_fragments_is_refused(changes: dict[str, object]) -> None:
    document = inline_document()
    assert Link.parse(json.dumps(document).encode(), slot=1).inline
    document["chain"] |= changes
    with pytest.raises(CorruptionError):
        Link.parse(json.dumps(document).encode(), slot=1)


def test_a_content_that_is_not_base64() -> None:
    document = inline_document()
    path = next(iter(document["chain"]["contents"]))
    document["chain"]["contents"][path] = "a?=="
    link = Link.parse(json.dumps(document).encode(), slot=1)
    with pytest.raises(CorruptionError, match="base64"):
        link.content(path)


KEPT = st.lists(st.builds(Kept, U64, U64, st.integers(0, 2**60)), max_size=3).map(tuple)
SLOTS = st.integers(0, 2**63 - 100)


@given(SLOTS, st.integers(1, 64), SETSUMS, TEXT, st.integers(1, MOST_ALPHA), KEPT)
def test_a_link_is_read_as_it_was_written(slot, gap, setsum, author, alpha, kept) -> None:
    link = Link(
        manifest=EMPTY,
        slot=slot,
        next=slot + gap,
        prev=PreviousLink(slot, author, setsum),
        base=slot // 2,
        author=author,
        alpha=alpha,
        kept=kept,
    )
    data = link.serialise()
    assert Link.parse(data, slot=slot) == link
    assert Link.parse(data, slot=slot).serialise() == data
    with pytest.raises(CorruptionError):
        Link.parse(data, slot=slot + 1)


def test_one_of_a_newer_kind_is_refused() -> None:
    data = Link.root(EMPTY, author="a", alpha=1).serialise().replace(b'"version":1', b'"version":3')
    with pytest.raises(FormatVersionError):
        Link.parse(data, slot=0)


@pytest.mark.parametrize("name", ["slot", "next", "base", "author", "alpha", "kept", "version"])
def test_every_field_counts(name: str) -> None:
    document = json.loads(Link.root(EMPTY, author="a", alpha=1).serialise())
    for change in (lambda chain: chain.pop(name), lambda chain: chain.update({name: {}})):
        chain = dict(document["chain"])
        change(chain)
        data = json.dumps(document | {"chain": chain}).encode()
        with pytest.raises(CorruptionError):
            Link.parse(data, slot=0)


def test_numbers_out_of_range() -> None:
    for alpha in (0, 33):
        with pytest.raises(ValueError, match="alpha"):
            Link.root(EMPTY, author="a", alpha=alpha)
    with pytest.raises(ValueError, match="next"):
        Link.root(EMPTY, author="a", alpha=1, slot=MAX_U64)


def test_an_authors_links_stand_side_by_side() -> None:
    link = Link.root(EMPTY, author="a", alpha=4)
    for slot in range(1, 10):
        link = after(link, "a")
        assert (link.slot, link.next, link.is_takeover) == (slot, slot + 1, False)


def test_a_takeover_leaves_out_what_the_other_may_have_put() -> None:
    link = Link.root(EMPTY, author="a", alpha=5)
    taken = after(link, "b", alpha=2)
    assert (taken.slot, taken.next, taken.is_takeover) == (1, 6, True)
    assert taken.follows(link)
    assert after(taken, "b", alpha=2).slot == 6
    assert after(taken, "c").next == 8


def test_who_follows_whom() -> None:
    link = Link.root(EMPTY, author="a", alpha=5)
    right = after(link, "b")
    assert right.follows(link)
    for wrong in (
        dataclasses.replace(right, slot=2),
        dataclasses.replace(right, prev=None),
        dataclasses.replace(right, prev=dataclasses.replace(link.place, author="x")),
        dataclasses.replace(right, prev=dataclasses.replace(link.place, slot=7)),
        dataclasses.replace(right, prev=dataclasses.replace(link.place, setsum=run(1)[0].setsum)),
    ):
        assert not wrong.follows(link)


@given(st.lists(st.tuples(st.integers(1, MOST_ALPHA), st.booleans()), max_size=30))
def test_no_slot_is_ever_used_by_two(turns: list[tuple[int, bool]]) -> None:
    """Whatever all authors put or may have had under way, each slot has one author for each life of it.

    Each turn an author goes on from the head: its window is all that it may put. Whoever comes next sees any
    part of it as linked, and goes on behind; the rest may be put at any later time.
    """
    link = Link.root(EMPTY, author="0", alpha=1)
    prev_of: dict[int, tuple[int, str]] = {}
    for author, (alpha, goes_on) in enumerate(turns, 1):
        head = link
        window = [after(head, str(author), alpha=alpha)]
        if goes_on:  # the takeover is durable: now it may put as many as alpha behind it
            head = window[0]
            window = [head]
            for _ in range(alpha):
                window.append(after(window[-1], str(author), alpha=alpha))
        for item in window:
            assert item.prev is not None
            before = (item.prev.slot, item.prev.author)
            assert prev_of.setdefault(item.slot, before) == before
        link = head if goes_on else window[0]


def test_takeovers_are_kept_for_an_hour() -> None:
    """From when somebody had seen them: the clock of whoever made them does not matter."""
    first = after(Link.root(EMPTY, author="a", alpha=1), "b", now_us=0)
    assert first.kept == ()
    second = after(first, "b", now_us=50)
    assert second.kept == (Kept(1, 1, 50),)
    third = after(second, "c", now_us=HOUR_US)
    assert third.kept == (Kept(1, 1, 50),)
    fourth = after(after(third, "c"), "d", now_us=2 * HOUR_US)
    assert (
        fourth.kept == ()
    )  # it has seen the third, but only its successor will say so: that is near
    assert [link.is_kept(1) for link in (second, third, fourth)] == [True, True, False]
    assert fourth.is_kept(0)


def test_an_author_alone_lets_nothing_expire() -> None:
    """Who never lists the manifests does not delete the ones that expire, so it must not forget them."""
    link = after(after(Link.root(EMPTY, author="a", alpha=1), "b"), "b", now_us=5)
    for _ in range(10):
        link = after(link, "b", now_us=10 * HOUR_US)
        assert link.kept == (Kept(1, 1, 5),)


@pytest.mark.slow
@given(st.integers(0, 300), st.randoms(use_true_random=False))
def test_what_is_kept_takes_little_room(count: int, random) -> None:
    """Under contention ranges are joined; none of the takeovers is forgotten."""
    link = Link.root(EMPTY, author="0", alpha=1)
    takeovers = []
    for number in range(count):
        link = after(link, str(random.randint(0, 1 + number)), alpha=random.randint(1, 32))
        takeovers += [link.slot] if link.is_takeover else []
    assert len(link.kept) <= MOST_RANGES
    assert all(link.is_kept(slot) for slot in takeovers if slot != link.slot)
    assert len(link.serialise()) < 5000


@pytest.mark.parametrize(
    "changes",
    [
        {"next": 1 + 2 * MOST_ALPHA + 1},
        {"slot": MAX_U64 - 1, "next": MAX_U64},
        {"kept": [[1, 1, 1]] * (MOST_RANGES + 1)},
        {"kept": [[1, 1, -1]]},
        {"kept": [[1, 1, 2**64]]},
    ],
)
def test_what_no_author_writes_is_refused(changes: dict[str, object]) -> None:
    document = json.loads(after(Link.root(EMPTY, author="a", alpha=4), "b").serialise())
    document["chain"] |= changes
    with pytest.raises(CorruptionError):
        Link.parse(json.dumps(document).encode(), slot=document["chain"]["slot"])
