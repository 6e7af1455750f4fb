"""Install Azurite, start it, and run a command with its address; ends with 77 if Node is missing.

    python -m tests.azure COMMAND [ARGUMENT …]

The command finds the emulator in WALSTORE_AZURE_ENDPOINT.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.azure.account import ACCOUNT, ENDPOINT
from tests.durable_streams.__main__ import OPTIONS, missing
from tests.waiting import wait_until

PACKAGE: Final = "azurite@3.35.0"
INSTALLED: Final = Path(__file__).parents[2] / ".azurite"
SKIPPED: Final = 77
START_SECONDS: Final = 60


def install() -> bool:
    """Install the emulator below the project, once; False if npm cannot."""
    if (INSTALLED / "node_modules" / ".bin" / "azurite-blob").exists():
        return True
    INSTALLED.mkdir(exist_ok=True)
    done = subprocess.run(["npm", "install", *OPTIONS, PACKAGE], cwd=INSTALLED, check=False)
    return done.returncode == 0


def main(command: list[str]) -> int:
    """Run a command while the emulator runs; return its exit code."""
    if why := missing():
        print(f"Azurite cannot run: {why}")
        return SKIPPED
    if not install():
        print(f"npm could not install {PACKAGE}")
        return SKIPPED
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="walstore-azurite-") as directory:
        start = [str(INSTALLED / "node_modules" / ".bin" / "azurite-blob"), "--silent"]
        start += [
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--disableTelemetry",
            "--blobPort",
            str(port),
        ]
        with subprocess.Popen(start, cwd=directory) as server:
            try:
                _wait(server, port)
                url = f"http://127.0.0.1:{port}/{ACCOUNT}"
                environment = {**os.environ, ENDPOINT: url}
                return subprocess.run(command, env=environment, check=False).returncode
            finally:
                server.terminate()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with contextlib.suppress(TimeoutError):
        wait_until(lambda: answers() or server.poll() is not None, seconds=START_SECONDS)
    if not answers():
        sys.exit(f"Azurite does not answer at port {port}")


if __name__ == "__main__":
    if not shutil.which(sys.argv[1] if sys.argv[1:] else ""):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
