"""Forged files: somebody, or a bug, wrote what no writer writes, with right checksums."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgpack
from crc32c import crc32c

from tests.fuzz import model, values
from tests.fuzz.model import Column, Frame, Segment
from walstore.core.files.directory import REPAIR_NAME
from walstore.core.format import checkpoint, codec, frame, segment
from walstore.core.format.frame import ColumnKind
from walstore.positions.cursors import directory as cursor_directory

Files = dict[str, bytes]
Forgery = Callable[[Random, list[Segment], Files], str | None]


def _any_frame(rng: Random, segments: list[Segment]) -> tuple[Segment, Frame]:
    one = rng.choice([s for s in segments if s.frames])
    return one, rng.choice(one.frames)


def _frame_field(rng: Random, segments: list[Segment], files: Files) -> str:
    _, each = _any_frame(rng, segments)
    at = rng.randrange(2, len(model.FRAME_FIELDS))
    name = model.FRAME_FIELDS[at]
    each.forced[name] = values.number(rng, model.FRAME_BITS[at], each.fields[name])
    return f"frame {name} of a segment"


def _frame_order(rng: Random, segments: list[Segment], files: Files) -> str:
    one, each = _any_frame(rng, segments)
    at = one.frames.index(each)
    act = rng.choice(("leave out", "double", "swap", "move"))
    if act == "leave out":
        del one.frames[at]
    elif act == "double":
        one.frames.insert(at, copy.deepcopy(each))
    elif act == "swap":
        one.frames.reverse()
    else:
        rng.choice(segments).frames.append(copy.deepcopy(each))
    return f"frames {act} in a segment"


def _directory(rng: Random, segments: list[Segment], files: Files) -> str:
    _, each = _any_frame(rng, segments)
    if not each.columns or rng.random() < 0.1:
        each.columns.append(
            Column(rng.choice((0, 1, 9, 15, 100, 200)), rng.choice((0, 3, 255)), b"new")
        )
        return "column added in a segment"
    column = rng.choice(each.columns)
    act = rng.choice(("kind", "encoding", "size", "leave out", "double", "reverse", "empty"))
    if act == "kind":
        column.kind = rng.choice((0, *ColumnKind, 10, 127, 128, 255))
    elif act == "encoding":
        column.encoding = rng.choice((0, 1, 2, 3, 4, 8, 16, 255))
    elif act == "size":
        column.size = values.number(rng, 32, len(column.data))
    elif act == "leave out":
        each.columns.remove(column)
    elif act == "double":
        each.columns.append(copy.deepcopy(column))
    elif act == "reverse":
        each.columns.reverse()
    else:
        column.data = b""
    return f"column {act} of a segment"


def _integers(rng: Random, segments: list[Segment], files: Files) -> str | None:
    found = [
        (each, column)
        for one in segments
        for each in one.frames
        for column in each.columns
        if column.encoding != frame.BLOB
    ]
    if not found:
        return None
    each, column = rng.choice(found)
    count = each.fields["count"]
    width = rng.choice((0, 1, 2, 4, 8))
    if width == 0 or rng.random() < 0.3:
        column.encoding, column.data = 0, struct.pack("<I", values.number(rng, 32))
    else:
        numbers = [values.number(rng, 8 * width) if rng.random() < 0.5 else 0 for _ in range(count)]
        column.encoding = width
        column.data = b"".join(number.to_bytes(width, "little") for number in numbers)
    if rng.random() < 0.2:
        each.forced["count"] = values.number(rng, 32, count)
    return f"integers {column.kind} of a segment"


def _packed_column(rng: Random, segments: list[Segment], files: Files) -> str | None:
    wanted = (ColumnKind.STREAM_NAMES, ColumnKind.HEADERS, ColumnKind.MARKS)
    found = [
        (each, column)
        for one in segments
        for each in one.frames
        for column in each.columns
        if column.kind in wanted
    ]
    if not found:
        return None
    each, column = rng.choice(found)
    column.data = values.evil_bytes(rng, column.data)
    if column.kind == ColumnKind.HEADERS and rng.random() < 0.7:  # one record has all of them
        lengths = next(c for c in each.columns if c.kind == ColumnKind.HEADER_LENGTHS)
        rows = [0] * each.fields["count"]
        rows[rng.randrange(len(rows))] = len(column.data) + 1
        lengths.encoding, lengths.data = 4, struct.pack(f"<{len(rows)}I", *rows)
    return f"msgpack {column.kind} of a segment"


def _marks(rng: Random, segments: list[Segment], files: Files) -> str:
    """Add a frame that has nothing but marks."""
    one, each = _any_frame(rng, segments)
    marks: dict[str, Any] = {
        "r": {"a": "b", "c": None},
        "p": [["producer", 1, 1, 1, 2]],
        "s": {"eu": [True, {"k": "v"}, 1]},
        "h": 1,
        "w": True,
    }
    data = values.evil_bytes(rng, values.pack(marks))
    fields = dict(each.fields)
    fields |= {"count": 0, "flags": 1, "codec": 0, "start": fields["start"] + fields["count"]}
    at = one.frames.index(each) + 1
    one.frames.insert(at, Frame(fields, [Column(ColumnKind.MARKS, frame.BLOB, data)]))
    return "marks in a segment"


def _body(rng: Random, segments: list[Segment], files: Files) -> str:
    _, each = _any_frame(rng, segments)
    body = b"".join(column.data for column in each.columns)
    act = rng.choice(("bomb", "claim", "cut", "garbage", "window", "plain"))
    each.fields["codec"] = codec.ZSTD
    packed = codec.compress([body + bytes(4096)])
    each.forced["codec"] = codec.ZSTD
    each.forced["body_bytes"] = len(body) + 4096
    each.stored = packed
    if act == "bomb":
        each.stored = codec.compress([bytes(32 << 20)])
        each.forced["body_bytes"] = rng.choice((32 << 20, len(body), (1 << 31) - 1))
    elif act == "claim":
        each.forced["body_bytes"] = values.number(rng, 32, len(body))
    elif act == "cut":
        each.stored = packed[: rng.randrange(len(packed))]
    elif act == "garbage":
        each.stored = packed[:9] + rng.randbytes(40)
    elif act == "window":  # says 1 GiB, by its header alone
        each.stored = b"\x28\xb5\x2f\xfd\x80\xa0" + struct.pack("<I", 1 << 30) + packed[9:]
        each.forced["body_bytes"] = 1 << 30
    return f"body {act} of a segment"


def _segment_header(rng: Random, segments: list[Segment], files: Files) -> str:
    one = rng.choice(segments)
    at = rng.choice((2, 3, 4, 5, 6, 7, 8, 9))
    before = one.header[at]
    if isinstance(before, bytes):
        one.forced_header[at] = rng.choice((bytes(16), rng.randbytes(16)))
    else:
        one.forced_header[at] = values.number(rng, model.HEADER_BITS[at], before)
    return f"header field {at} of a segment"


def _footer(rng: Random, segments: list[Segment], files: Files) -> str | None:
    sealed = [one for one in segments if one.footer is not None]
    if not sealed:
        return None
    one = rng.choice(sealed)
    act = rng.choice(("field", "index", "entries", "streams", "seal", "lost"))
    if act == "field":
        assert one.footer is not None
        at = rng.randrange(2, len(model.FOOTER_BITS))
        one.forced_footer[at] = values.number(rng, model.FOOTER_BITS[at], one.footer[at])
    elif act == "index" and one.index:
        rows = list(struct.unpack(f"<{len(one.index) // 8}Q", one.index))
        rows[rng.randrange(len(rows))] = values.number(rng, 64, rows[0])
        one.index = struct.pack(f"<{len(rows)}Q", *rows)
    elif act == "entries":
        entries = rng.choice((0, 2, 3, 500))
        rows = [values.number(rng, 64, 64) for _ in range(3 * entries)]
        if rng.random() < 0.5:
            rows.sort()
        one.index = struct.pack(f"<{len(rows)}Q", *rows)
    elif act == "streams":
        one.streams = rng.choice((b"", rng.randbytes(4), rng.randbytes(400), bytes(8)))
        one.forced_footer[7] = rng.choice((0, 1, len(one.streams) // 4 + 1, (1 << 32) - 1))
    elif act == "seal":
        one.seal = values.number(rng, 64, 64)
    else:
        one.footer = None
    return f"footer {act} of a segment"


def _behind(rng: Random, segments: list[Segment], files: Files) -> str:
    """Put whole frames behind the end, some inside others, with zeroes between."""
    one = segments[-1]
    each = copy.deepcopy(rng.choice(one.frames))
    each.columns = [Column(ColumnKind.VALUES, frame.BLOB, b"")]
    packed = model.pack_frame(each, rng.getrandbits(32), rng.randbytes(4))
    half = packed[: rng.choice((80, len(packed) - 8, len(packed)))]
    one.behind = (rng.choice((b"", bytes(8), half)) + half) * rng.choice((1, 3, 500))
    one.behind = one.behind[: 64 << 10]
    return "behind the last segment"


def _checkpoint(rng: Random, segments: list[Segment], files: Files) -> str | None:
    data = files.get(checkpoint.FILE_NAME)
    if data is None:
        return None
    _, _, size, _ = checkpoint.PREFIX.unpack_from(data)
    body = data[checkpoint.PREFIX.size :][:size]
    version = checkpoint.VERSION
    if rng.random() < 0.1:
        version = values.number(rng, 32, version)
    elif rng.random() < 0.3:
        fields = msgpack.unpackb(body)
        key = rng.choice(sorted(fields))
        fields[key] = (
            values.evil_bytes(rng, fields[key])
            if isinstance(fields[key], bytes)
            else values.evil(rng, fields[key])
        )
        body = values.pack(fields)
    else:
        body = values.evil_bytes(rng, body)
    crc = crc32c(body, crc32c(struct.pack("<II", version, len(body))))
    prefix = checkpoint.PREFIX.pack(checkpoint.MAGIC, version, len(body), crc)
    files[checkpoint.FILE_NAME] = prefix + body
    return "checkpoint"


def _cell(rng: Random, segments: list[Segment], files: Files) -> str | None:
    data = files.get(checkpoint.CELL_FILE_NAME)
    if data is None:
        return None
    fields = list(checkpoint.CELL.unpack_from(data))
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.randrange(1, 8)
        fields[at] = values.number(rng, 32 if at == 7 else 64, fields[at])
    body = checkpoint.CELL.pack(*fields)
    files[checkpoint.CELL_FILE_NAME] = (
        body + crc32c(body).to_bytes(4, "little") + data[len(body) + 4 :]
    )
    return "durable cell"


def _cursor(rng: Random, segments: list[Segment], files: Files) -> str:
    fields: list[Any] = [cursor_directory.MAGIC, 0, 1, 4, 3, 1, b"writer 8", 1, 0, 0]
    for at, bits in rng.sample(list(enumerate((0, 0, 16, 16, 64, 64, 0, 64, 64, 64))), 2):
        if bits:
            fields[at] = values.number(rng, bits, fields[at])
    owner = rng.choice((b"test", b"\xff\xfe\xfd\xfc", b"", b"\x1b[2J", b"x" * 70_000))
    if rng.random() < 0.5:
        fields[3] = len(owner) % 65536
    body = cursor_directory.HEADER.pack(*fields)[12:] + owner
    name = rng.choice(("billing", "new", "-", "a" * 128))
    files[f"cursors/{name}"] = cursor_directory.MAGIC + crc32c(body).to_bytes(4, "little") + body
    return "cursor"


def _journal(rng: Random, segments: list[Segment], files: Files) -> str | None:
    data = files.get(REPAIR_NAME)
    if data is None:
        return None
    plan = json.loads(data.partition(b"\n")[2])
    act = rng.random()
    if act < 0.7:
        for _ in range(rng.choice((1, 2))):
            plan = values.evil(rng, plan)
    text = json.dumps(plan, default=str, skipkeys=True).encode()  # some keys are bytes
    if act > 0.9:
        text = rng.choice(
            (b"[" * 5000, b"null", b"[]", b"1" * 5000, b'{"version":1}', b"\xff", b"")
        )
    files[REPAIR_NAME] = b"%08x\n%s\n" % (crc32c(text), text)
    return "journal"


def _name(rng: Random, segments: list[Segment], files: Files) -> str:
    one = rng.choice(segments)
    digits = rng.choice((0, 1, 5, 1 << 62, 1 << 63, (1 << 64) - 1, 10**20 - 1, one.header[5] + 1))
    one.name = segment.file_name(digits)
    if rng.random() < 0.5 and digits < 1 << 64:
        one.forced_header[5] = digits
    return "name of a segment"


def _note(rng: Random, segments: list[Segment], files: Files) -> str:
    name = rng.choice(
        ("LOCK", "restore.wal", "x.wal", "00000000000000000001.wal.wal", "cursors/.lock")
    )
    files[name] = rng.choice((b"", b"\xff" * 300, b"process 1 on x", b"\x1b[2J"))
    return f"note {name}"


STRUCTURES: Final[dict[str, Forgery]] = {
    "frame field": _frame_field,
    "frame order": _frame_order,
    "directory": _directory,
    "integers": _integers,
    "msgpack": _packed_column,
    "marks": _marks,
    "body": _body,
    "segment header": _segment_header,
    "footer": _footer,
    "behind": _behind,
    "name": _name,
}
FILES: Final[dict[str, Forgery]] = {
    "checkpoint": _checkpoint,
    "cell": _cell,
    "cursor": _cursor,
    "journal": _journal,
    "note": _note,
}
KINDS: Final = {**STRUCTURES, **FILES}


def forge(rng: Random, files: Files) -> list[str]:
    """Change files of a log that nobody damaged; return what was changed."""
    segments = model.parse(files)
    done: list[str] = []
    is_rewritten = False
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.choice(sorted(KINDS))
        what = KINDS[kind](rng, segments, files)
        if what is not None:
            done.append(what)
            is_rewritten |= kind in STRUCTURES
    if is_rewritten:
        for name in [name for name in files if segment.parse_file_name(name) is not None]:
            del files[name]
        files |= model.write(segments, is_chained=rng.random() < 0.8)
        for name in (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME):
            if rng.random() < 0.5:  # they speak of other bytes now
                files.pop(name, None)
    return done
