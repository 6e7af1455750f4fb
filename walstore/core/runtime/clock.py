"""The real clock. The only module that may read the system's time."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall and monotonic time of this machine."""

    def now_us(self) -> int:
        """Return wall-clock microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)
    """Return seconds that never go back. Not a method of this class: each append asks several times."""

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        await asyncio.sleep(seconds)
