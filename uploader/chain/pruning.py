"""Pruning: which manifests of a chain nobody needs any more, also once its log was destroyed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from uploader.format.link import Link
from uploader.format.names import parse_manifest_key
from uploader.stores.removal import Rule

KEPT_SLOTS: Final = 512
"""Slots below the head that are left alone, so that recovery finds a base, and slow readers what they
listed a while ago."""


def doomed(head: Link, slots: Iterable[int]) -> list[int]:
    """Return which of the listed slots are to be deleted, given a link that is durable.

    Old links, but not those that must be kept; and above the head what can never be linked, since the head
    names a slot behind it as the next. Right at any later time, too: no such slot is ever used again.
    """
    return [slot for slot in slots if is_doomed(head, slot)]


def is_doomed(head: Link, slot: int) -> bool:
    """Return whether :func:`doomed` names a slot; never that of a link that recovery may need."""
    if head.slot < slot < head.next:
        return True
    return slot < head.slot - KEPT_SLOTS and not head.is_kept(slot)


def prunable(head: Link) -> Rule:
    """Return the rule that admits the manifests in doomed slots, and nothing else."""

    def rule(key: str) -> bool:
        try:
            return is_doomed(head, parse_manifest_key(key))
        except ValueError:
            return False

    return rule


def outlives(end: Link, slot: int) -> bool:
    """Return whether a slot stays taken though the log was destroyed, given its last link.

    Whoever still writes there then finds the slot taken that he believes to be free, as in a log that goes
    on; or looks for the head, which is ``end``. It is found through the slots from its base on.
    """
    return end.base <= slot <= end.slot or end.is_kept(slot)
