"""The table of mutants fits the code: each changes one line that is there, and leaves Python."""

from __future__ import annotations

import ast

from tests.cases import case
from tests.mutants import MUTANTS, ROOT, TESTS


def test_there_are_fifty_and_each_is_another() -> None:
    assert len(set(MUTANTS)) == len(MUTANTS) == 50


def test_each_old_text_occurs_once_and_the_new_one_is_python() -> None:
    for mutant in MUTANTS:
        with case(mutant):
            source = (ROOT / mutant.file).read_text()
            assert source.count(mutant.old) == 1
            assert "\n" not in mutant.old + mutant.new
            ast.parse(source.replace(mutant.old, mutant.new))


def test_the_tests_of_each_file_are_there() -> None:
    assert TESTS.keys() == {mutant.file for mutant in MUTANTS}
    for paths in TESTS.values():
        for path in paths:
            assert (ROOT / path).exists(), path
