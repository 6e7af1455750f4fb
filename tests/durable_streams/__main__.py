"""Install the suite, serve a store, and run it; ends with 77 if Node is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SUITE: Final = "@durable-streams/server-conformance-tests"
VERSION: Final = "0.3.6"
INSTALLED: Final = Path(__file__).parents[2] / ".durable-streams"
SKIPPED: Final = 77
LEAST_NODE: Final = 20
OPTIONS: Final = (
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--fetch-timeout=20000",
    "--fetch-retries=1",
)

TEST: Final = f"""\
import {{ runConformanceTests }} from "{SUITE}"
runConformanceTests({{ baseUrl: process.env.CONFORMANCE_TEST_URL }})
"""
CONFIGURATION: Final = """\
export default { test: { include: ["conformance.test.mjs"], testTimeout: 60000, retry: 1 } }
"""
"""Once more for what fails: tests of time to live give up when the machine stands still for five seconds."""


def missing() -> str | None:
    """Return what keeps the suite from running here."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return "node and npm are not installed"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < LEAST_NODE:
        return f"Node {LEAST_NODE} or newer is needed, this is {version.strip()}"
    return None


def install() -> bool:
    """Install the suite below the project, once; False if npm cannot."""
    INSTALLED.mkdir(exist_ok=True)
    wanted = {"private": True, "type": "module", "dependencies": {SUITE: VERSION}}
    (INSTALLED / "conformance.test.mjs").write_text(TEST)
    (INSTALLED / "vitest.config.mjs").write_text(CONFIGURATION)
    described = INSTALLED / "package.json"
    if described.exists() and json.loads(described.read_text()) == wanted:
        return True
    done = subprocess.run(
        ["npm", "install", *OPTIONS, f"{SUITE}@{VERSION}"],
        cwd=INSTALLED,
        check=False,
    )
    if done.returncode == 0:
        described.write_text(json.dumps(wanted))
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    """Run the suite; return its exit code."""
    if why := missing():
        print(f"the conformance suite cannot run: {why}")
        return SKIPPED
    if not install():
        print(f"npm could not install {SUITE}")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="durable-streams-") as directory:
        serve = [
            "serve",
            directory,
            "--store",
            "--http",
            "127.0.0.1:0",
            "--allow-origin",
            "*",
            "--json",
        ]
        command = [sys.executable, "-m", "walstore", *serve]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            try:
                (url,) = (
                    address
                    for address in json.loads(server.stdout.readline())["addresses"]
                    if address.startswith("http")
                )
                return subprocess.run(
                    ["npx", "vitest", "run", *arguments],
                    cwd=INSTALLED,
                    env={**os.environ, "CONFORMANCE_TEST_URL": url},
                    check=False,
                ).returncode
            finally:
                server.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
