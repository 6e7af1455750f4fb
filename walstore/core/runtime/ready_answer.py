"""ReadyAnswer: an answer that is there already, and may be awaited like one that is asked for elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self


class ReadyAnswer:
    """Base of such answers: ``await log.statistics()`` is right wherever the log is."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self
