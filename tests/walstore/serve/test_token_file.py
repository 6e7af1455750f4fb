"""The file of tokens: what is allowed, and what is refused with a line that says why."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from pathlib import Path

import pytest

from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.serve import AccessScope, AccessToken, AccessTokens
from walstore.serve.access_tokens import tokens_of
from walstore.serve.token_file import read_token_file

DIGEST = hashlib.sha256(b"secret").hexdigest()
ONE = f'[[token]]\nname = "one"\nsha256 = "{DIGEST}"\nscopes = ["read"]\n'


def written(path: Path, content: str, mode: int = 0o600) -> Path:
    file = path / "tokens.toml"
    file.write_text(content)
    file.chmod(mode)
    return file


def test_a_file_has_tokens_or_their_digests(tmp_path: Path) -> None:
    content = """
version = 1
[[token]]
name = "ingest"
token = "secret"
scopes = ["append"]
logs = ["orders", "app-*"]
expires = 2027-01-31T01:00:00+01:00
""" + ONE.replace(DIGEST, "AB" * 32)
    ingest, one = read_token_file(written(tmp_path, content))
    assert ingest == AccessToken(
        name="ingest",
        sha256=DIGEST,
        scopes=frozenset({AccessScope.APPEND}),
        logs=("orders", "app-*"),
        expires=dt.datetime(2027, 1, 31, tzinfo=dt.UTC),
    )
    assert one.digest == bytes.fromhex("AB" * 32)
    assert (one.logs, one.expires, one.is_for_all) == (("*",), None, True)
    assert "secret" not in repr(ingest)


REFUSED = {
    "": "it has no token",
    "version = 2\n" + ONE: "version 2 of the format is not 1",
    "[token]\nname = 'a'": "each token is a table that begins with [[token]]",
    "tokens = 1\n" + ONE: "the file has an unknown key 'tokens'; there are version, token",
    ONE + "scope = 1": "the token 'one' has an unknown key 'scope'; there are name, token,",
    ONE + ONE: "two tokens are named 'one'",
    ONE + ONE.replace('"one"', '"two"'): "'one' and 'two' are the same token",
    ONE.replace('"read"', '"read", "write"'): "'one' has an unknown scope 'write'; there are read,",
    ONE.replace('["read"]', "[]"): "'one' has no scopes",
    ONE.replace('scopes = ["read"]', ""): "'one' has no scopes, such as",
    ONE.replace('["read"]', '"read"'): "scopes must be a list of strings",
    ONE.replace('name = "one"', ""): "a token has no name",
    ONE.replace('"one"', '"o n"'): "up to 64 letters, digits and ._@-, not 'o n'",
    ONE.replace(DIGEST, "12"): "sha256 must be 64 hexadecimal digits",
    ONE.replace("sha256", "nothing"): "unknown key 'nothing'",
    ONE.replace("sha256", "#"): "needs either token or sha256",
    ONE + "token = 'x'": "needs either token or sha256",
    ONE.replace(f'"{DIGEST}"', "1"): "token and sha256 are strings",
    ONE.replace(f'sha256 = "{DIGEST}"', "token = ''"): "a token is never empty",
    ONE + "logs = []": "logs must have patterns",
    ONE + "logs = ['']": "logs must have patterns",
    ONE + "logs = 'orders'": "logs must be a list of strings",
    ONE + "expires = 2027-01-31": "expires must be a time, such as",
    ONE + "expires = 2027-01-31T00:00:00": "expires needs a time zone",
    "[[token": "is no TOML",
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_is_refused_says_why_and_in_which_file(content: str, tmp_path: Path) -> None:
    file = written(tmp_path, content)
    with pytest.raises(InvalidSettingsError) as refused:
        read_token_file(file)
    assert str(file) in str(refused.value)
    assert REFUSED[content] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for file, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InvalidSettingsError, match=why):
            read_token_file(file)
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSettingsError, match="is no TOML"):
        read_token_file(file)
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(InvalidSettingsError, match="more than 1 MiB"):
        read_token_file(file)


@pytest.mark.parametrize(
    ("content", "mode", "warns"),
    [
        (ONE, 0o644, False),  # no secret
        (ONE.replace(f'sha256 = "{DIGEST}"', 'token = "secret"'), 0o640, False),
        (ONE.replace(f'sha256 = "{DIGEST}"', 'token = "secret"'), 0o644, True),
    ],
)
def test_secrets_that_other_users_may_read_are_a_warning(
    content: str, mode: int, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, content, mode)
    read_token_file(file)
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [str(file) in line and "chmod o-r" in line for line in lines] == [True] * warns


async def test_tokens_of_a_program() -> None:
    with pytest.raises(InvalidSettingsError, match="has at least one"):
        AccessTokens([])
    with pytest.raises(InvalidSettingsError, match="never empty"):
        AccessTokens.single("")
    one = AccessTokens.single("secret", name="mine")
    assert one.admit("secret").name == "mine"
    for wrong in (None, 1, b"secret", "Secret", "\udcff", "\ud800"):
        with pytest.raises(AccessDeniedError, match="refused the token"):
            one.admit(wrong)
    with pytest.raises(InvalidSettingsError, match="were not read from a file"):
        await one.reload()
    with pytest.raises(InvalidSettingsError, match="token= and tokens= exclude each other"):
        tokens_of("secret", one)
    assert tokens_of(None, None) is None


def test_a_token_of_some_logs_is_for_no_machine() -> None:
    some = AccessToken(name="some", sha256=DIGEST, scopes=frozenset(AccessScope), logs=("?", "[*]"))
    with pytest.raises(AccessDeniedError, match="is not for all logs"):
        AccessTokens([some]).admit("secret").check_all_logs(frozenset())
