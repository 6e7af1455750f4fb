"""The only way to delete objects of a log: by keys, each of which a rule admits.

A document that calls an object garbage may be wrong or forged: anyone may have put an announced collection
or a record of heads, and a program may have a fault. A rule decides by
the key, and by what the newest manifest names. No other module calls a store's ``delete`` for a log's
objects (tests/uploader/stores/test_removal.py), except for cursors, which their owners delete by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uploader.stores.port import ObjectStore
from walstore.errors import CollectionRefusedError

Rule = Callable[[str], bool]
"""Returns whether the object with that key may be deleted. Pure, and still right at any later time."""


async def remove(store: ObjectStore, keys: Iterable[str], *, rule: Rule) -> None:
    """Delete objects; missing ones are not an error.

    CollectionRefusedError, and nothing is deleted, if the rule does not admit one of them. After one of the
    store's errors some may be gone.
    """
    doomed = list(keys)
    for key in doomed:
        if not rule(key):
            raise CollectionRefusedError(f"{key} in {store.url} is nothing that may be removed")
    if doomed:
        await store.delete(doomed)
