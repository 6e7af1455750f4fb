"""Each verb of the table is a method at the server, with the arguments that the table names."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Final

import pytest

from walstore import Wal
from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.stored_logs import StoredLog
from walstore.net.wire.message import ProtocolViolationError
from walstore.net.wire.verbs import FENCE, GROUP, SETTLE, VERBS, Verb, VerbPlace
from walstore.serve.appending import Appender
from walstore.serve.members import ServedMembers
from walstore.serve.served_cursors import ServedCursors
from walstore.serve.services import LogService, ReadService
from walstore.serve.transactions import ServedTransactions

PLACES: Final[dict[VerbPlace, list[type]]] = {
    VerbPlace.LOG: [Wal],
    VerbPlace.SERVICE: [LogService],
    VerbPlace.CURSORS: [ServedCursors],
    VerbPlace.APPENDS: [Appender],
    VerbPlace.TRANSACTIONS: [ServedTransactions],
    VerbPlace.MEMBERS: [ServedMembers],
}
FOR_READERS: Final[dict[VerbPlace, list[type]]] = {
    VerbPlace.LOG: [CopyLog, StoredLog],
    VerbPlace.SERVICE: [ReadService],
}
"""Where they are done, too, for a client that only reads."""


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_each_verb_is_a_method_with_its_arguments(verb: Verb) -> None:
    places = PLACES[verb.place] + (FOR_READERS[verb.place] if verb.is_reading else [])
    for place in places:
        _, *found = signature(getattr(place, verb.name)).parameters.values()
        needed = [one.name for one in found if one.default is Parameter.empty]
        if verb.place is VerbPlace.LOG:  # by name
            assert set(needed) <= set(verb.parameters) <= {one.name for one in found}
        else:
            more = [one.name for one in found if one.kind is Parameter.VAR_POSITIONAL]
            positional = [name for name in needed if name not in more]
            assert tuple(positional)[-len(verb.parameters) or len(positional) :] == verb.parameters
            assert bool(more) == verb.takes_more


def test_arguments_that_are_not_those_of_a_verb() -> None:
    assert FENCE.unpack(["me", "r"]) == ["me", "r"]
    for wrong in ([], ["me"], ["me", "r", 1]):
        with pytest.raises(
            ProtocolViolationError, match=r"'fence' with \d arguments; it takes owner, register"
        ):
            FENCE.unpack(wrong)
    assert GROUP.unpack(["settle", "g", [], 1, 2]) == ["settle", "g", [], 1, 2]
    assert SETTLE.head(["g", [], [1]]) == ["group", ["settle", "g", [], [1]]]
