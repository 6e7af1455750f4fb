"""A cache that is bounded by bytes, over random use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walstore.core.runtime.lru_cache import LruCache

STEPS = st.lists(st.tuples(st.sampled_from("gpPc"), st.integers(0, 6), st.integers(0, 12)))


@given(st.integers(0, 20), STEPS)
def test_it_holds_what_was_used_last_and_never_more_than_fits(room: int, steps) -> None:
    cache: LruCache[int, int] = LruCache(room)
    model: list[tuple[int, int]] = []  # key and size, the one used last at the end
    for what, key, size in steps:
        found = next((one for one in model if one[0] == key), None)
        if what == "c":
            cache.clear()
            model = []
        elif what == "P":
            assert cache.pop(key) == (None if found is None else found[1])
            model = [one for one in model if one != found]
        elif what == "g":
            assert cache.get(key) == (None if found is None else found[1])
            model = [one for one in model if one != found] + [one for one in [found] if one]
        else:
            cache.put(key, size, size)
            model = [one for one in model if one != found]
            if size <= room:
                model.append((key, size))
            while sum(one[1] for one in model) > room:
                del model[0]
        assert cache.nbytes == sum(one[1] for one in model) <= room
        assert len(cache) == len(model)
