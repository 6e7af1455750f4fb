"""A cluster under random faults of all kinds: what was acknowledged is in the log once, no answer is stale.

Three machines of ``walstore serve --cluster`` in network namespaces, or with proxies between them, and etcd.
Four producers append with numbers, one client on conditions; each machine has a client that knows only that
one, refreshes and reads. Meanwhile, one after the other and drawn by a seed: ways are cut in one direction
or both, machines and etcd are killed, stand still or are set back to an earlier state, bits of files flip,
and a copy is removed, emptied or put back from a backup. In the end all copies are whole.

``WALSTORE_EFFORT=1`` makes about ten minutes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster_demo import LOG, WRONG, judge
from tests.cut_cluster import CutMachine, Stage, has_all_copies
from tests.effort import SEED, some
from tests.etcd import EtcdCluster, require_etcd, running
from tests.histories import Checker, problems
from tests.partitions import (
    EVERYBODY,
    How,
    Network,
    between,
    from_to,
    namespaces,
    problem,
    proxies,
)
from tests.waiting import until
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.format.segment import HEADER_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(1800)]

FAULTS: Final = some(160, least=6)
_SEARCHED: Final = 3000
"""So many calls Porcupine orders in a few seconds."""


class Storm:
    """Faults of a stage, drawn by a seed."""

    def __init__(self, stage: Stage, directory: Path, seed: int) -> None:
        self._stage = stage
        self._random = random.Random(seed)
        self._directory = directory
        self._backups: dict[str, Path] = {}
        self.done: Counter[str] = Counter()

    async def fault(self) -> None:
        """Let something happen, and wait until all copies are there again."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._cut,
            self._cut,
            self._kill,
            self._stand_still,
            self._kill_etcd,
            self._set_etcd_back,
            self._flip,
            self._flip,
            self._remove_copy,
            self._empty_copy,
            self._put_back,
            self._back_up,
        ]
        kind = self._random.choice(kinds)
        name = kind.__name__.strip("_")
        print(name, flush=True)
        try:
            await kind()
            await self._stage.network.heal()
            await self._stage.led(has_all_copies)
            await self._stage.clients.more(5)
        except BaseException as error:
            error.add_note(f"in {name}, after {dict(self.done)}")
            raise
        self.done[name] += 1

    async def _cut(self) -> None:
        """Cut some ways for as long as a lease lasts, or until producers got on, or twice as long."""
        stage, victim = self._stage, self._some_machine().name
        others = [one for one in EVERYBODY if one != victim]
        cut = self._random.sample(others, self._random.randint(1, len(others)))
        kinds = [between(victim, cut), from_to(victim, cut), from_to(cut, victim)]
        how: How = self._random.choice(["lose", "hold", "reset"])
        await stage.network.cut(self._random.choice(kinds), how)
        await self._leases(self._random.randint(1, 3))

    async def _leases(self, count: int) -> None:
        """Wait for as long as so many leases last."""
        for _ in range(count):
            await self._stage.probe()
            await self._stage.wait_probe()

    def _some_machine(self) -> CutMachine:
        return self._random.choice(self._stage.machines)

    async def _no_leader(self) -> CutMachine:
        name, _ = await self._stage.led(has_all_copies)
        return self._random.choice([one for one in self._stage.machines if one.name != name])

    def _copy_at(self, machine: CutMachine) -> Path:
        return self._directory / machine.name / LOG

    async def _kill(self) -> None:
        machines = self._random.sample(self._stage.machines, self._random.choice([1, 1, 2, 3]))
        for machine in machines:
            await machine.kill()
        if len(machines) == 1:
            await self._leases(2)
        for machine in machines:
            await machine.start()

    async def _stand_still(self) -> None:
        machine = self._some_machine()
        machine.send(signal.SIGSTOP)
        await self._leases(self._random.randint(1, 4))
        machine.send(signal.SIGCONT)

    async def _kill_etcd(self) -> None:
        etcd = self._stage.etcd
        await asyncio.to_thread(etcd.kill, 0)
        await self._stage.clients.more(5)
        await asyncio.to_thread(etcd.restart, 0)

    async def _set_etcd_back(self) -> None:
        """To the state that it had some faults ago."""
        backup = self._backups.get("etcd")
        if backup is None:
            await self._back_up()
            return
        etcd = self._stage.etcd
        await asyncio.to_thread(etcd.kill, 0)
        await asyncio.to_thread(_replace, backup, etcd.data_directory(0))
        await asyncio.to_thread(etcd.restart, 0)
        await self._leases(2)

    async def _flip(self) -> None:
        """Flip a bit of a segment of a copy, anywhere before its end, while it is used; then scrub."""
        machine = self._some_machine()
        await self._stage.clients.more(1)  # so that the end of the file is behind what is flipped
        path = self._random.choice(sorted(self._copy_at(machine).glob("*.wal")))
        await asyncio.to_thread(_flip, path, self._random)
        done = await self._walstore("logs", "scrub", LOG, "--cluster", self._stage.etcd.address)
        assert done[0] == 0, done

    async def _remove_copy(self) -> None:
        machine = await self._no_leader()
        self._copy_at(machine).rename(self._directory / f"aside-{self.done.total()}")
        await self._made_again(machine)

    async def _empty_copy(self) -> None:
        """By hand, while the machine is away."""
        machine = await self._no_leader()
        await machine.kill()
        await asyncio.to_thread(shutil.rmtree, self._copy_at(machine))
        await machine.start()
        await self._made_again(machine)

    async def _made_again(self, machine: CutMachine) -> None:
        """Return when a copy counts that had lost everything: until then no other one may be lost."""
        promise = self._copy_at(machine) / PROMISE_NAME
        await until(
            lambda: promise.exists() and json.loads(promise.read_bytes())["whole"], seconds=120
        )

    async def _back_up(self) -> None:
        """Copy a directory as a backup of the disk does, and that of etcd."""
        machine, etcd = self._some_machine(), self._stage.etcd
        await machine.kill()
        backup = self._directory / f"{machine.name}-backup"
        await asyncio.to_thread(_replace, self._copy_at(machine), backup)
        await machine.start()
        self._backups[machine.name] = backup
        await asyncio.to_thread(etcd.kill, 0)
        backup = self._directory / "etcd-backup"
        await asyncio.to_thread(_replace, etcd.data_directory(0), backup)
        await asyncio.to_thread(etcd.restart, 0)
        self._backups["etcd"] = backup

    async def _put_back(self) -> None:
        """Put a copy back from a backup, start it with another machine, and only then the third one."""
        names = sorted(self._backups.keys() - {"etcd"})
        if not names:
            await self._back_up()
            return
        name = self._random.choice(names)
        [machine] = [one for one in self._stage.machines if one.name == name]
        others = [one for one in self._stage.machines if one is not machine]
        await machine.kill()
        if is_alone := self._random.random() < 0.5:
            await self._stage.clients.more(5)  # it lacks what the others acknowledge
            await others[0].kill()
        await asyncio.to_thread(_replace, self._backups[name], self._copy_at(machine))
        await machine.start()
        if is_alone:
            await self._leases(2)
            await others[0].start()

    async def _walstore(self, *arguments: str) -> tuple[int | None, str]:
        command = [sys.executable, "-m", "walstore", *arguments]
        environment = {**self._stage.environment}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, env=environment
        )
        output, errors = await process.communicate()
        return process.returncode, (output + errors).decode()

    async def verify_all(self) -> None:
        """Check every byte of all copies; nobody uses them."""
        for machine in self._stage.machines:
            done = await self._walstore("verify", str(self._copy_at(machine)))
            assert done[0] == 0, done


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _flip(path: Path, drawn: random.Random) -> None:
    data = path.read_bytes().rstrip(b"\0")
    if len(data) <= HEADER_BYTES:
        return
    at = drawn.randrange(len(data))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ (1 << drawn.randrange(8))]))


async def run(stage: Stage, storm: Storm, faults: int, check_history: Checker) -> dict[str, Any]:
    """Let clients work under faults; return what was found."""
    clients = stage.clients
    async with stage.started() as remote:
        async with asyncio.TaskGroup() as group:
            work = [clients.produce(remote, number) for number in range(4)]
            work += [clients.follow(remote), clients.compare_and_append(remote)]
            work += [stage.look(address) for address in stage.addresses]
            tasks = [group.create_task(one) for one in work]
            await clients.more()
            for _ in range(faults):
                await storm.fault()
            for task in tasks:
                task.cancel()
        async with remote.reader(follow=False) as reader:
            log = {record.offset: record.value async for record in reader}
    await storm.verify_all()
    calls = len(clients.history.appends) + len(clients.history.reads)
    return judge(clients, log, {}, check_history if calls <= _SEARCHED else problems)


async def play(
    directory: Path, make: Any, etcd: EtcdCluster, check_history: Checker, seed: int
) -> None:
    async with make(directory, etcd.address) as network:
        stage = Stage(directory, network, etcd)
        storm = Storm(stage, directory, seed)
        result = await run(stage, storm, FAULTS, check_history)
    print(dict(storm.done), result)
    assert not any(result[name] for name in WRONG), result
    assert result["acknowledged"] > 100


def test_faults_of_all_kinds(tmp_path: Path, check_history: Checker) -> None:
    require_etcd()
    network: Callable[..., contextlib.AbstractAsyncContextManager[Network]]
    network = proxies if problem() else namespaces
    with running(1) as etcd:
        asyncio.run(play(tmp_path, network, etcd, check_history, SEED))
