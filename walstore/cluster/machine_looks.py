"""What the machines of a cluster have of a log: asked before it is made, or its list of copies taken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from walstore.cluster.replication.copy_look import LOOK, CopyLook
from walstore.cluster.replication.copy_marks import read_marks
from walstore.cluster.replication.messages import NODE_VERBS
from walstore.cluster.replication.remote_copy import client_of
from walstore.cluster.replication.replication import Replication
from walstore.cluster.view import ClusterView
from walstore.core.ports import Clock
from walstore.errors import InvalidSettingsError, WalError
from walstore.net.wire.address import parse_address
from walstore.topology.documents import SYNCED, LogSpec, Synced
from walstore.topology.key_values import KeyValues

_MOST_SECONDS: Final = 5.0
"""How long a machine may take to be reached, and then to answer: all are asked at the same time."""


class MachineLook(NamedTuple):
    """What one machine has of a log, or why that is not known."""

    address: str
    is_listed: bool
    """Whether it is in the list that is to be taken."""
    found: CopyLook | None
    """None for no copy."""
    trouble: str | None
    mark: int
    """Below which offset it had what is replicated, as etcd knows; 0 if it knows nothing."""

    def shown(self) -> str:
        """Return what is said of its copy."""
        had = f"; it had offsets below {self.mark}, as etcd knows" if self.mark else ""
        if self.trouble is not None:
            return f"not known: {self.trouble}{had}"
        if self.found is None:
            return f"no copy{had}"
        if not self.found.limit:
            return f"nothing of the log yet{had}"
        counts = "" if self.found.is_whole else "; does not count: it is new, or was put back"
        return (
            f"log {self.found.log_id.hex()}, offsets {self.found.first} to {self.found.limit - 1}, epoch "
            f"{self.found.epoch}{counts}{had}"
        )

    def described(self, name: str) -> dict[str, Any]:
        """Return it for JSON."""
        found = self.found
        copy = found and {**found._asdict(), "log_id": found.log_id.hex()}
        return {
            "log": name,
            "address": self.address,
            "listed": self.is_listed,
            "copy": copy,
            "trouble": self.trouble,
            "mark": self.mark,
        }


class LogLooks(NamedTuple):
    """What is known of one log before its list of copies is taken."""

    name: str
    machines: Sequence[MachineLook]
    """Those of the list first."""
    marks: Synced | None
    """What etcd knows of the copies."""

    @property
    def silent(self) -> list[MachineLook]:
        """Machines that are left out, of which it is not known what they have."""
        return [one for one in self.machines if not one.is_listed and one.trouble is not None]

    def trouble(self) -> str | None:
        """Return why the list of copies is refused, and what to do; None if it is good. As :meth:`lacks`."""
        why = self.lacks()
        return why and (
            f"{why}. Put the machines that have it into the list, and start them; or give it up with "
            "--give-up-records. Nothing was changed"
        )

    def lacks(self) -> str | None:
        """Return what the machines of the list lack of the log, or why that is not known; None for nothing.

        They lack something if their best copy that counts ends before, or has an earlier epoch than, the copy
        of a machine that is left out, or ends before what a machine had as etcd knows; or if one of these has
        another log of the name. Without a copy that counts it is not known, unless all machines answer, and
        none has or had a record.
        """
        name, marks = self.name, self.marks
        best = _best([one for one in self.machines if one.is_listed])
        if best is None:
            is_new = all(
                one.trouble is None and not one.mark and not (one.found and one.found.limit)
                for one in self.machines
            )
            return None if is_new else f"no machine of the list has a copy of {name!r} that counts"
        for one in self.machines:
            found = one.found
            if found is None or one.is_listed or not found.limit:
                continue
            if found.log_id != best.log_id:
                return (
                    f"{one.address}, which is left out, has another log {name!r}, {found.log_id.hex()}: the "
                    f"list has {best.log_id.hex()}"
                )
            if found.limit > best.limit or found.epoch > best.epoch:
                return (
                    f"{one.address}, which is left out, has {name!r} up to offset {found.limit - 1} in epoch "
                    f"{found.epoch}, and the list up to {best.limit - 1} in epoch {best.epoch}"
                )
        if marks is None or not marks.limits:
            return None
        if marks.log_id != best.log_id.hex():
            return (
                f"etcd knows another log {name!r}, {marks.log_id}: the list has {best.log_id.hex()}"
            )
        address, mark = max(marks.limits.items(), key=lambda one: one[1])
        if mark <= best.limit:
            return None
        return (
            f"{address} had {name!r} up to offset {mark - 1}, as etcd knows, and the list has it up to "
            f"{best.limit - 1}"
        )


class MachineQuestions:
    """Asks the machines of a cluster what they have. Who does not answer within some seconds is not known."""

    def __init__(
        self, keys: KeyValues, view: ClusterView, replication: Replication, clock: Clock
    ) -> None:
        """``replication`` says how machines are reached, and for how long that is tried, at most 5 s."""
        self._keys, self._view = keys, view
        self._seconds = min(replication.patience_seconds, _MOST_SECONDS)
        self._reached = replace(replication, patience_seconds=self._seconds)
        self._clock = clock

    async def look(
        self, name: str, before: LogSpec, new: LogSpec, *, only_others: bool = False
    ) -> LogLooks:
        """Ask all machines that may have a copy of a log: those of both lists, and those that etcd knows.

        ``only_others``: not those of the new list.
        """
        marks = read_marks(await self._keys.get(self._view.key(SYNCED, name)))
        limits = {} if marks is None else marks.limits
        leader = self._view.leaders.get(name)
        known = [
            *before.copies,
            *limits,
            *self._view.members,
            *([leader.address] if leader else []),
        ]
        listed = () if only_others else new.copies
        asked = [*listed, *sorted({one for one in known if one} - set(new.copies))]
        answers = await asyncio.gather(*(self._ask(one, name) for one in asked))
        machines = [
            MachineLook(one, one in new.copies, found, trouble, limits.get(one, 0))
            for one, (found, trouble) in zip(asked, answers, strict=True)
        ]
        return LogLooks(name, machines, marks)

    async def check_made(self, name: str, before: LogSpec, new: LogSpec) -> None:
        """InvalidSettingsError if a log that etcd has not would lack records that a machine has of its name.

        ``before`` is what it had when it was taken out of the cluster. A machine that does not answer has
        none, as far as is known. Those that are to have the copies are asked only if another one has records.
        """
        others = await self.look(name, before, new, only_others=True)
        having = [each for each in others.machines if each.found and each.found.limit > 1]
        if not having:
            return
        if new.copies:
            why = (await self.look(name, before, new)).lacks()
        else:
            machine = max(having, key=lambda each: (each.found.epoch, each.found.limit))  # type: ignore[union-attr]
            why = f"{machine.address} has {machine.shown()}, and etcd has no such log"
        if why is not None:
            raise InvalidSettingsError(
                f"the log {name!r} has records: {why}. If etcd was set back, give its copies with 'walstore "
                "logs apply --from FILE --adopt'; else give the new log another name, or move its directory "
                "on that machine away. Nothing was changed"
            )

    async def _ask(self, address: str, name: str) -> tuple[CopyLook | None, str | None]:
        """Return what a machine says of its copy, and why it says nothing."""
        try:
            place = parse_address(address)
        except InvalidSettingsError as error:
            return None, str(error)
        client = client_of(place, self._reached, clock=self._clock, make_tag=lambda: os.urandom(8))
        try:
            async with asyncio.timeout(2 * self._seconds):
                await client.connect()
                return CopyLook.unpack(await client.call(NODE_VERBS[LOOK], name)), None
        except TimeoutError:
            return None, "it does not answer"
        except (WalError, ValueError) as error:
            return None, str(error)
        finally:
            await client.aclose()


def _best(listed: Sequence[MachineLook]) -> CopyLook | None:
    """Return what the best copy of the list has that counts; None if there is none."""
    found = [
        one.found
        for one in listed
        if one.found is not None and one.found.is_whole and one.found.limit >= one.mark
    ]
    having = [one for one in found if one.log_id]
    return max(having, key=lambda one: (one.epoch, one.limit), default=None)
