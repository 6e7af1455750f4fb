"""Fence: appends for one owner of a log, refused once another one has taken it over.

A fence is a register with a different value for each takeover. Appends through it expect that value, so
an append after another takeover is refused when it would get its offset, however late that is.

The number counts on from the value of the register. If the register is removed by hand, all appends of the
fence are refused, but the numbers begin again at 1: an earlier fence of the same owner, with that number,
would then hold. The register of a fence cannot be distinguished from others, so its removal is not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Unpack

from walstore.core.batches.conditions import AppendConditions, Expected, make_conditions
from walstore.core.faces.append_backend import AppendBackend, AppendOptions
from walstore.core.faces.transaction import Transaction
from walstore.core.runtime.owned import Owned
from walstore.records import AnyDurability


class Fence(Owned):
    """Appends for one owner; see :meth:`walstore.Wal.fence`."""

    def __init__(self, backend: AppendBackend, owner: str, register: str, token: str) -> None:
        """Not for callers; see :meth:`walstore.Wal.fence`."""
        self._backend = backend
        self.owner = owner
        """The owner that took it."""
        self.register = register
        """Register that contains the fence."""
        self.token = token
        """Its value while this fence holds: a number that grows with each takeover, and the owner.

        It begins again at 1 if the register is removed by hand; leave that to no program.
        """

    @property
    def holds(self) -> bool:
        """Whether no other takeover has been accepted in this process so far, or heard of by this client."""
        return self._backend.register(self.register) == self.token

    async def append(self, value: bytes, **options: Unpack[AppendOptions]) -> int:
        """Append one record under the fence; FencedError if it no longer holds."""
        conditions = self._conditions(None, None)
        return (await self._backend.append_group((value,), conditions, **options)).start

    async def append_many(self, values: Iterable[bytes], **options: Unpack[AppendOptions]) -> range:
        """Append an atomic group under the fence; FencedError if it no longer holds.

        Otherwise as :meth:`walstore.Wal.append_many`.
        """
        return await self._backend.append_group(values, self._conditions(None, None), **options)

    def transaction(
        self,
        *,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> Transaction:
        """Return a transaction that commits only while the fence holds, else FencedError.

        ValueError if ``expect`` names the fence's own register: what is expected of it is the token.
        """
        conditions = self._conditions(expect, update)
        return Transaction(self._backend.gather(conditions, durability), conditions)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._backend.check_owner()

    def __repr__(self) -> str:
        return f"<Fence {self.register!r} of {self.owner!r}{'' if self.holds else ', lost'}>"

    def _conditions(
        self,
        expect: Expected | None,
        update: Mapping[str, str | None] | None,
    ) -> AppendConditions:
        conditions = make_conditions(None, expect, update)
        if self.register in (conditions.expect or {}):
            raise ValueError(
                f"the fence itself expects something of its register {self.register!r}"
            )
        conditions.expect = {**(conditions.expect or {}), self.register: self.token}
        conditions.fence = self.register
        return conditions
