"""Errors at a terminal: every error of the library has a code and one line."""

from __future__ import annotations

import pytest

from walstore import errors
from walstore.cli.errors import UsageError, exit_code, explain, is_expected, unwrap

CODES = {
    errors.CorruptionError("x", path="/p", position=3): 2,
    errors.LogNotFoundError("x", location="/p"): 3,
    FileNotFoundError(2, "No such file or directory", "/p"): 3,
    errors.WalLockedError("x", path="/p"): 4,
    errors.FencedError("x"): 4,
    errors.ContentionError("x"): 4,
    errors.LogSuspendedError("x", location="orders"): 4,
    errors.FormatVersionError("x", path="/p", found=2, supported=1): 1,
    errors.StorageUnavailableError("x"): 1,
    errors.RecordTooLargeError("x", size_bytes=2, limit_bytes=1): 1,
    errors.UnsupportedStoreError("x"): 1,
    PermissionError(13, "Permission denied", "/p"): 1,
    ModuleNotFoundError("x", name="aiobotocore.session"): 1,
    UsageError("x"): 1,
}


@pytest.mark.parametrize(("error", "code"), CODES.items(), ids=lambda e: type(e).__name__)
def test_codes(error: Exception, code: int) -> None:
    assert is_expected(error)
    assert exit_code(error) == code
    assert len(explain(error).splitlines()) == 1


def test_lines() -> None:
    assert explain(errors.CorruptionError("bad", path="/p", position=3)) == "bad: /p at byte 3"
    assert explain(PermissionError(13, "Permission denied", "/p")) == "permission denied: /p"
    assert explain(OSError(28, "No space left on device")) == "no space left on device"
    assert explain(errors.WalError("a name of\n  two lines")) == "a name of\n  two lines"
    assert 'pip install "walstore[spark]"' in explain(ModuleNotFoundError("x", name="pyspark"))
    assert explain(KeyboardInterrupt()) == "interrupted"
    noted = errors.WalError("one")
    noted.add_note("and closing failed: x")
    assert explain(noted) == "one and closing failed: x"


def test_mistakes_of_ours_are_not_expected() -> None:
    assert not is_expected(KeyError("x"))
    assert not is_expected(ModuleNotFoundError("x", name="walstore.nothing"))


def test_groups_of_one_are_unwrapped() -> None:
    error = errors.WalError("x")
    assert unwrap(ExceptionGroup("", [ExceptionGroup("", [error])])) is error
    two = ExceptionGroup("", [error, ValueError()])
    assert unwrap(two) is two


def test_of_several_that_are_expected_the_first_is_told() -> None:
    """A disk that is full stops several tasks at once; that is no traceback."""
    first, second = OSError("full"), errors.WalError("x")
    assert unwrap(ExceptionGroup("", [ExceptionGroup("", [first]), second])) is first
