"""Programs, each in a process of its own that is forked where the packages they use are imported.

A short program needs most of its time for imports. A server makes them once for all programs of a test run's
process. All that follows is the program's own: its directory, environment, arguments, output, exit code, and
the end of its interpreter.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CORE: Final = "import asyncio, walstore"
CLOUD: Final = f"{CORE}, pyarrow, uploader"

_SERVER: Final = """
import gc, json, os, sys, types
gc.collect()
gc.freeze()
answers = os.dup(1)
for line in sys.stdin:
    code, arguments, directory, environment, *streams = json.loads(line)
    if not (child := os.fork()):
        break
    status = os.waitpid(child, 0)[1]
    os.write(answers, b"%d\\n" % os.waitstatus_to_exitcode(status))
else:
    sys.exit()
os.close(answers)
for number, path in enumerate(streams):
    opened = os.open(path, os.O_RDWR)
    os.dup2(opened, number)
    os.close(opened)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
sys.argv[1:] = arguments
program = sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(code, "<string>", "exec"), program.__dict__)
"""


class _Server:
    """A process that has imported something and forks programs, one at a time."""

    def __init__(self, imports: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{imports}\n{_SERVER}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.close)

    def run(self, request: list[object], seconds: float) -> int:
        """Return the exit code of a program; end it, and the server, if that takes longer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(f"{json.dumps(request)}\n".encode())
            stdin.flush()
            if not select.select([stdout], [], [], seconds)[0]:
                raise TimeoutError(f"the program has not ended after {seconds} s")
            return int(stdout.readline())
        except BaseException:
            self.close()
            _server.cache_clear()
            raise

    def close(self) -> None:
        """Kill it and its program."""
        atexit.unregister(self.close)
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)


@functools.cache
def _server(imports: str) -> _Server:
    return _Server(imports)


def run(
    code: str,
    *arguments: object,
    directory: Path | None = None,
    imports: str = CORE,
    seconds: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a program as ``python -c`` would where some packages are imported; return what it printed."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        words = [str(argument) for argument in arguments]
        where = str(directory or Path.cwd())
        streams = [os.devnull, out.name, err.name]
        request = [code, words, where, dict(os.environ), *streams]
        returncode = _server(imports).run(request, seconds)
        return subprocess.CompletedProcess(words, returncode, out.read(), err.read())
