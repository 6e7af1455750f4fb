"""The file of ``walstore serve --token-file``: a table of TOML for each token."""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from walstore.errors import InvalidSettingsError
from walstore.serve.access_token import ALL_LOGS, AccessToken, sha256_of

logger = logging.getLogger("walstore.serve")

VERSION: Final = 1
"""Version of the format; a file without one has this."""
_KEYS: Final = ("name", "token", "sha256", "scopes", "logs", "expires")
_MOST_BYTES: Final = 1 << 20


def read_token_file(path: str | os.PathLike[str]) -> tuple[AccessToken, ...]:
    """Return the tokens of a file. Blocking.

    InvalidSettingsError, with the file and what is wrong, for one that cannot be read, is no TOML, has no
    token, or one that is not allowed. Logs a warning if other users may read the tokens in it.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InvalidSettingsError(f"the file of tokens {path} has more than 1 MiB")
        found = tomllib.loads(content.decode("utf-8-sig"))
        tokens = parse_tokens(found)
    except OSError as error:
        text = f"cannot read the file of tokens {path}: {error.strerror or error}"
        raise InvalidSettingsError(text) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettingsError(f"the file of tokens {path} is no TOML: {error}") from None
    except InvalidSettingsError as error:
        raise InvalidSettingsError(f"{path}: {error}") from None
    if mode & stat.S_IROTH and any("token" in table for table in found["token"]):
        logger.warning(
            "other users may read the tokens in %s: chmod o-r it, or put sha256 in their place",
            path,
        )
    return tokens


def parse_tokens(found: Mapping[str, Any]) -> tuple[AccessToken, ...]:
    """Return the tokens that the content of a file describes; InvalidSettingsError. Pure."""
    version, tables = found.get("version", VERSION), found.get("token", [])
    if version != VERSION:
        raise InvalidSettingsError(f"version {version!r:.100} of the format is not {VERSION}")
    _check_known(found, ("version", "token"), "the file")
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise InvalidSettingsError("each token is a table that begins with [[token]]")
    if not tables:
        raise InvalidSettingsError("it has no token: add a table that begins with [[token]]")
    tokens = tuple(map(_parse_token, tables))
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for token in tokens:
        if token.name in names:
            raise InvalidSettingsError(f"two tokens are named {token.name!r}")
        if (other := digests.setdefault(token.digest, token.name)) != token.name:
            raise InvalidSettingsError(f"{other!r} and {token.name!r} are the same token")
        names.add(token.name)
    return tokens


def _parse_token(table: Mapping[str, Any]) -> AccessToken:
    if not isinstance(name := table.get("name"), str):
        raise InvalidSettingsError('a token has no name: name = "..."')
    what = f"the token {name!r:.100}"
    _check_known(table, _KEYS, what)
    if ("token" in table) is ("sha256" in table):
        raise InvalidSettingsError(f"{what} needs either token or sha256")
    secret = table["token"] if "token" in table else table["sha256"]
    if not isinstance(secret, str):
        raise InvalidSettingsError(f"{what}: token and sha256 are strings")
    expires = table.get("expires")
    if expires is not None and not isinstance(expires, datetime):
        raise InvalidSettingsError(f"{what}: expires must be a time, such as 2027-01-31T00:00:00Z")
    if "scopes" not in table:
        raise InvalidSettingsError(f"{what} has no scopes, such as scopes = ['read']")
    return AccessToken(
        name=name,
        sha256=sha256_of(secret) if "token" in table else secret,
        scopes=frozenset(_texts(table["scopes"], f"{what}: scopes")),  # type: ignore[arg-type]
        logs=tuple(_texts(table.get("logs", list(ALL_LOGS)), f"{what}: logs")),
        expires=expires,
    )


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidSettingsError(f"{what} must be a list of strings")
    return value


def _check_known(table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise InvalidSettingsError(
            f"{what} has an unknown key {unknown[0]!r:.100}; there are {', '.join(known)}"
        )
