"""Claiming: how a directory makes a prefix its own. One change of the root; rules in ``ownership.py``.

The process may die, or its caller be cancelled, at any line here, and the change may take effect later than
anybody waits: the directory has remembered the name before, so it knows its own claim whenever that shows. A
claim that was overtaken by another one never takes effect: the root has changed since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial

from uploader.manifests.manifest import Manifest
from uploader.manifests.root import Root
from uploader.writing.ownership import Claim, next_claim
from uploader.writing.writable import check_unsealed
from walstore.claims import Claims

Remember = Callable[[Claims], Awaitable[None]]
"""Makes durable what the directory knows of its claims."""


async def take_claim(
    root: Root,
    log_id: bytes,
    claims: Claims | None,
    remember: Remember,
    *,
    limit: int | None,
    take_over: bool,
    url: str,
) -> Claim:
    """Put a directory's claim into the newest manifest and return it.

    Where there is no manifest yet, nothing is asked of the store: the uploader creates one with this claim
    as the first thing it does, and learns whether another directory was quicker.

    ``root`` is loaded. Arguments and errors as for :func:`uploader.writing.ownership.next_claim`;
    LogSealedError, OutcomeUnknownError if the store does not answer, and its errors.
    """
    while True:
        before = root.manifest
        claim, known = next_claim(before, log_id, claims, limit=limit, take_over=take_over, url=url)
        await remember(known)
        if not root.is_known:
            return claim
        await root.change(partial(_claimed, before=before, name=claim.name, url=url))
        if root.manifest.writer == claim.name:
            return claim
        if claims is not None:  # somebody else was quicker; is that one's claim to be respected?
            claims = known


def _claimed(manifest: Manifest, *, before: Manifest, name: str, url: str) -> Manifest | None:
    """Return the manifest with a claim; None if another one, or more records, came in between."""
    check_unsealed(manifest, url=url)
    if (manifest.writer, manifest.next_offset) != (before.writer, before.next_offset):
        return None
    return dataclasses.replace(manifest, writer=name)
