"""How a manifest records which closings of streams its writers know. Pure.

The number follows the name of the writer that wrote the manifest last: closings of streams are counted,
from 1, in the log's table of streams (``uploader/format/stream_table.py``). Only a writer that has seen all
closings up to the number in the manifest it replaces names a fragment with records of
streams. So once a number is in the manifest, every writer knows the closings up to it before it appends to
a stream.

Every writer of ours carries the number on, and seals and collections keep it. A program of wal3 writes
another name when it appends, and the number is gone then; writers therefore read the table again when they
find another program's manifest.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from uploader.format.manifest import Manifest
from walstore.errors import ContentionError

_BEHIND: Final = " streams "
_NUMBER: Final = re.compile(r"(.*) streams ([0-9]{1,19})", re.DOTALL)
_OURS: Final = "walstore"


def with_closings(writer: str, closings: int) -> str:
    """Return a writer's name with the number of closings it knows, in place of any that is there."""
    return f"{without_closings(writer)}{_BEHIND}{closings}"


def without_closings(writer: str) -> str:
    """Return a writer's name alone."""
    found = _NUMBER.fullmatch(writer)
    return writer if found is None else found[1]


def closings_in(writer: str) -> int | None:
    """Return the number in a writer's name; None if there is none."""
    found = _NUMBER.fullmatch(writer)
    return None if found is None else int(found[2])


def is_telling(writer: str) -> bool:
    """Return whether a manifest with that writer says all that was closed: one without a number, nothing.

    Not one that a program of wal3 has written.
    """
    return writer.startswith(_OURS) or closings_in(writer) is not None


def finished_closings(manifest: Manifest) -> int | None:
    """Return up to which number closings have taken effect, by a manifest; None: all that the table names."""
    if manifest.is_sealed or not is_telling(manifest.writer):
        return None
    return closings_in(manifest.writer) or 0


def check_closings(found: str, writer: str, *, url: str) -> None:
    """Raise ContentionError if ``writer`` lacks closings that the manifest of writer ``found`` records.

    A name without a number is that of a writer that appends to no stream.
    """
    known, closed = closings_in(writer), closings_in(found)
    if known is not None and closed is not None and closed > known:
        raise ContentionError(f"a stream of {url} was closed meanwhile; look again", retriable=True)


def carry_closings(found: str, writer: str) -> str:
    """Return what the next manifest says of its writer, with the larger of both numbers."""
    closings = max(closings_in(found) or 0, closings_in(writer) or 0)
    name = without_closings(writer)
    return with_closings(name, closings) if closings else name


def raise_closings(manifest: Manifest, closings: int) -> Manifest | None:
    """Return the manifest with at least this number; None if it has that already.

    None for a sealed log, too: it takes no appends.
    """
    if manifest.is_sealed or (closings_in(manifest.writer) or 0) >= closings:
        return None
    return dataclasses.replace(manifest, writer=with_closings(manifest.writer, closings))
