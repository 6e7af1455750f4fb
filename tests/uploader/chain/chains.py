"""Chains for tests: fragments with the right keys, and what lies in a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.uploader.documents import fragments
from uploader.chain.chain_reader import walk
from uploader.format.entries import Fragment
from uploader.format.layout import (
    FIRST_OFFSET,
    FIRST_SEQ_NO,
    MANIFEST_PREFIX,
    FragmentName,
    parse_manifest_key,
)
from uploader.format.link import Link
from uploader.format.setsum import Setsum
from uploader.stores.port import ObjectStore


def run(
    *sizes: int,
    seq_no: int = FIRST_SEQ_NO,
    start: int = FIRST_OFFSET,
    shards: int = 1,
    salt: str = "",
) -> list[Fragment]:
    """Return consecutive entries with so many records each, at the keys that a chain gives them."""
    found = []
    for item in fragments(*sizes, seq_no=seq_no, start=start):
        setsum = Setsum.of_items([f"{salt}{item.seq_no}".encode()])
        name = FragmentName(item.seq_no, item.start, item.limit, setsum)
        found.append(
            Fragment(
                name.key(shards=shards),
                item.seq_no,
                item.start,
                item.limit,
                item.num_bytes,
                setsum,
            )
        )
    return found


async def stored_links(store: ObjectStore) -> dict[int, Link]:
    """Return every manifest there is, by slot, the newest first; each must be readable."""
    links = {}
    async for listed in store.list(MANIFEST_PREFIX):
        slot = parse_manifest_key(listed.key)
        links[slot] = Link.parse((await store.get(listed.key)).data, slot=slot)
    return links


def true_head(links: dict[int, Link]) -> Link:
    """Return the head by following the whole chain from its anchor; nothing may have been pruned."""
    chain = walk(links[0], links, links[0])
    assert chain is not None
    return chain[-1]


class InlineWorker:
    """Does a worker's calls at once, on the event loop, so that nothing rests on threads."""

    async def run(self, call: Callable[..., Any], *args: object) -> Any:
        return call(*args)

    def close(self) -> None:
        pass
