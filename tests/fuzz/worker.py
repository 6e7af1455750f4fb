"""A process that opens inputs, so that one which hangs or eats memory takes nobody along.

Writes a line of JSON before and after each input; ``tests/fuzz/__main__.py`` starts it and reads them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import resource
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.fuzz import doors, inputs
from tests.fuzz.bases import Base, make_bases, read_files, write_files

MEMORY_BYTES: Final = 256 << 20
"""Address space that one input may take beyond what the process had."""
HANG_SECONDS: Final = 60
"""Time on the clock after which an input counts as hanging; the machine may be busy."""
_STACK_BYTES: Final = 256 << 10
_SCRATCH: Final = Path("/dev/shm")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory in memory if there is such a thing."""
    parent = _SCRATCH if _SCRATCH.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="walstore-fuzz-", dir=parent) as found:
        yield Path(found)


def make_all(directory: Path) -> list[Base]:
    """Make the logs that are damaged."""
    return make_bases(directory / "bases")


def limit_memory() -> None:
    """Let this process have so much more address space than it has now."""
    (line,) = [
        text for text in Path("/proc/self/status").read_text().splitlines() if "VmSize" in text
    ]
    now = int(line.split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, resource.RLIM_INFINITY))


def open_input(directory: Path, made: inputs.Input, chosen: Any = doors.DOORS) -> list[str]:
    """Write an input and open it through the doors; return what was wrong."""
    path = directory / "input" / "log"
    write_files(path, made.files)
    try:
        return doors.inspect(path, made, chosen)
    finally:
        shutil.rmtree(directory / "input", ignore_errors=True)


def _tell(**line: object) -> None:
    sys.__stdout__.write(json.dumps(line) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def run(first: int, limit: int, step: int, keep: Path) -> None:
    """Open the inputs of the seeds ``first``, ``first + step``, ... below ``limit``."""
    with scratch() as directory:
        bases = make_all(directory)
        for base in bases:  # everything is imported, and every thread was started once
            for problem in open_input(directory, inputs.undamaged(base)):
                _tell(seed=-1, what=base.name, problems=[problem])
        limit_memory()
        for seed in range(first, limit, step):
            made = inputs.make(seed, bases)
            _tell(seed=seed)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            write_files(keep / str(seed), made.files)
            found = open_input(directory, made)
            faulthandler.cancel_dump_traceback_later()
            if not found:
                shutil.rmtree(keep / str(seed))
            _tell(seed=seed, what=made.what, kinds=made.kinds, problems=found)
            gc.collect()


def replay(path: Path) -> list[str]:
    """Open an input that was kept; what it returns is checked for its form only."""
    with scratch() as directory:
        return open_input(directory, inputs.Input(str(path), [], read_files(path), None))


def prepare() -> None:
    """Make this process small and strict."""
    threading.stack_size(_STACK_BYTES)
    warnings.simplefilter("error")
    logging.disable(logging.ERROR)
    logging.getLogger("asyncio").manager.disable = logging.NOTSET
    logging.getLogger("walstore").disabled = True


if __name__ == "__main__":
    prepare()
    run(*map(int, sys.argv[1:4]), keep=Path(sys.argv[4]))
