"""The name under which other packages know :class:`walstore.Cursor`."""

from walstore.positions.cursor import Cursor

__all__ = ["Cursor"]
