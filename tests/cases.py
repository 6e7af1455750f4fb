"""Loops over cases inside one test: a failure names its case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Add the values of this case to the message of whatever fails in the block."""
    try:
        yield
    except BaseException as error:
        error.add_note("case: " + ", ".join(map(repr, values)))
        raise
