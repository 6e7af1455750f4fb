"""Claiming: how a directory makes a prefix its own. One change of the root; rules in ``ownership.py``.

The process may die, or its caller be cancelled, at any line here, and the change may take effect after the
call ended. The directory has stored the name before, so it recognises its own claim later. A
claim that was overtaken by another one never takes effect: the root has changed since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from uploader.format.manifest import Manifest
from uploader.root.ownership import Claim, next_claim
from uploader.root.root import Root
from uploader.root.write_guard import check_unsealed
from walstore.format.claims import Claims

Remember = Callable[[Claims], Awaitable[None]]
"""Makes the directory's record of its claims durable."""


@dataclass(frozen=True, slots=True)
class Claiming:
    """A directory that is about to claim a prefix. Fields as the arguments of :func:`next_claim`."""

    root: Root
    """Loaded."""
    log_id: bytes
    claims: Claims | None
    remember: Remember
    limit: int | None
    take_over: bool
    url: str

    async def take(self, *, proven: Manifest | None = None) -> Claim | None:
        """Put a claim into the newest manifest and return it.

        None if the directory must first be checked to hold what that names, and ``proven`` is not it. Where
        there is no manifest yet, this sends no request: the uploader first creates one with this claim,
        and learns whether another directory was quicker. Errors as for
        :func:`next_claim`; LogSealedError, OutcomeUnknownError if the store does not answer, and its errors.
        Another call uses another name.
        """
        root, claims = self.root, self.claims
        while True:
            before = root.manifest
            following = next_claim(
                before,
                self.log_id,
                claims,
                limit=self.limit,
                take_over=self.take_over,
                url=self.url,
            )
            if following.must_prove and before is not proven:
                return None
            name = following.claim.name
            await self.remember(following.claims)
            if not root.is_known:
                return following.claim
            await root.change(partial(_claimed, before=before, name=name, url=self.url))
            if root.manifest.writer == name:
                return following.claim
            if claims is not None:  # another directory was quicker; must its claim be respected?
                claims = following.claims


def _claimed(manifest: Manifest, *, before: Manifest, name: str, url: str) -> Manifest | None:
    """Return the manifest with a claim; None if another one, or more records, came in between."""
    check_unsealed(manifest, url=url)
    if (manifest.writer, manifest.next_offset) != (before.writer, before.next_offset):
        return None
    return dataclasses.replace(manifest, writer=name)
