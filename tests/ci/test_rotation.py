from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from tests.ci.rotation import share, turn_of, turn_of_head

FILES = [f"tests/walstore/test_{number}.py" for number in range(400)]


@pytest.mark.parametrize("of", [1, 3, 4])
def test_every_file_comes_once_in_so_many_turns(of: int) -> None:
    for first in (0, 7, 10**40):
        turns = range(first, first + of)
        seen = Counter(name for turn in turns for name in FILES if share(name, of=of, turn=turn))
        assert seen == Counter(FILES)


@pytest.mark.parametrize("of", [3, 4])
def test_the_shares_are_about_equal(of: int) -> None:
    sizes = [sum(share(name, of=of, turn=turn) for name in FILES) for turn in range(of)]
    assert min(sizes) > 0.7 * len(FILES) / of


def test_a_share_is_the_same_in_every_process() -> None:
    assert [share("tests/test_docs.py", of=4, turn=turn) for turn in range(4)].index(True) == 3


@pytest.mark.parametrize("commits", [*range(1, 17), 32, 60, 64])
def test_submissions_of_any_number_of_commits_visit_all_shares(commits: int) -> None:
    history = [hashlib.sha1(b"%d" % number).hexdigest() for number in range(40 * commits)]
    turns = [turn_of(commit) for commit in history[::commits]]
    for of in (3, 4):
        assert {turn % of for turn in turns} == set(range(of))
        assert len({turn % of for turn in turns[:20]}) >= of - 1


def test_the_turn_of_the_commit_that_is_checked_out() -> None:
    assert turn_of_head() == turn_of_head() > 0
