"""What a stream takes of its producers, beside a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore.http.accepted import MOST_PRODUCERS, Accepted
from walstore.http.protocol import ProducerMark, RefusedError

STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 3), st.booleans()),
    max_size=40,
)


def offer(state: Accepted, mark: ProducerMark, *, is_last: bool = False) -> int | None:
    """Append as a server does; return a status: 200 for new, 204 for repeated."""
    try:
        update = state.check(None, mark, is_last=is_last, is_empty=False)
    except RefusedError as error:
        return error.status
    if update is None:
        return 204
    state.remember(update)
    return 200


@given(STEPS)
def test_each_number_is_taken_once_and_in_order(steps: list[tuple[str, int, int, bool]]) -> None:
    state = Accepted({})
    taken: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for producer, epoch, sequence, is_restarted in steps:
        status = offer(state, ProducerMark(producer, epoch, sequence))
        known = taken[producer]
        newest = known[-1] if known else None
        if status == 200:
            assert sequence == (newest[1] + 1 if newest and newest[0] == epoch else 0)
            assert newest is None or epoch >= newest[0]
            known.append((epoch, sequence))
        elif status == 204:
            assert (epoch, sequence) in known
        elif status == 403:
            assert newest is not None
            assert epoch < newest[0]
        else:
            assert (epoch, sequence) not in known
        if is_restarted:
            state = Accepted(registers_of(taken))


def registers_of(taken: dict[str, list[tuple[int, int]]]) -> dict[str, str]:
    return {
        f"http.producer.{producer}": f"{known[-1][0]} {known[-1][1]} 1"
        for producer, known in taken.items()
        if known
    }


def test_the_producer_that_appended_least_recently_is_forgotten() -> None:
    state = Accepted({})
    for number in range(MOST_PRODUCERS):
        assert offer(state, ProducerMark(str(number), 0, 0)) == 200
    assert offer(state, ProducerMark("0", 0, 1)) == 200
    assert offer(state, ProducerMark("new", 0, 0)) == 200
    assert offer(state, ProducerMark("0", 0, 1)) == 204
    assert offer(state, ProducerMark("1", 0, 0)) == 200  # it was forgotten


def test_a_closed_stream_takes_only_what_closed_it() -> None:
    state = Accepted({})
    last = ProducerMark("p", 0, 0)
    assert offer(state, last, is_last=True) == 200
    assert state.is_closed
    assert offer(state, last, is_last=True) == 204
    assert offer(state, ProducerMark("p", 0, 1)) == 409
    assert offer(state, ProducerMark("q", 0, 0)) == 409
    assert state.check(None, None, is_last=True, is_empty=True) is None
    with pytest.raises(RefusedError):
        state.check(None, None, is_last=True, is_empty=False)


def test_application_sequences_are_compared_as_bytes() -> None:
    state = Accepted({})
    for text, is_taken in (
        ("09", True),
        ("10", True),
        ("10", False),
        ("2", True),
        ("11", False),
        ("a", True),
        ("B", False),
    ):
        try:
            update = state.check(text, None, is_last=False, is_empty=False)
        except RefusedError:
            assert not is_taken
        else:
            assert is_taken
            assert update is not None
            state.remember(update)
