"""Hostile objects: well-formed documents and fragments that no program of ours writes, with right sums.

Whoever may write to a bucket can put them there. What the sums of a manifest and its snapshots must be is
put right afterwards where that is possible, so that it is what lies behind them that has to refuse.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from tests.fuzz import values
from tests.uploader.parquet import WAL3_SCHEMA
from uploader.format import layout
from uploader.format.setsum import Setsum
from uploader.fragments.fragment_file import FILE_SCHEMA, FORMAT_KEY, STREAMS_KEY

Files = dict[str, bytes]
Forgery = Callable[[Random, Files], str | None]

_EXTREMES: Final = (0, 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 2**64)
_ODD: Final = ("", "x", "/", "..", "../x", "a/../../b", "\ud800", "\0", "é" * 300, "x" * 70_000)
_BOMBS: Final = (
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 900 + b"]" * 900,
    b"[" + b"[]," * 400_000 + b"[]]",
    b'{"setsum":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"position":' + b'{"offset":' * 300 + b"1" + b"}" * 301,
    b'{"a":1,"a":1}',
    b'{"acc_bytes":' + b"9" * 5000 + b"}",
    b'{"acc_bytes":1e400}',
    b'{"acc_bytes":NaN}',
    b"\xef\xbb\xbf{}",
    b"{}",
    b"null",
    b"",
)


_NOT_POSSIBLE: Final = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError),
)


def forge(rng: Random, files: Files) -> list[str]:
    """Forge one or two things in a bucket; return what."""
    done: list[str] = []
    for _ in range(20):
        name = rng.choice((*sorted(_FORGERIES), "number", "rewritten", "rewritten"))
        try:
            what = _FORGERIES[name](rng, files)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it is a bomb already
            continue
        if what is not None:
            done.append(f"{name}: {what}")
        if len(done) == 2 or (done and rng.random() < 0.7):
            break
    if rng.random() < 0.85:
        with contextlib.suppress(*_NOT_POSSIBLE):
            settle(files)
    return done


# -- documents ---------------------------------------------------------------------------------


def _documents(files: Files) -> list[str]:
    return sorted(key for key, data in files.items() if data[:1] == b"{")


def _bomb(rng: Random, files: Files) -> str | None:
    keys = _documents(files)
    if not keys:
        return None
    key = rng.choice(keys)
    bomb = rng.choice(_BOMBS)
    if rng.random() < 0.5:
        # A field more, in a document that is sound otherwise.
        bomb = files[key][:-1] + b',"more":' + (bomb or b"0") + b"}"
    files[key] = bomb
    return key


def _field(rng: Random, files: Files) -> str | None:
    keys = _documents(files)
    if not keys:
        return None
    key = rng.choice(keys)
    document = json.loads(files[key])
    files[key] = dump(_evil(rng, document))
    return key


def _number(rng: Random, files: Files) -> str | None:
    """Make numbers extreme, alone or all of one name."""
    keys = _documents(files)
    if not keys:
        return None
    key = rng.choice(keys)
    document = json.loads(files[key])
    places = [(owner, name) for owner, name in _walk(document) if type(owner[name]) is int]
    if not places:
        return None
    owner, name = rng.choice(places)
    most = rng.choice(_EXTREMES)
    if rng.random() < 0.3:
        shift = most - owner[name]
        for other, other_name in places:
            if other_name == name:
                other[name] = abs(other[name] + shift)
    else:
        owner[name] = most
    files[key] = dump(document)
    return f"{key} {name}"


def _text(rng: Random, files: Files) -> str | None:
    keys = _documents(files)
    if not keys:
        return None
    key = rng.choice(keys)
    document = json.loads(files[key])
    places = [(owner, name) for owner, name in _walk(document) if isinstance(owner[name], str)]
    if not places:
        return None
    owner, name = rng.choice(places)
    owner[name] = rng.choice((*_ODD, *sorted(files)))
    files[key] = dump(document)
    return f"{key} {name}"


def _garbage(rng: Random, files: Files) -> str | None:
    """Announce what nobody planned."""
    if layout.MANIFEST not in files:
        return None
    start, limit, head = (rng.choice((1, 3, 7, *_EXTREMES[:9])) for _ in range(3))
    manifest = json.loads(files[layout.MANIFEST])
    document = {
        "snapshots_to_drop": rng.choice(([], manifest.get("snapshots", []))),
        "snapshots_to_make": [],
        "snapshot_for_root": None,
        "fragments_to_drop_start": rng.choice((0, start)),
        "fragments_to_drop_limit": limit,
        "setsum_to_discard": Setsum().hexdigest(),
        "first_to_keep": {"offset": head},
    }
    if rng.random() < 0.3:
        document["fragment_keys"] = rng.sample(sorted(files), min(3, len(files)))
    files[layout.GARBAGE] = dump(document)
    return "numbers"


def _add(rng: Random, files: Files) -> str:
    """Put something where nothing was."""
    key = rng.choice(
        (
            *(layout.GARBAGE, layout.HEADS, layout.FORK_NOTE, layout.TOMBSTONE, layout.MANIFEST),
            layout.STREAMS,
            *("cursor/odd.json", "cursor/odd", "snapshot/odd", "log/odd", "sink/queries/odd"),
            *("sink/jobs/odd", "sink/PARTITIONS", "manifest/MANIFEST.ffffffffffffff00"),
            layout.fragment_path(rng.choice((1, 12, 2**63, 2**64 - 1))),
        )
    )
    files[key] = rng.choice((*_BOMBS, *files.values()))
    return key


# -- fragments ---------------------------------------------------------------------------------


def _fragments(files: Files) -> list[str]:
    return sorted(key for key, data in files.items() if data[:4] == b"PAR1")


_MOST_GROUPS: Final = 50
_LONGEST_BYTES: Final = 16 << 20
"""Of a forged fragment: short ones that become long are the danger, long ones fill the fuzzer's memory."""


def _rewritten(rng: Random, files: Files) -> str | None:
    """Write a fragment again with something odd about it."""
    keys = _fragments(files)
    if not keys:
        return None
    key = rng.choice(keys)
    table = pq.read_table(pa.BufferReader(files[key]))
    name = rng.choice(sorted(_TABLES))
    made = _TABLES[name](rng, table)
    codec = rng.choice(("zstd", "zstd", "snappy", "gzip", "brotli", "lz4", "none"))
    options: dict[str, Any] = {"compression": codec, "use_dictionary": rng.random() < 0.7}
    if name == "repeated":
        options["use_dictionary"] = True
    elif rng.random() < 0.2:
        options |= {"use_dictionary": False, "column_encoding": {"body": "DELTA_BYTE_ARRAY"}}
    if rng.random() < 0.3:
        options |= {"data_page_version": "2.0"}
    if rng.random() < 0.3:
        # Each group has the dictionary again: thousands of them take minutes to write.
        least = made.num_rows // _MOST_GROUPS
        options |= {"row_group_size": max(rng.choice((1, 3, 100)), least)}
    sink = io.BytesIO()
    try:
        pq.write_table(made, sink, store_schema=rng.random() < 0.8, **options)
    except (pa.ArrowException, OSError, ValueError):
        return None
    if sink.tell() > _LONGEST_BYTES:
        return None
    files[key] = sink.getvalue()
    return f"{name} {key}"


def _footer(rng: Random, files: Files) -> str | None:
    """Damage what no checksum covers: footers and the headers of pages."""
    keys = _fragments(files)
    if not keys:
        return None
    key = rng.choice(keys)
    data = bytearray(files[key])
    length = int.from_bytes(data[-8:-4], "little")
    low = max(4, len(data) - 8 - length) if rng.random() < 0.7 else 4
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(low, len(data) - 4) if low < len(data) - 4 else 0
        data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), 0, 255, 127, 128))
    files[key] = bytes(data)
    return key


def _set(table: pa.Table, name: str, column: Any) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at).with_nullable(True), column)


def _repeated(rng: Random, table: pa.Table) -> pa.Table:
    """Few bytes that become many: one long value in every row of many."""
    rows = rng.choice((table.num_rows, 5_000, 50_000))
    size = rng.choice((0, 10, 1 << 20))
    start = table.column("offset")[0].as_py()
    value = pa.array([bytes(size)], pa.binary())
    columns = [
        pa.array(range(start, start + rows), pa.uint64()),
        pa.repeat(pa.scalar(7, pa.uint64()), rows),
        pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), value),
    ]
    schema = pa.schema([*list(WAL3_SCHEMA)[:2], pa.field("body", columns[2].type, nullable=False)])
    return pa.Table.from_arrays(columns, schema=schema)


def _of_zeros(rng: Random, table: pa.Table) -> pa.Table:
    """Pages that compress well; with a common beginning, also values that do."""
    rows, size = rng.choice(((table.num_rows, 100), (table.num_rows, 1 << 20), (300, 1 << 20)))
    start = table.column("offset")[0].as_py()
    columns = [
        pa.array(range(start, start + rows), pa.uint64()),
        pa.repeat(pa.scalar(7, pa.uint64()), rows),
        pa.repeat(pa.scalar(bytes(size), pa.binary()), rows),
    ]
    return pa.Table.from_arrays(columns, schema=WAL3_SCHEMA)


def _streams(rng: Random, table: pa.Table) -> pa.Table:
    """A right checksum before what no version writes."""
    bits = base64.b64encode(rng.choice((b"\xff" * 40, b"\xff" * 40, b"", bytes(1 << 18)))).decode()
    text = rng.choice(
        (
            *(f"bloom {number} {bits}" for number in (2**62, 10**12, 2**62, 10**30, -1, 0, "x")),
            *("names " + rest for rest in ("[" * 100_000, '"eu"', '{"eu":1}', "[1]", "[]", "")),
            'names ["' + "x" * 100_000 + '"]',
            *("odd", "bloom", "names", "é"),
        )
    )
    metadata = {STREAMS_KEY: f"{crc32c(text.encode()):08x} {text}", FORMAT_KEY: b"1"}
    return table.replace_schema_metadata(metadata)


def _numbers(rng: Random, table: pa.Table) -> pa.Table:
    name = rng.choice(("offset", "timestamp_us"))
    made = [rng.choice((0, 1, 2**63, 2**64 - 1)) for _ in range(table.num_rows)]
    if rng.random() < 0.5:
        made = [min(made[0] + at * (name == "offset"), 2**64 - 1) for at in range(len(made))]
    return _set(table, name, pa.array(made, pa.uint64()))


def _nulls(rng: Random, table: pa.Table) -> pa.Table:
    name = rng.choice(table.column_names)
    return _set(table, name, pa.nulls(table.num_rows, table.schema.field(name).type))


def _types(rng: Random, table: pa.Table) -> pa.Table:
    at = rng.randrange(table.num_columns)
    nested: pa.DataType = pa.int8()
    for _ in range(rng.choice((1, 5, 60))):
        nested = rng.choice((pa.list_, lambda of: pa.struct([("a", of)])))(nested)
    kind = rng.choice((pa.string(), pa.large_binary(), pa.int64(), pa.decimal128(9, 2), nested))
    column = pa.nulls(table.num_rows, kind)
    return table.set_column(at, table.column_names[at], column)


def _columns(rng: Random, table: pa.Table) -> pa.Table:
    act = rng.randrange(4)
    if act == 0:
        return table.drop_columns([rng.choice(table.column_names)])
    if act == 1:
        name = rng.choice(table.column_names)
        return table.append_column(name, table.column(name))
    if act == 2:
        return table.slice(0, rng.choice((0, 1)))
    for number in range(300):
        table = table.append_column(f"c{number}", pa.nulls(table.num_rows, pa.int8()))
    return table


def _version(rng: Random, table: pa.Table) -> pa.Table:
    made = rng.choice((b"1", b"2", b"", b"\xff\xfe"))
    if rng.random() < 0.5 and table.schema.names == FILE_SCHEMA.names:
        table = table.cast(FILE_SCHEMA.remove_metadata())
    return table.replace_schema_metadata({FORMAT_KEY: made})


_TABLES: Final[dict[str, Callable[[Random, pa.Table], pa.Table]]] = {
    "repeated": _repeated,
    "zeros": _of_zeros,
    "streams": _streams,
    "numbers": _numbers,
    "nulls": _nulls,
    "types": _types,
    "columns": _columns,
    "version": _version,
}

_FORGERIES: Final[dict[str, Forgery]] = {
    "bomb": _bomb,
    "field": _field,
    "number": _number,
    "text": _text,
    "garbage": _garbage,
    "added": _add,
    "rewritten": _rewritten,
    "footer": _footer,
}


# -- right sums --------------------------------------------------------------------------------


def settle(files: Files) -> None:
    """Put right what a manifest and its snapshots say of what is below them.

    KeyError, TypeError and the like where that is not possible.
    """
    roots = [key for key in files if key.startswith("manifest/") and files[key][:1] == b"{"]
    for key in roots:
        document = json.loads(files[key])
        for pointer in document["snapshots"]:
            _settle_pointer(files, pointer)
        for entry in document["fragments"]:
            _settle_entry(files, entry)
        live = _total([*document["snapshots"], *document["fragments"]])
        collected = Setsum.from_hexdigest(document["collected"])
        document["setsum"] = (live + collected).hexdigest()
        files[key] = dump(document)


def _settle_pointer(files: Files, pointer: dict[str, Any]) -> None:
    document = json.loads(files[pointer["path_to_snapshot"]])
    for below in document["snapshots"]:
        _settle_pointer(files, below)
    for entry in document["fragments"]:
        _settle_entry(files, entry)
    children = [*document["snapshots"], *document["fragments"]]
    document["setsum"] = pointer["setsum"] = _total(children).hexdigest()
    path = layout.snapshot_path(_total(children))
    document["path"] = pointer["path_to_snapshot"] = path
    pointer["start"], pointer["limit"] = children[0]["start"], children[-1]["limit"]
    pointer["num_bytes"] = sum(child["num_bytes"] for child in children)
    pointer["depth"] = document["depth"]
    files[path] = dump(document)


def _settle_entry(files: Files, entry: dict[str, Any]) -> None:
    data = files.get(entry["path"])
    if data is not None and entry["num_bytes"] < 1 << 30:
        entry["num_bytes"] = len(data)


def _total(children: list[dict[str, Any]]) -> Setsum:
    return Setsum.total(Setsum.from_hexdigest(child["setsum"]) for child in children)


def dump(value: Any) -> bytes:
    """Return a document as bytes, also one with what no JSON text should have."""
    return json.dumps(value, separators=(",", ":"), default=repr).encode()


def _walk(value: Any) -> list[tuple[Any, Any]]:
    """Return where all values of a document are: what holds each, and under which name."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, below in items:
        found.append((value, name))
        if isinstance(below, dict | list):
            found += _walk(below)
    return found


def _evil(rng: Random, document: Any) -> Any:
    made = values.evil(rng, document)
    try:
        json.dumps(made)
    except (TypeError, ValueError):
        return document
    return made
