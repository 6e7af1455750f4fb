"""A cluster on this machine: three etcd nodes, three log machines, and faults one after the other.

Run from the root of the repository, where ``make demo-cluster`` installs etcd if it is missing and runs it::

    python -m tests.cluster_demo [--rounds 1] [--lease-seconds 1] [--json]

Producers append with sequence numbers, and a reader follows, all over one connection that knows the three
machines. Meanwhile: kill -9 of the leader, of a machine with a copy, of an etcd node; the leader stands still
and goes on when another one leads; the log is moved in order. Each line of the table says how long producers
got no acknowledgement. One more client appends on conditions, of a register or of the offset, and reads. In
the end the log is read: nothing that was acknowledged is missing, nothing is there twice, each producer's
records are in its order, and the history of all calls is one that a log could have answered one after the
other (``tests/histories.py``). The last line is "cluster demo: ok".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from tests.etcd import CANNOT, CannotRunError, EtcdCluster, install, running
from tests.histories import Append, Checker, History, Outcome, Read, problems
from walstore import RemoteWal, WalError, connect

WRONG = ("lost", "duplicated", "disordered", "reader_differs", "not_linearizable")
"""What is to be 0, false or empty in the result."""
PRODUCERS = 4
_MOVE_SECONDS = 60.0
LOG = "orders"


class Machine:
    """A machine of the cluster: a process of ``walstore serve --cluster``."""

    def __init__(self, directory: Path, etcd: str, lease_seconds: int) -> None:
        self.address = f"unix://{directory}/s.sock"
        self._log = directory.parent / f"{directory.name}.log"
        self._command = [sys.executable, "-m", "walstore", "serve", str(directory)]
        self._command += ["--cluster", etcd, "--unix", f"{directory}/s.sock"]
        self._command += ["--lease-seconds", str(lease_seconds)]
        self.options: list[str] = []
        """More of its command line."""
        self.process: Process | None = None

    async def start(self) -> None:
        """Start it; return when it has joined."""
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, *self.options, stdin=DEVNULL, stdout=PIPE, stderr=log
            )
        assert self.process.stdout is not None
        if not await self.process.stdout.readline():
            raise RuntimeError(f"a machine did not start: {self._log.read_text()[-1000:]}")

    async def kill(self) -> None:
        """Kill it; what it has on disk stays."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)


class Clients:
    """Producers and a reader, until they are cancelled."""

    def __init__(self) -> None:
        self.acknowledged = [0] * PRODUCERS
        self.times: list[float] = []
        self.seen: list[bytes] = []
        self.failures: list[str] = []
        self.history = History()

    async def produce(self, remote: RemoteWal, number: int) -> None:
        """Append numbered records, each until it is acknowledged."""
        producer = remote.producer(f"p{number}")
        while True:
            sequence, begin, offset = self.acknowledged[number] + 1, time.monotonic(), None
            made = Append(b"%d %d" % (number, sequence), begin, begin, "unknown")
            try:
                while offset is None:
                    try:
                        offset = await producer.append(made.value, sequence=sequence)
                    except WalError as error:
                        if not error.retriable and error.outcome != "unknown":
                            raise
                        self.failures.append(f"{type(error).__name__}: {error}")
                self.acknowledged[number] = sequence
                self.times.append(time.monotonic())
                made = replace(made, end=self.times[-1], outcome="ok", offset=offset)
            finally:
                # Also what was under way when the client was cancelled.
                self.history.appends.append(made)

    async def compare_and_append(self, remote: RemoteWal) -> None:
        """Append on conditions, of a register or of the offset, and read; nothing is repeated."""
        for number in count():
            value, begin = b"c %d" % number, time.monotonic()
            conditions: dict[str, Any] = {}
            if number % 2:
                update = {"turn": str(number)}
                conditions = {"expect": {"turn": remote.registers.get("turn")}, "update": update}
            else:
                conditions = {"expect_offset": remote.tail}
            made = Append(
                value,
                begin,
                begin,
                "unknown",
                expect_offset=conditions.get("expect_offset"),
                expect=conditions.get("expect", {}).get("turn") or "",
                update=conditions.get("update", {}).get("turn"),
            )
            try:
                span = await remote.append_many([value], **conditions)
            except WalError as error:
                outcome: Outcome = "refused" if error.outcome == "not_written" else "unknown"
                made = replace(made, end=time.monotonic(), outcome=outcome)
            else:
                made = replace(made, end=time.monotonic(), outcome="ok", offset=span.start)
            finally:
                self.history.appends.append(made)
            with contextlib.suppress(WalError):
                await self.read(remote)
            await asyncio.sleep(0.01)

    async def read(self, remote: RemoteWal) -> None:
        """Read the last records that there are."""
        begin = time.monotonic()
        await remote.refresh()
        start = max(1, remote.visible_limit - 20)
        async with remote.reader(start, follow=False) as reader:
            values = [record.value async for record in reader]
        self.history.reads.append(Read(start, values, begin, time.monotonic()))

    async def follow(self, remote: RemoteWal) -> None:
        """Read what there is, and what comes."""
        async for record in remote.follow():
            self.seen.append(record.value)

    async def more(self, records: int = 20) -> None:
        """Return when every producer has got on."""
        goals = [count + records for count in self.acknowledged]
        deadline = time.monotonic() + 60
        while any(count < goal for count, goal in zip(self.acknowledged, goals, strict=True)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing is acknowledged; so far {self.acknowledged}")
            await asyncio.sleep(0.005)

    def gap_since(self, begin: float) -> float:
        """Return the longest time without an acknowledgement since a moment, in seconds."""
        before = [at for at in self.times if at < begin][-1:]
        after = [at for at in self.times if at >= begin]
        return max((later - at for at, later in pairwise([*before, *after])), default=0.0)


class Cluster:
    """The machines and etcd."""

    def __init__(self, directory: Path, etcd: EtcdCluster, lease_seconds: int) -> None:
        self.etcd = etcd
        self.machines = [
            Machine(directory / name, etcd.address, lease_seconds) for name in ("a", "b", "c")
        ]
        for name in ("a", "b", "c"):
            (directory / name).mkdir()

    @property
    def addresses(self) -> list[str]:
        """Where clients look for the log."""
        return [machine.address for machine in self.machines]

    async def logs(self, *arguments: str) -> Any:
        """Run ``walstore logs``."""
        command = [sys.executable, "-m", "walstore", "logs", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, "--cluster", self.etcd.address, "--json", stdout=PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)} ended with code {process.returncode}")
        return json.loads(output)

    async def leader(self, name: str = LOG) -> Machine:
        """Return the machine that leads a log, with all copies there."""
        deadline = time.monotonic() + 60
        while True:
            [log] = [one for one in (await self.logs("list"))["logs"] if one["name"] == name]
            found = [machine for machine in self.machines if machine.address == log["leader"]]
            if found and log["present"] == len(self.machines):
                return found[0]
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody leads with all copies: {log}")
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def started(cluster: Cluster) -> AsyncIterator[RemoteWal]:
    """Start the machines, make the log, and connect."""
    try:
        async with asyncio.TaskGroup() as group:
            for machine in cluster.machines:
                group.create_task(machine.start())
        await cluster.logs("apply", LOG, "--replicas", str(len(cluster.machines)))
        async with connect(
            cluster.addresses, log=LOG, connect_seconds=60, reconnect_seconds=60
        ) as remote:
            yield remote
    finally:
        for machine in cluster.machines:
            await machine.kill()


async def _kill_leader(cluster: Cluster, clients: Clients) -> None:
    leader = await cluster.leader()
    await leader.kill()
    await clients.more()
    await leader.start()


async def _kill_replica(cluster: Cluster, clients: Clients) -> None:
    leader = await cluster.leader()
    victim = next(machine for machine in cluster.machines if machine is not leader)
    await victim.kill()
    await clients.more()
    await victim.start()


async def _kill_etcd(cluster: Cluster, clients: Clients) -> None:
    await asyncio.to_thread(cluster.etcd.kill, 0)
    await clients.more()
    await asyncio.to_thread(cluster.etcd.restart, 0)


async def _stop_leader(cluster: Cluster, clients: Clients) -> None:
    leader = await cluster.leader()
    leader.send(signal.SIGSTOP)
    await clients.more()
    leader.send(signal.SIGCONT)


async def _move(cluster: Cluster, clients: Clients) -> None:
    leader = await cluster.leader()
    target = next(machine for machine in cluster.machines if machine is not leader)
    await cluster.logs("move", LOG, target.address)
    # It is moved once the target has caught up, which it may not have after the last fault.
    async with asyncio.timeout(_MOVE_SECONDS):
        while await cluster.leader() is not target:
            await clients.more()


FAULTS = {
    "kill -9 of the leader": _kill_leader,
    "kill -9 of a machine with a copy": _kill_replica,
    "kill -9 of an etcd node": _kill_etcd,
    "SIGSTOP of the leader": _stop_leader,
    "moved in order": _move,
}


async def run(
    directory: Path, etcd: EtcdCluster, rounds: int, lease: int, check: Checker = problems
) -> dict[str, Any]:
    """Run the clients through all faults; return what was found."""
    cluster, clients = Cluster(directory, etcd, lease), Clients()
    gaps: dict[str, list[float]] = {name: [] for name in FAULTS}
    async with started(cluster) as remote:
        async with asyncio.TaskGroup() as group:
            work = [clients.produce(remote, number) for number in range(PRODUCERS)]
            work += [clients.follow(remote), clients.compare_and_append(remote)]
            tasks = [group.create_task(one) for one in work]
            await clients.more()
            for _ in range(rounds):
                for name, fault in FAULTS.items():
                    await cluster.leader()
                    begin = time.monotonic()
                    await fault(cluster, clients)
                    gaps[name].append(clients.gap_since(begin))
            await clients.more()
            for task in tasks:
                task.cancel()
        async with remote.reader(follow=False) as reader:
            log = {record.offset: record.value async for record in reader}
    return judge(clients, log, gaps, check)


def judge(
    clients: Clients,
    log: dict[int, bytes],
    gaps: dict[str, list[float]],
    check: Checker = problems,
) -> dict[str, Any]:
    """Compare the log with what was acknowledged and what the reader saw."""
    found = list(log.values())
    conditional = (one.outcome for one in clients.history.appends if one.value[:1] == b"c")
    lost, disordered = 0, 0
    for number, done in enumerate(clients.acknowledged):
        own = [int(value.split()[1]) for value in found if value.startswith(b"%d " % number)]
        lost += len(set(range(1, done + 1)) - set(own))
        disordered += own != sorted(own)
    return {
        "acknowledged": sum(clients.acknowledged),
        "lost": lost,
        "duplicated": len(found) - len(set(found)),
        "disordered": disordered,
        "reader_differs": found[: len(clients.seen)] != clients.seen,
        "not_linearizable": check(clients.history, log),
        "conditional": Counter(conditional),
        "repeated_appends": len(clients.failures),
        "longest_pause_seconds": {name: max(times) for name, times in gaps.items()},
    }


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{'fault':<34}longest pause")
    for name, seconds in result["longest_pause_seconds"].items():
        print(f"{name:<34}{seconds * 1e3:>8.0f} ms")
    print(
        f"acknowledged {result['acknowledged']}, lost {result['lost']}, duplicated {result['duplicated']}"
    )


def main() -> int:
    """Run the demo, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault happens")
    parser.add_argument("--lease-seconds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        install()
        with running(3) as etcd, tempfile.TemporaryDirectory(prefix="walstore-") as directory:
            result = asyncio.run(run(Path(directory), etcd, given.rounds, given.lease_seconds))
    except CannotRunError as error:
        print(f"no etcd here: {error}", file=sys.stderr)
        return CANNOT
    if given.json:
        print(json.dumps(result))
    else:
        show(result)
    wrong = [name for name in WRONG if result[name]]
    if wrong:
        print(f"cluster demo: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print("cluster demo: ok", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
