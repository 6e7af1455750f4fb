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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fuzz import bucket_doors, doors, inputs
from tests.fuzz.bases import Base, make_bases, read_files, write_files
from tests.fuzz.buckets import make_buckets

MEMORY_BYTES: Final = 3 << 30
"""Address space that one input may take beyond what the process had. The files that are made become up to
300 MiB, three times that while Arrow makes a column longer, and its allocator takes address space by the GiB:
with two GiB one input in some hundred lacked memory, and passed when it was tried again."""
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


@dataclass(frozen=True)
class Kind:
    """A kind of thing that is damaged, and who opens it."""

    make_bases: Callable[[Path], list[Base]]
    make: Callable[[int, list[Base]], inputs.Input]
    """Returns the input of a seed."""
    doors: Sequence[Any]


KINDS: Final = {
    "log": Kind(make_bases, inputs.make, doors.DOORS),
    "bucket": Kind(make_buckets, inputs.make_bucket, bucket_doors.DOORS),
}


def make_all(directory: Path, kind: str = "log") -> list[Base]:
    """Make the logs that are damaged."""
    return KINDS[kind].make_bases(directory / "bases")


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


def run(kind: str, first: int, limit: int, step: int, keep: Path) -> None:
    """Open the inputs of the seeds ``first``, ``first + step``, ... below ``limit``."""
    chosen = KINDS[kind].doors
    with scratch() as directory:
        bases = make_all(directory, kind)
        for base in bases:  # everything is imported, and every thread was started once
            for problem in open_input(directory, inputs.undamaged(base), chosen):
                _tell(seed=-1, what=base.name, problems=[problem])
        limit_memory()
        for seed in range(first, limit, step):
            made = KINDS[kind].make(seed, bases)
            _tell(seed=seed)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            kept = keep / kind / str(seed)
            write_files(kept, made.files)
            found = open_input(directory, made, chosen)
            faulthandler.cancel_dump_traceback_later()
            if not found:
                shutil.rmtree(kept)
            _tell(seed=seed, what=made.what, kinds=made.kinds, problems=found)
            gc.collect()


def replay(path: Path) -> list[str]:
    """Open an input that was kept; what it returns is checked for its form only."""
    with scratch() as directory:
        kind = KINDS.get(path.parent.name, KINDS["log"])
        made = inputs.Input(str(path), [], read_files(path), None)
        return open_input(directory, made, kind.doors)


def prepare() -> None:
    """Make this process small and strict."""
    threading.stack_size(_STACK_BYTES)
    warnings.simplefilter("error")
    logging.disable(logging.ERROR)
    logging.getLogger("asyncio").manager.disable = logging.NOTSET
    logging.getLogger("walstore").setLevel(logging.CRITICAL + 1)


if __name__ == "__main__":
    prepare()
    run(sys.argv[1], *map(int, sys.argv[2:5]), keep=Path(sys.argv[5]))
