"""Background tasks of taskiq in worker processes, with a log as their queue.

``walstore serve`` owns the log, and each process connects to it: the one that sends tasks, and the workers of
``taskiq worker background_jobs:broker``. Run as a program, this starts the server and two workers, sends
tasks, kills the workers with SIGKILL while they work, and starts others: no task is lost.
Needs ``pip install walstore[cli,taskiq]``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from walstore import RemoteWal, connect
from walstore.kits.taskiq import WalstoreBroker

ADDRESS = "JOBS_LOG"
"""Environment variable with the address of the log."""
TASKS = 40
WORK = threading.Event()

broker = WalstoreBroker(
    lambda: connect(os.environ[ADDRESS]), stream="jobs", group="workers", ack_wait_seconds=3
)


@broker.task("resize")
async def resize(number: int) -> None:
    """Do something that takes a while, then note that it is done."""
    await asyncio.to_thread(WORK.wait, 0.1)
    async with connect(os.environ[ADDRESS]) as log:
        await log.append(b"%d" % number, stream="done")


# -- trying it out -----------------------------------------------------------------------------------------


def start_workers() -> subprocess.Popen[bytes]:
    """Start taskiq's manager and two workers, in a process group of their own."""
    command = [sys.executable, "-m", "taskiq", "worker", "background_jobs:broker"]
    command += ["--workers=2", "--max-async-tasks=2", "--log-level=CRITICAL"]
    return subprocess.Popen(command, cwd=Path(__file__).parent, process_group=0)


async def run(log: RemoteWal) -> int:
    """Send tasks and kill workers; return how many tasks were not done in the end."""
    await broker.startup()
    for number in range(TASKS):
        await resize.kiq(number)
    await broker.shutdown()
    workers = start_workers()
    missing = set(range(TASKS))
    try:
        async for record in log.follow(stream="done"):
            missing.discard(int(record.value))
            if len(missing) == TASKS // 2:
                os.killpg(workers.pid, signal.SIGKILL)
                workers.wait()
                workers = start_workers()
            if not missing:
                break
    finally:
        os.killpg(workers.pid, signal.SIGTERM)
        workers.wait()
    return len(missing)


async def main() -> None:
    """Run it all once."""
    with tempfile.TemporaryDirectory() as name:
        path = f"{name}/jobs"
        command = [sys.executable, "-m", "walstore", "serve", path, "--unix", f"{path}.sock"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        server.stdout.readline()
        os.environ[ADDRESS] = f"unix://{path}.sock"
        try:
            async with connect(os.environ[ADDRESS]) as log:
                print("missing", await run(log))
        finally:
            server.terminate()
            server.communicate()


if __name__ == "__main__":
    asyncio.run(main())
