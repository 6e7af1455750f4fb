"""Found by every Python that tests start: Spark's processes import PySpark from where pip installed it.

Spark puts an archive with the same modules in front of it. Python compiles what it imports from there again
in each process, which takes half a second of processor time; each source and each stream has some of its own.

It also counts started processes, if ``WALSTORE_STARTS`` names a file: a line for each, with the test that it
is for. Each Python counts itself, and the other programs that it starts.
"""

from __future__ import annotations

import os
import sys

STARTS = "WALSTORE_STARTS"

sys.path[:] = [path for path in sys.path if "/site-packages/pyspark/python/lib/" not in path]


def count_starts() -> None:
    """Count this Python, and from now on the programs that it starts."""
    descriptor = os.open(os.environ[STARTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    write = os.write  # not the one that the tests guard

    def note(kind: str) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "-").rpartition(" (")[0] or "-"
        write(descriptor, f"{kind} {test}\n".encode())

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            name = os.path.basename(str(arguments[0]))
            if name in {"java", "spark-submit", "spark-class"}:
                note("java")
            elif not name.startswith("python"):
                note("other")
        elif event == "os.fork":
            note("fork")

    note("python")
    sys.addaudithook(watch)


if STARTS in os.environ and __name__ == "sitecustomize":
    count_starts()
