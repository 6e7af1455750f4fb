"""AccessTokens: who may do what at a server, over both protocols."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Self

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.net.wire.access_scope import AccessScope, Needs
from walstore.serve.access_token import AccessToken, sha256_of
from walstore.serve.token_file import read_token_file

REFUSED: Final = "the server refused the token; give connect(token=...)"
"""Of a token that a server does not have."""


class AccessTokens:
    """The tokens of one or more servers of an event loop.

    Several may be valid at once, so a token is rotated without a moment in which clients are refused: add the
    new one, let clients change to it, remove the old one. A connection keeps its token, and each request is
    checked against the tokens of that moment.
    """

    def __init__(self, tokens: Sequence[AccessToken], *, clock: Clock | None = None) -> None:
        """Accept ``tokens``. InvalidSettingsError if there are none."""
        if not tokens:
            raise InvalidSettingsError("a server with tokens has at least one")
        self._tokens = tuple(tokens)
        self._clock = clock or SystemClock()
        self._path: str | os.PathLike[str] | None = None
        self._turn = asyncio.Lock()

    @classmethod
    def single(cls, token: str, *, name: str = "token", clock: Clock | None = None) -> Self:
        """Return the tokens of a server with one, for everything. InvalidSettingsError for an empty one."""
        return cls(
            [AccessToken(name=name, sha256=sha256_of(token), scopes=frozenset(AccessScope))],
            clock=clock,
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, clock: Clock | None = None) -> Self:
        """Return the tokens of a file, which docs/serving.md describes. Blocking.

        InvalidSettingsError if it cannot be read or is not allowed.
        """
        made = cls(read_token_file(path), clock=clock)
        made._path = path
        return made

    @property
    def tokens(self) -> tuple[AccessToken, ...]:
        """Those that are accepted now, expired ones included. Replaced whole, never mutated."""
        return self._tokens

    async def reload(self) -> None:
        """Read the file again, not on the event loop; from then on its tokens are accepted, and no others.

        InvalidSettingsError if it cannot be read or is not allowed, or there is none: nothing changes then.
        Nor does it if the caller is cancelled.
        """
        path = self._path
        if path is None:
            raise InvalidSettingsError("these tokens were not read from a file")
        async with self._turn:  # the file that was read last counts
            self._tokens = await asyncio.get_running_loop().run_in_executor(
                None, read_token_file, path
            )

    def admit(self, given: object) -> Principal:
        """Return the holder of a token that a client sent; AccessDeniedError unless it is valid.

        Takes as long whatever is wrong with it, and whichever token it is.
        """
        if not isinstance(given, str):
            raise AccessDeniedError(REFUSED)
        digest = hashlib.sha256(given.encode(errors="surrogatepass")).digest()
        return Principal(self, digest, self.find(digest))

    def find(self, digest: bytes) -> AccessToken:
        """Return the token with a digest; AccessDeniedError if there is none, or its time is over."""
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is None:
            raise AccessDeniedError(REFUSED)
        self.check_time(found)
        return found

    def check_time(self, token: AccessToken) -> None:
        """AccessDeniedError if the time of a token is over."""
        if token.expires is None:
            return
        now = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)
        if now >= token.expires:
            raise AccessDeniedError(
                f"the token {token.name!r} expired at {token.expires.isoformat()}"
            )


class Principal:
    """The holder of a token, for as long as the token is valid."""

    __slots__ = ("_digest", "_seen", "_token", "_tokens")

    def __init__(self, tokens: AccessTokens, digest: bytes, token: AccessToken) -> None:
        """Made by :meth:`AccessTokens.admit`, of a token that is valid now."""
        self._tokens = tokens
        self._digest = digest
        self._token = token
        self._seen = tokens.tokens
        """The tokens that were valid when it was looked up last."""

    @property
    def name(self) -> str:
        """The name of the token, as it was last."""
        return self._token.name

    def check(self, needs: Needs, log: str | None) -> None:
        """AccessDeniedError unless a request may be made now that needs some scopes, of a log.

        None for ``log`` if it is of no certain one. A token that was replaced since counts as it is now.
        """
        if self._seen is not self._tokens.tokens:
            seen = self._tokens.tokens
            self._token = self._tokens.find(self._digest)
            self._seen = seen
        elif self._token.expires is not None:
            self._tokens.check_time(self._token)
        self._token.check(needs, log)

    def check_all_logs(self, needs: Needs) -> None:
        """As :meth:`check`, of what is for the holders of tokens for every log."""
        self.check(needs, None)
        if not self._token.is_for_all:
            raise AccessDeniedError(f"the token {self.name!r} is not for all logs, as this needs")

    def may(self, needs: Needs, log: str | None) -> bool:
        """Return whether such a request may be made now."""
        try:
            self.check(needs, log)
        except AccessDeniedError:
            return False
        return True


def tokens_of(token: str | None, tokens: AccessTokens | None) -> AccessTokens | None:
    """Return the tokens of a server that is given one, or several; None for none at all.

    InvalidSettingsError if both are given, or an empty one.
    """
    if token is None:
        return tokens
    if tokens is not None:
        raise InvalidSettingsError("token= and tokens= exclude each other: tokens= has all of them")
    return AccessTokens.single(token)
