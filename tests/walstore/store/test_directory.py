"""Names of logs and their directories."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cases import case
from walstore.errors import InvalidSettingsError
from walstore.store.directory import directory_of, name_of


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("orders", "orders"),
        ("Orders_2-a.b", "Orders_2-a.b"),
        ("orders/0", "orders%2F0"),
        ("eu-west.orders", "eu-west.orders"),
        (".hidden", "%2Ehidden"),
        ("a/.b", "a%2F.b"),
        ("50%", "50%25"),
        ("a b", "a%20b"),
        ("Größe", "Gr%C3%B6%C3%9Fe"),
        ("...", "%2E.."),
    ],
)
def test_names_and_directories(name: str, directory: str) -> None:
    assert directory_of(name) == directory
    assert name_of(directory) == name


def test_what_is_no_name() -> None:
    for name in (
        "",
        ".",
        "..",
        "/",
        "/etc",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "a/.",
        "a\0b",
        "a\nb",
        "\x7f",
        "\ud800",
        "a" * 256,
        "/".join("a" * 80),
    ):
        with case(name), pytest.raises(InvalidSettingsError):
            directory_of(name)


def test_a_name_is_a_str() -> None:
    with pytest.raises(TypeError):
        directory_of(b"orders")  # type: ignore[arg-type]


def test_the_longest_names() -> None:
    assert directory_of("a" * 255) == "a" * 255
    assert len(directory_of("ä" * 42)) == 252


@pytest.mark.parametrize(
    "directory", [".store", ".deleted-1", "a%2f0", "%41", "a b", "%", "%F", "%FF", "a%00", "ä", ""]
)
def test_directories_that_hold_no_log(directory: str) -> None:
    assert name_of(directory) is None


@given(st.text(min_size=1, max_size=60))
def test_the_mapping_is_safe_and_can_be_reversed(name: str) -> None:
    try:
        directory = directory_of(name)
    except InvalidSettingsError:
        assume(False)
        raise
    assert name_of(directory) == name
    assert "/" not in directory
    assert not directory.startswith(".")
    assert directory.isascii()


@given(st.text(max_size=20))
def test_whatever_lies_in_a_store_is_one_log_or_none(directory: str) -> None:
    name = name_of(directory)
    assert name is None or directory_of(name) == directory
