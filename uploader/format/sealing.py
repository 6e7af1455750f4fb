"""How a manifest records that its log is sealed, or destroyed. Pure.

The mark precedes the name of the writer that wrote the manifest last. wal3's programs keep that field
when they rewrite a manifest to drop collected fragments, and every manifest has it. So the
mark goes in with one change of the root, like everything else that is decided about a log; ``seal.py`` and
``destroy.py`` make it. A program that knows the first mark only takes a destroyed log for a sealed one.
"""

from __future__ import annotations

from typing import Final

_MARK: Final = "walstore sealed, was: "
_LAST_MARK: Final = _MARK + "walstore destroyed, was: "
_REBUILDING: Final = _MARK + "walstore rebuilding, was: "
_BLOCKER: Final = b'{"sealed":true,'


def seal_writer(writer: str) -> str:
    """Return the writer's name with the mark before it; once is enough."""
    return writer if is_sealed_by(writer) else _MARK + writer


def is_sealed_by(writer: str) -> bool:
    """Return whether a manifest with that writer is one of a sealed log."""
    return writer.startswith(_MARK)


def end_writer(writer: str) -> str:
    """Return the writer's name with the marks of a sealed and destroyed log before it; once is enough."""
    sealed = seal_writer(writer)
    return sealed if is_ended_by(sealed) else _LAST_MARK + sealed.removeprefix(_MARK)


def is_ended_by(writer: str) -> bool:
    """Return whether a manifest with that writer is the last one of a destroyed log."""
    return writer.startswith(_LAST_MARK)


def rebuilding_writer(writer: str) -> str:
    """Return the writer's name with the marks of a log that is sealed as long as it is being rebuilt."""
    return _REBUILDING + writer


def is_rebuilding_by(writer: str) -> bool:
    """Return whether a manifest with that writer is one of a log that is being rebuilt."""
    return writer.startswith(_REBUILDING)


def rebuilt_writer(writer: str) -> str:
    """Return what :func:`rebuilding_writer` was given."""
    return writer.removeprefix(_REBUILDING)


def blocker(limit: int) -> bytes:
    """Return the object in the place of a sealed log's next fragment; it is not a fragment.

    wal3's writers read it, and cannot continue. It is put before the mark (``seal.py``). ``limit`` is
    where the log ends.
    """
    return b'%s"limit":{"offset":%d}}' % (_BLOCKER, limit)


def is_blocker(data: bytes) -> bool:
    """Return whether an object found at a fragment's key is what :func:`blocker` makes."""
    return data.startswith(_BLOCKER)
