"""AccessToken: one token of a server, and what its holders may do. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from walstore.core.validation.arguments import as_texts, as_token
from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.net.wire.access_scope import AccessScope, Needs

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
ALL_LOGS: Final = ("*",)
_COVERED: Final = 4096
"""How many pairs of patterns and a name are remembered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessToken:
    """A token that a server accepts. InvalidSettingsError for a value that is not allowed."""

    name: str
    """In messages and audit lines; up to 64 letters, digits, and ``._@-``. The token itself is in none."""
    sha256: str
    """The SHA-256 of the token, 64 hexadecimal digits, as ``sha256sum`` prints it."""
    scopes: frozenset[AccessScope]
    """What its holders may do, never nothing. No scope includes another one."""
    logs: tuple[str, ...] = ALL_LOGS
    """Patterns of the logs that it is for, as of :mod:`fnmatch`: ``*`` also matches a slash."""
    expires: datetime | None = None
    """When it ends, with a time zone; None for never."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidSettingsError(
                f"a token's name has up to 64 letters, digits and ._@-, not {self.name!r:.100}"
            )
        what = f"the token {self.name!r}"
        if not _DIGEST.fullmatch(self.sha256):
            raise InvalidSettingsError(f"{what}: sha256 must be 64 hexadecimal digits")
        unknown = sorted(set(self.scopes) - set(AccessScope))
        if unknown:
            known = ", ".join(AccessScope)
            text = f"{what} has an unknown scope {unknown[0]!r:.100}; there are {known}"
            raise InvalidSettingsError(text)
        if not self.scopes:
            raise InvalidSettingsError(f"{what} has no scopes, so it is of no use")
        if not as_texts(self.logs, "logs") or not all(self.logs):
            raise InvalidSettingsError(f"{what}: logs must have patterns of names, such as 'app-*'")
        if self.expires is not None and self.expires.tzinfo is None:
            text = f"{what}: expires needs a time zone, such as 2027-01-31T00:00:00Z"
            raise InvalidSettingsError(text)

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token."""
        return bytes.fromhex(self.sha256)

    @property
    def is_for_all(self) -> bool:
        """Whether it is for every log, whatever its name."""
        return "*" in self.logs

    def check(self, needs: Needs, log: str | None) -> None:
        """AccessDeniedError unless it allows what ``needs`` says, of a log; None for no certain one."""
        if log is not None and not is_covered(self.logs, log):
            raise AccessDeniedError(f"the token {self.name!r} is not for the log {log[:200]!r}")
        if not needs <= self.scopes:
            missing = " and ".join(repr(str(one)) for one in sorted(needs - self.scopes))
            raise AccessDeniedError(
                f"the token {self.name!r} lacks the scope {missing}, which this request needs"
            )


def sha256_of(token: str) -> str:
    """Return the SHA-256 of a token as hexadecimal digits. InvalidSettingsError for an empty one."""
    if not as_token(token):
        raise InvalidSettingsError("a token is never empty")
    return hashlib.sha256(token.encode()).hexdigest()


@lru_cache(_COVERED)
def is_covered(patterns: tuple[str, ...], log: str) -> bool:
    """Return whether one of some patterns matches the name of a log."""
    return any(fnmatchcase(log, pattern) for pattern in patterns)
