"""Recovery: which link of a chain is its head, by as few reads as there may be links under way. Pure.

The newest name need not be the head: links are put before those in front of them are there, and a put may
come late. But whoever put it knew a durable link, its base, at most ``2 * MOST_ALPHA`` slots below (docs/
chain.md), and from there the chain is followed. ``chain_reader.py`` makes the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from uploader.format.link import MOST_ALPHA, Link
from uploader.format.names import parse_manifest_key

WINDOW_SLOTS: Final = 2 * MOST_ALPHA
"""How far below the newest name its base may lie, at the most."""


def slots_of(keys: Iterable[str]) -> list[int]:
    """Return the slots that a listing names, in its order; what is no manifest of a chain is left out."""
    slots = []
    for key in keys:
        try:
            slots.append(parse_manifest_key(key))
        except ValueError:
            continue
    return slots


def to_read(newest: Link, slots: Sequence[int], known: Link | None) -> list[int]:
    """Return the slots to be read beside ``newest`` and ``known``, given the names near the newest one.

    At most twice :data:`~uploader.format.link.MOST_ALPHA`, in practice as many as were under way at once.
    """
    low = newest.base if known is None or known.slot < newest.base else known.slot + 1
    return [slot for slot in slots if low <= slot < newest.slot]


def walk(newest: Link, links: Mapping[int, Link], known: Link | None) -> list[Link] | None:
    """Return the chain from where it is known to its head.

    It begins with ``known`` or with the base of ``newest``, both of which were durable. None if that is not
    among ``links`` any more: it was pruned meanwhile, so the listing is old.
    """
    found = {**links, newest.slot: newest}
    if known is not None and known.slot >= newest.base:
        link = known
    elif newest.base in found:
        link = found[newest.base]
    else:
        return None
    chain = [link]
    while (after := found.get(link.next)) is not None and after.follows(link):
        chain.append(after)
        link = after
    return chain
