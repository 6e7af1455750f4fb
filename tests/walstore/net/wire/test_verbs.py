"""Each verb of the table is a method at the server, with the arguments that the table names."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Final

import pytest

from walstore import Wal
from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.stored_logs import StoredLog
from walstore.net.wire.access_scope import ADMIN, ANY, APPEND_ONLY, READ_ONLY
from walstore.net.wire.message import ProtocolViolationError
from walstore.net.wire.verbs import (
    APPEND,
    FENCE,
    GROUP,
    MEMBER_VERBS,
    MOVE_CURSOR,
    READ,
    SETTLE,
    VERBS,
    Verb,
    VerbPlace,
    find_verb,
)
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


READS: Final = {
    "offset_at", "timestamp_at", "streams", "statistics", "extents", "cursors", "groups",
}  # fmt: skip
ANYBODY: Final = {"limits", "refresh", "registers", "wait_durable"}
ADMINS: Final = {"trim", "rotate", "begin_scrub", "delete_cursor", "delete_group"}


def test_each_verb_has_its_scope() -> None:
    """All others are appends: what changes a log, and what belongs to that."""
    for verb in VERBS.values():
        needs = APPEND_ONLY
        if verb.name in READS:
            needs = READ_ONLY
        elif verb.name in ANYBODY:
            needs = ANY
        elif verb.name in ADMINS:
            needs = ADMIN
        elif verb.name == "group":
            needs = READ_ONLY | APPEND_ONLY
        assert verb.needs == needs, verb.name
        assert not (verb.is_write and verb.needs <= READ_ONLY), verb.name
    assert (APPEND.needs, READ.needs) == (APPEND_ONLY, READ_ONLY)
    for part, verb in MEMBER_VERBS.items():
        wanted = {"fetch": READ_ONLY | APPEND_ONLY, "statistics": READ_ONLY}
        assert verb.needs == wanted.get(part, APPEND_ONLY), part


def test_a_verb_is_found_by_what_it_is_asked_for() -> None:
    assert find_verb("group", ["settle", "g", [], []]) is SETTLE
    assert find_verb("group", ["other"]) is find_verb("group", []) is GROUP
    assert find_verb("group", [["a list"]]) is GROUP
    moved = ["name", [], b"", False, "commit", 1]
    assert find_verb("move_cursor", moved) is MOVE_CURSOR
    moved[4] = "delete"
    assert find_verb("move_cursor", moved) is VERBS["delete_cursor"]
    assert find_verb("nothing", []) is None
