"""KnownGroup: a group's object as one process has read or put it last, and the leases of its members.

A swap whose answer is lost may have happened. What it settled is settled. A lease that it made or extended is
found by its tag in the document that is read next.
"""

from __future__ import annotations

from uploader.format.group_document import GroupDocument
from uploader.positions.groups.group_place import GroupObject, GroupPlace
from uploader.positions.groups.group_turn import GroupTurn, Lease, Sight
from uploader.root.stored_document import StoredDocument
from walstore.errors import OutcomeUnknownError, WalClosedError


class KnownGroup:
    """What a process knows of one group. Belongs to the event loop; one call at a time reads or changes."""

    def __init__(self, place: GroupPlace, name: str, process: str) -> None:
        """Of the group ``name``; ``process`` is what no other process has."""
        self.document: GroupDocument | None = None
        """None before the first look, and after a swap without an answer."""
        self.made: str | None = None
        """Which group it is, once that is settled: one made later under this name is another group."""
        self.leased: dict[int, Lease] = {}
        """The leases of this process by offset, oldest first; what the document has no longer is gone."""
        self.sight = Sight()
        """When each lease was seen first."""
        self._place = place
        self._name = name
        self._process = process
        self._turns = 0
        self._etag: str | None = None
        self._moments: dict[str, float] = {}
        """When this process asked for its last changes, by tag."""
        self._lost: dict[str, str | None] = {}
        """Tags of changes whose outcome it did not learn, and the ETags that they were to replace."""

    def next_tag(self) -> str:
        """Return a tag that no other change of any process has."""
        self._turns += 1
        return f"{self._process}-{self._turns}"

    async def reload(self) -> GroupDocument:
        """Read the object and return what it says; WalClosedError if the group is gone."""
        return self.know(await self._place.load(self._name))

    def know(self, found: StoredDocument[GroupDocument | None]) -> GroupDocument:
        """Go on with a document that was read or put, and return it; WalClosedError if the group is gone."""
        document, etag = found.value, found.etag
        if found.damage is not None:
            raise found.damage
        if document is None or document.is_removed or self.made not in {None, document.made}:
            raise WalClosedError(f"the group {self._name!r} was deleted")
        clock = self._place.clock
        now, now_us = clock.monotonic(), clock.now_us()
        self.sight.look(document, now, self._moments, now_us=now_us)
        self.document, self._etag = document, etag
        rows = document.rows
        self.leased = {
            offset: lease
            for offset, lease in self.leased.items()
            if offset in rows and rows[offset].tag in lease.tags
        }
        # A change that is not in it, and was to replace another one, never happens.
        tags = self.sight.tags
        self._lost = {tag: at for tag, at in self._lost.items() if tag in tags or at == etag}
        for offset, lease in self.leased.items():
            # Not those of changes that never happened.
            lease.tags.intersection_update({rows[offset].tag, *self._lost})
        return document

    async def put(self, made: GroupDocument, began: float) -> bool:
        """Put a document that was made of the last one by a turn that ``began`` then.

        False if another process came first, whose document is known then. OutcomeUnknownError without an
        answer; WalClosedError if the group is gone.
        """
        self._moments = {tag: at for tag, at in self._moments.items() if tag in self._lost}
        self._moments[made.tag] = began
        self._lost[made.tag] = self._etag
        before = StoredDocument(self.document, self._etag)
        try:
            swap = await GroupObject(self._place, self._name).swap(made, before)
        except OutcomeUnknownError:
            self.document = None
            raise
        if not swap.was_unanswered:
            del self._lost[made.tag]
        self.know(swap.newest)
        return swap.put is not None

    def found_again(self, turn: GroupTurn, wanted: int) -> tuple[list[Lease], list[Lease]]:
        """Return leases that changes of this process made without its knowledge: of jobs, and to bury.

        Of those that are as ``turn`` leaves them; of the jobs at most ``wanted``.
        """
        found, buried = turn.find(self._lost, self.leased) if self._lost else ([], [])
        return found[:wanted], buried
