"""Ids of authors. The only part of a chain that rests on chance."""

from __future__ import annotations

import secrets


def new_author() -> str:
    """Return an id that nobody else ever has: 128 random bits in hex."""
    return secrets.token_hex(16)
