"""Opens a log that a crash left, as its next users would, and checks every promise.

For some states the command line looks at it before and after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from walstore.cli.app import run as run_command_line
from walstore.cli.prove.examination import examine
from walstore.cli.prove.promises import BrokenPromiseError, Promises, require

_VERBS = ("verify", "dump", "inspect")
_OK, _NOT_FOUND = 0, 3


def materialise(files: Mapping[str, bytes | None], into: Path) -> None:
    """Write a state into a directory that has nothing else in it."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for path, data in sorted(files.items()):
        if data is None:
            (into / path).mkdir()
        else:
            (into / path).write_bytes(data)


def ask_command_line(directory: Path, *, is_clean: bool) -> None:
    """Run verbs that only read; what a power failure leaves is no corruption to them."""
    for verb in _VERBS:
        with contextlib.redirect_stderr(io.StringIO()) as errors, _no_output():
            try:
                code = run_command_line([verb, str(directory)])
            except Exception as error:
                raise BrokenPromiseError(f"walstore {verb} raised {error!r}") from error
        require(
            code == _OK or (code == _NOT_FOUND and not is_clean),
            f"walstore {verb} ended with {code}: {errors.getvalue()}",
        )


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def try_state(
    loop: asyncio.AbstractEventLoop,
    files: Mapping[str, bytes | None],
    promises: Promises,
    seed: int,
    scratch: Path,
    *,
    lost_nothing: bool,
    with_command_line: bool,
) -> BaseException | None:
    """Materialise and examine a state; return what was wrong."""
    directory = scratch / "log"
    try:
        materialise(files, scratch)
        loop.run_until_complete(
            asyncio.wait_for(examine(directory, promises, seed, lost_nothing=lost_nothing), 60)
        )
        if with_command_line:
            ask_command_line(directory, is_clean=True)
            materialise(files, scratch)
            ask_command_line(directory, is_clean=False)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        return error
    return None
