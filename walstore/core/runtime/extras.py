"""Optional packages, and the error that says how to install them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from walstore.errors import InvalidSettingsError

_OURS: Final = frozenset(("walstore", "uploader", "pyspark_walstore"))

_EXTRA_OF: Final = {
    "aiofiles": "cli",
    "rich": "cli",
    "typer": "cli",
    "aioboto3": "cloud",
    "aiobotocore": "cloud",
    "boto3": "cloud",
    "botocore": "cloud",
    "pyarrow": "cloud",
    "tenacity": "cloud",
    "py4j": "spark",
    "pyspark": "spark",
    "prometheus_client": "metrics",
    "pyiceberg": "iceberg",
    "opentelemetry": "otel",
    "fastapi": "fastapi",
    "starlette": "fastapi",
    "taskiq": "taskiq",
    "pydantic": "typed",
}


class MissingExtraError(InvalidSettingsError, ModuleNotFoundError):
    """A package of an extra is not installed; the message says how to install it. Nothing was done."""

    def __init__(self, message: str, *, name: str, extra: str) -> None:
        """``name`` is the missing module, ``extra`` the extra that has it."""
        super().__init__(message)
        self.msg = message
        self.name = name
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        """Include ImportError's own fields, which are not in ``__dict__``."""
        return partial(MissingExtraError, name=str(self.name), extra=self.extra), self.args


@contextmanager
def needs_extra(extra: str, what: str = "this") -> Iterator[None]:
    """Raise MissingExtraError if an import within the block needs a package that is not installed.

    ``what`` begins the message: the feature that the caller used. A missing module of walstore itself
    is a defect and raises unchanged.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name in _OURS:
            raise
        raise missing_extra(name, _EXTRA_OF.get(name, extra), what) from error


def missing_extra(name: str, extra: str, what: str = "this") -> MissingExtraError:
    """Return the error for a missing package."""
    return MissingExtraError(
        f"{what} needs the extra {extra!r} ({name} cannot be imported by {sys.executable}): "
        f'pip install "walstore[{extra}]"',
        name=name,
        extra=extra,
    )


def hidden_by(error: ImportError) -> str | None:
    """Return which file hides the package ``uploader``, and what to do, if that is why an import failed."""
    found = sys.modules.get("uploader")
    is_of_it = (error.name or "").partition(".")[0] == "uploader"
    if not is_of_it or found is None or hasattr(found, "CloudTier"):
        return None
    return hiding(getattr(found, "__file__", None))


def hiding(path: str | None) -> str:
    """Return what to say of another module ``uploader``, which is in this file."""
    return (
        f"another module is named uploader ({path}), and hides the package of walstore with the cloud tier: "
        "rename it, or remove its directory from sys.path; nothing was done"
    )


def extra_of(error: ModuleNotFoundError) -> str | None:
    """Return the extra that has the missing module, or None if no extra has it."""
    if isinstance(error, MissingExtraError):
        return error.extra
    return _EXTRA_OF.get((error.name or "").partition(".")[0])
