"""Which files a step runs."""

from __future__ import annotations

from tests.ci.choice import SLOW_SHARE, UNKNOWN_SECONDS, choose

FILES = [f"tests/test_{number}.py" for number in range(40)]
AMPLE = 1e6


def test_what_is_reached_runs_whatever_turn_it_is() -> None:
    distances = dict.fromkeys(FILES) | dict.fromkeys(FILES[:5], 3)
    for turn in range(SLOW_SHARE):
        assert set(FILES[:5]) <= set(choose(distances, turn, AMPLE, {}).run)


def test_what_is_not_reached_runs_once_in_four_turns() -> None:
    runs = [choose(dict.fromkeys(FILES), turn, AMPLE, {}).run for turn in range(SLOW_SHARE)]
    assert sorted(path for run in runs for path in run) == sorted(FILES)
    assert all(runs)


def test_what_does_not_run_is_left_out() -> None:
    choice = choose(dict.fromkeys(FILES), 1, AMPLE, {})
    assert sorted([*choice.run, *choice.left_out]) == sorted(FILES)


def test_the_longest_begin_first() -> None:
    known = dict(zip(FILES[:3], (1.0, 9.0, 5.0), strict=True))
    run = choose(dict.fromkeys(FILES[:3], 0), 0, AMPLE, known).run
    assert run == [FILES[1], FILES[2], FILES[0]]


def test_without_time_for_all_the_nearest_run_and_the_rest_by_turn() -> None:
    distances = dict.fromkeys(FILES, 5) | {FILES[-1]: 1, FILES[-2]: 0}
    runs = [set(choose(distances, turn, 6.5 * UNKNOWN_SECONDS, {}).run) for turn in range(50)]
    assert all(len(run) == 6 and set(FILES[-2:]) <= run for run in runs)
    assert set().union(*runs) == set(FILES)


def test_a_file_that_is_too_long_makes_way_for_others() -> None:
    run = choose(dict.fromkeys(FILES[:2], 1), 0, 10.0, {FILES[0]: 50.0, FILES[1]: 5.0}).run
    assert run == [FILES[1]]
