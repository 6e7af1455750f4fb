"""walstore logs remove: a log is taken out of its cluster, with what etcd knows of its copies."""

from __future__ import annotations

from typing import Any, Final

from walstore.cli.cluster_change import log_row
from walstore.cli.output import complain
from walstore.cluster.replication.copy_marks import read_marks
from walstore.cluster.view import ClusterView, removed_spec
from walstore.core.runtime.clock import SystemClock
from walstore.errors import ContentionError, LogNotFoundError, OutcomeUnknownError
from walstore.topology.documents import LEADERS, LOGS, REMOVED, SYNCED
from walstore.topology.key_values import KeyValues

_CLOSING_SECONDS: Final = 30.0
"""So long a log that is taken out may take to be closed."""
_PAUSE_SECONDS: Final = 0.1


async def remove_log(keys: KeyValues, name: str, *, is_confirmed: bool) -> dict[str, Any]:
    """Take a log out of the cluster if that is confirmed; return what it was, as JSON.

    May be called again after any error: while there are marks of a log that was taken out, it goes on with
    those. LogNotFoundError, ContentionError; FormatVersionError for marks of a newer version, with nothing
    done; OutcomeUnknownError and what else the store raises.
    """
    view = ClusterView(keys, clock=SystemClock())
    await view.look()
    key, kept, marks = (view.key(folder, name) for folder in (LOGS, REMOVED, SYNCED))
    spec = view.specs.get(name)
    if spec is None and marks in view.revisions:
        spec = await removed_spec(keys, name)
    if spec is None:
        raise LogNotFoundError(f"the cluster has no log {name!r}", location=name)
    read_marks(await keys.get(marks))
    if is_confirmed and name in view.specs:
        # What is made again under this name goes on with the copies that there are, and is led.
        value = spec._replace(suspended=False).encode()
        is_kept = await _swap(keys, kept, value, view.revisions.get(kept, 0))
        if not (is_kept and await _swap(keys, key, None, view.revisions[key])):
            raise ContentionError(f"the log {name!r} was changed by somebody else; call again")
    if is_confirmed:
        await _forget_marks(keys, view, name)
    return log_row(view, name, spec)


async def _forget_marks(keys: KeyValues, view: ClusterView, name: str) -> None:
    """Remove what etcd knows of the copies of a log that was taken out: one made again may begin at offset 1.

    A leader writes that once more as it closes the log, so it is waited for. Marks that were read before the
    log was seen to be out are not those of one made again, and they are removed at that revision only.
    """
    clock = SystemClock()
    key, leader, marks = (view.key(folder, name) for folder in (LOGS, LEADERS, SYNCED))
    deadline = clock.monotonic() + _CLOSING_SECONDS
    while (found := await keys.get(marks)) is not None:
        if await keys.get(key) is not None:
            complain(f"{name!r} was made again meanwhile, so {marks} stays")
            return
        if await keys.get(leader) is None:
            await _swap(keys, marks, None, found.revision)
        elif clock.monotonic() < deadline:
            await clock.sleep(_PAUSE_SECONDS)
        else:
            complain(
                f"{name!r} is taken out, but not closed yet, so {marks} stays: before a log of this name can "
                "begin at offset 1, call this again"
            )
            return


async def _swap(keys: KeyValues, key: str, value: bytes | None, expected: int) -> bool:
    """Return whether a key has the value; OutcomeUnknownError if an answer was lost and it has not."""
    try:
        return (await keys.swap(key, value, expected=expected)).happened
    except OutcomeUnknownError:
        found = await keys.get(key)
        if (None if found is None else found.value) != value:
            raise
        return True
