"""AccessScope: what a token of a served log allows. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias


class AccessScope(StrEnum):
    """What a token of a served log allows. None includes another one."""

    READ = "read"
    """To read records, streams, statistics, and where cursors and groups are."""
    APPEND = "append"
    """To append, to create logs and streams, and to store positions: of cursors, consumers and jobs."""
    ADMIN = "admin"
    """To trim, rotate and delete, and to be a machine that keeps copies."""


Needs: TypeAlias = frozenset[AccessScope]
"""The scopes that a request needs, all of them."""
ANY: Final[Needs] = frozenset()
"""Of what every token of the log may ask: what a client needs to stay connected."""
READ_ONLY: Final[Needs] = frozenset({AccessScope.READ})
APPEND_ONLY: Final[Needs] = frozenset({AccessScope.APPEND})
READ_AND_APPEND: Final[Needs] = READ_ONLY | APPEND_ONLY
ADMIN: Final[Needs] = frozenset({AccessScope.ADMIN})
