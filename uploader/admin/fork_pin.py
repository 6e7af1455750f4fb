"""ForkPin: protects a log from collection while it is copied.

The pin expires, so that an abandoned fork does not hold records for ever. It points at the log's first
record, whatever range is copied: in a log without cursors, a pin further on would release all records before
it.

Each attempt uses a new pin name. So the pin can be deleted although stores have no conditional delete: a late
delete never removes another attempt's pin. Pins are deleted, not left to expire, because wal3's collectors do
not know expiry and would keep the records for ever.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from uploader.cursors.cloud_cursors import CloudCursors
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import LogSession
from walstore.errors import OffsetTrimmedError

_HOLD_SECONDS: Final = 86_400.0
_RENEW_SECONDS: Final = 3_600.0


class ForkPin:
    """The pin of one fork on its source. Belongs to one task."""

    def __init__(self, source: LogSession, target_url: str) -> None:
        """Name the pin after the target, so that the attempt that succeeds finds the pins of all others."""
        self._source = source
        self._prefix = f"fork_{hashlib.sha256(target_url.encode()).hexdigest()[:16]}_"
        self._name = self._prefix + secrets.token_hex(8)
        self._held_at = 0.0
        self._cursors = CloudCursors(
            source.store,
            newest=self._newest,
            retry=source.retry,
            clock=source.clock,
            writer="walstore fork",
        )

    async def hold(self, start: int | None) -> int | None:
        """Pin the log; return the first offset to copy: ``start`` if given.

        Without ``start``, a collection under way takes precedence, and only the records that it keeps are
        copied. Afterwards the source's manifest is at least as new as the pin. OffsetTrimmedError if
        ``start`` is being collected.
        """
        # A forged manifest may say that the log begins at 0.
        position = max(layout.FIRST_OFFSET, self._source.root.manifest.oldest_offset)
        while True:
            try:
                await self._cursors.pin(self._name, position, seconds=_HOLD_SECONDS)
            except OffsetTrimmedError as error:
                if start is not None and start < error.head:
                    await self.release()
                    raise
                position = max(error.head, position)
                continue
            self._held_at = self._source.clock.monotonic()
            oldest = (await self._newest()).oldest_offset
            return position if start is None and position > oldest else start

    async def renew(self) -> None:
        """Renew the pin for another day, if an hour has passed."""
        if self._source.clock.monotonic() - self._held_at >= _RENEW_SECONDS:
            await self._cursors.renew(self._name, seconds=_HOLD_SECONDS)
            self._held_at = self._source.clock.monotonic()

    async def release(self) -> None:
        """Remove the pin, and those of earlier attempts; no error if there is none."""
        folder = self._source.store.list(f"{layout.CURSOR_FOLDER}{self._prefix}")
        if keys := [listed.key async for listed in folder]:
            await self._source.store.delete(keys)

    async def _newest(self) -> Manifest:
        return await self._source.newest()
