"""Names of a store's logs and the directories they map to. Pure.

A name is one or more parts with ``/`` between them, such as ``orders`` or ``eu-west.orders/0``. A part
is not empty, not ``.`` and not ``..``; a name holds no control characters and its directory's name has
at most 255 bytes. Every log is a direct subdirectory of the store: any character but ASCII letters,
digits, ``-``, ``_`` and ``.`` is written as ``%`` and two hex digits for each byte of its UTF-8 form,
and so is a leading dot. The mapping is reversible, no two names share a directory, none leads out of
the store, and names with a leading dot belong to the store itself.
"""

from __future__ import annotations

import string
import unicodedata
from typing import Final
from urllib.parse import unquote_to_bytes

from walstore.errors import InvalidSettingsError

MAX_DIRECTORY_BYTES: Final = 255
"""Longest directory name; what common file systems allow."""
_PLAIN: Final = frozenset((string.ascii_letters + string.digits + "-_.").encode())


def directory_of(name: str) -> str:
    """Return the directory name of the log ``name``; InvalidSettingsError if it is not a valid name."""
    if not isinstance(name, str):
        raise TypeError(f"a log's name must be a str, not {type(name).__name__}")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidSettingsError(
            f"a log's name has parts between slashes that are not empty, '.' or '..': {name!r}"
        )
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise InvalidSettingsError(f"a log's name must not contain control characters: {name!r}")
    directory = "".join(chr(b) if b in _PLAIN else f"%{b:02X}" for b in name.encode())
    if directory.startswith("."):
        directory = "%2E" + directory[1:]
    if len(directory) > MAX_DIRECTORY_BYTES:
        raise InvalidSettingsError(
            f"a log's name may take {MAX_DIRECTORY_BYTES} bytes as a directory, "
            f"not {len(directory)}: {name!r}"
        )
    return directory


def name_of(directory: str) -> str | None:
    """Return the name of the log in a directory of the store, or None if it is not a log's."""
    try:
        name = unquote_to_bytes(directory).decode()
        return name if directory_of(name) == directory else None
    except ValueError:  # neither UTF-8 nor a name
        return None
