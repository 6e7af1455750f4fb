"""The one way in which objects of a log are deleted: by keys, each of which a rule admits.

What calls an object garbage may be wrong, or forged: an announced collection is a document that anybody may
have put, a record of heads is another, and a program may have a fault. A rule goes by something better: by
the key, and by what the newest manifest names. Nobody but this module calls a store's ``delete`` for a log's
objects (tests/uploader/stores/test_removal.py), but for cursors, which their owners delete by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uploader.stores.port import ObjectStore
from walstore.errors import CollectionRefusedError

Rule = Callable[[str], bool]
"""Returns whether the object with that key may be deleted. Pure, and right at any later time, too."""


async def remove(store: ObjectStore, keys: Iterable[str], *, rule: Rule) -> None:
    """Delete objects; those that are gone already are no error.

    CollectionRefusedError, and nothing is deleted, if the rule does not admit one of them; else the
    store's errors, and then some may be gone.
    """
    doomed = list(keys)
    for key in doomed:
        if not rule(key):
            raise CollectionRefusedError(f"{key} in {store.url} is nothing that may be removed")
    if doomed:
        await store.delete(doomed)
