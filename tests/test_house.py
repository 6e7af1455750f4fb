"""The house: names that stand once, and mentions of files that are there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tools.house import numbers

ROOT = Path(__file__).parent.parent
SOURCES = [path for top in ("walstore", "uploader") for path in sorted((ROOT / top).rglob("*.py"))]
MENTION = re.compile(r"``((?:[a-z_]+/)*[a-z_0-9]+\.py)``|\(((?:[a-z_]+/)*[a-z_0-9]+\.py)\)")


def test_no_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("top", ["walstore", "uploader", "bench", "docs"])
def test_mentions_name_files_that_are_there(top: str) -> None:
    folders = ("walstore", "uploader", "tests", "bench", "examples")
    paths = [f"/{path.relative_to(ROOT)}" for one in folders for path in (ROOT / one).rglob("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / top).rglob("*.*"))
        if path.suffix in (".py", ".md")
        for name in (found[0] or found[1] for found in MENTION.findall(path.read_text()))
        if not any(known.endswith(f"/{name}") for known in paths)
    ]
    assert missing == []


HELD = {
    "isinstance on log classes": 0,
    "places that make an offset error": 2,
    "circles of imports": 0,
    "protocols": 63,
}
"""What each of these numbers may be at most; it goes down with the number."""


def test_the_numbers_of_the_house_do_not_grow() -> None:
    found = {number.name: number.now for number in numbers()}
    assert {name: found[name] for name in HELD} == HELD


def test_every_package_says_what_is_in_it() -> None:
    for path in SOURCES:
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), path


FOUND_REMOVED = {
    "uploader/positions/cursors/cursor_objects.py": 1,
    "uploader/positions/groups/group_place.py": 1,
    "uploader/read/fragment_reader.py": 1,
    "uploader/root/tree.py": 1,
    "walstore/core/files/log_files.py": 2,
    "walstore/log/readonly.py": 1,
    "walstore/core/read/tiered.py": 1,
    "walstore/spark/task.py": 1,
}
"""Where records are found removed by other means than a check, such as a missing file; it does not grow."""
MADE = re.compile(r"(?<!class )Offset(Trimmed|NotWritten)Error\(|\brequested(=(?!\{)|\":)")


def test_errors_of_offsets_are_made_in_one_place() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}
    assert [place for place in texts if MADE.search(texts[place])] == [
        "walstore/core/offset_range.py"
    ]
    calls = {place: len(re.findall(r"(?<!self)\.trimmed\(", texts[place])) for place in texts}
    assert {place: count for place, count in calls.items() if count} == FOUND_REMOVED


GROWING = re.compile(
    r"\b([\w.]*(?:pause|wait|delay|seconds|interval)\w*) (?:\*= |= [^=]{,200}?(?:\b\1 \*|\* \1\b))"
    r"|\b[12](?:\.\d)? ?\*\* ?(?:[a-z_]\w|\()"
)
"""A time that becomes a multiple of itself, or a power whose exponent is computed."""


def test_pauses_grow_in_one_place() -> None:
    """They come from a Backoff; see ``walstore/core/runtime/backoff.py``."""
    grown = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in SOURCES
        for found in GROWING.finditer(re.sub(r"\s+", " ", path.read_text()))
    }
    assert grown == set()


PRIVATE = {
    "a part of an open object, which has no public name for it: its counts, its faults, its file": """
        _anchor _background _bucket _channel _commit_loop _connection _disk _disk_key
        _disk_watch _engine _files _fragments _fs _guard _head_starts _inline _keeper _known _publisher
        _queue _root _runner _sequencer _session _shared _state _store _streams _tail _window""",
    "a call that is replaced or begun alone, because no public call stops there": """
        _call _compare _execution _explain_start _finish _give_up _note _open _open_it _plan _put _read_bytes
        _running _start _stop _stopping_on_signal _take _watch""",
    "what must be released: threads, tasks, descriptors, bytes, entries": """
        _admissions _ahead _batches _busy _closed _descriptor _fd _filling
        _free _groups _held _hosted _idle _inherited _listening _offsets _ordered _others _partials
        _pending _plans _pool _process _processes _producers _records _references _segments""",
    "an optional library or a bound of the module under test": """
        _MAGIC _Package _Standard _VALUE_AT _endpoint_url _fold _from_lanes _library _may_plan""",
    "asyncio, the interpreter, pytest, blockbuster and PySpark have no public name for it": """
        _PyFuture _args _callback _cancelled _context _current_frames _exit _gateway _get_running_loop
        _getframe _id _jdf _jsc _jvm _log_destroy_pending _ready _run _scheduled _when _wrap_blocking""",
    "tests share it among themselves": "_world",
}
"""Private attributes that tests use, by the reason."""
OF_NAMED_TUPLES = {"_asdict", "_fields", "_replace"}


def test_private_attributes_are_used_for_a_reason() -> None:
    used = {
        node.attr
        for text in (path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")))
        if re.search(r"(?<!\bself)(?<!\bcls)\._(?!_)", text)  # most have none: parsing is slow
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and re.match(r"_(?!_)", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    }
    explained = {name for names in PRIVATE.values() for name in names.split()}
    assert used - OF_NAMED_TUPLES == explained
