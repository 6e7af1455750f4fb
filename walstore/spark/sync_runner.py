"""Loop: an event loop that runs while somebody calls, for code that has none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Loop:
    """Runs one coroutine after the other, on one event loop. Not to be used inside another loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        # Not Runner.run(): it restores a signal handler, and signal() formats the one it replaces,
        # with the task it holds and all of its result.
        self._run = self._runner.get_loop().run_until_complete

    def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return its result."""
        return self._run(call)

    def close(self) -> None:
        """Cancel what is left over and close the event loop; twice is allowed."""
        self._runner.close()
