"""``python -m tests.fuzz.frames``: a server under a million frames, many of which no client of ours sends.

Each seed is a connection: valid requests, and requests with something wrong in the head, the payload, the
frame or the order, cut into pieces anywhere. The server is the real one, on a real log, without a socket.

Rules
  F1  Nothing raises but what ends the connection, and no request ends by a defect.
  F2  Each request has at most one answer; all have one once everything was cancelled, if the server did not
      end the connection.
  F3  What a client holds of the server's memory is given back.
  F4  An append that was answered is in the log, as it was sent; so is what another client appends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgpack

from walstore import Settings, Wal
from walstore.net.wire.message import HEADER, PREAMBLE, VERSION, Decoder, Kind, encode
from walstore.net.wire.records import pack_values
from walstore.net.wire.verbs import VERBS
from walstore.serve import Server, ServeSettings
from walstore.serve.client_connection import ClientConnection

FRAMES: Final = 1_000_000
FRAMES_EACH: Final = 100
"""Of a connection that the server does not end before."""
CONNECTIONS_EACH: Final = 50
"""Of a log; then the next one begins."""
SETTINGS: Final = ServeSettings(message_bytes=4 << 20, credit_bytes=4 << 20, transactions=4)
_SHOWN: Final = 10
ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, 1e300),
    *(float("nan"), float("inf"), "", "x", "..", "a/../b", "\0", "é" * 300, "x" * 100_000),
    *(b"", b"\0", b"\xff" * 100, [], {}, [[]], {"a": 1}, {1: 2}, [None] * 50, [[[[[[[]]]]]]]),
)


class Wire(asyncio.Transport):
    """What the server writes to, instead of a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder(most_bytes=1 << 26)
        self.answers: list[Any] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        if not self.is_closed:
            self.answers += self.decoder.feed(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        pass  # the fuzzer is a client that does not care

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Sent(NamedTuple):
    """A frame, and what is known of it."""

    data: bytes
    number: int
    """Its id; 0 if it is none that is answered."""
    is_garbled: bool = False
    """Whether anything may be read in it, or in what follows."""
    values: tuple[bytes, ...] = ()
    """Of a valid append."""


class Defects(logging.Handler):
    """Collects what the server and asyncio call a defect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.found.append(f"{record.getMessage()}: {error!r}")


# -- frames ----------------------------------------------------------------------------------


def hello(number: int = 1, **fields: Any) -> bytes:
    return b"".join(encode(Kind.HELLO, number, {"version": VERSION, "log": None, **fields}))


def request(rng: Random, number: int) -> Sent:
    """Return a valid request."""
    match rng.randrange(6):
        case 0 | 1:
            values = tuple(
                b"%d/%d" % (number, at) * rng.choice((1, 1, 50)) for at in range(rng.randint(1, 5))
            )
            head = ["memory", pack_values(values), None]
            return Sent(b"".join(encode(Kind.APPEND, number, head, values)), number, values)
        case 2:
            head = [rng.randint(1, 50), None, 1 << 16, rng.choice((0, 0.01)), "durable"]
            return Sent(b"".join(encode(Kind.READ, number, head)), number)
        case 3:
            cancelled = rng.randint(1, max(number, 1))
            return Sent(b"".join(encode(Kind.CANCEL, cancelled, None)), 0)
        case _:
            name, arguments, payload = call(rng)
            return Sent(b"".join(encode(Kind.CALL, number, [name, arguments], payload)), number)


def call(rng: Random) -> tuple[str, list[Any], list[bytes]]:
    """Return a valid call: its name, arguments and payload."""
    name = rng.choice("abc")
    group = [name, ["earliest", None, 1.0, 3, 10, True, None]]
    options: dict[str, list[Any]] = {
        "wait_durable": [rng.randint(1, 99), "disk"],
        "trim": [1],
        "open_stream": [name, {}],
        "close_stream": [name],
        "offset_at": [rng.randint(0, 1 << 50)],
        "timestamp_at": [1],
        "fence": [name, "f"],
        "last_sequence": [name],
        "open_cursor": [name, "earliest", None],
        "move_cursor": [name, [1, 1, b"t" * 8, 1, 0, 0, "w"], b"w" * 8, False, "commit", 1],
        "delete_cursor": [name],
        "group": rng.choice(
            (
                ["open", *group],
                ["fetch", *group, b"m", 2, 0.0],
                ["settle", *group, [1]],
                ["give_back", *group, b"m", 1, 1, 0.0],
                ["extend", *group, b"m", 1, 1],
                ["take_back", *group, b"m", [[1, 1], [2, 1]]],
                ["leave", *group, b"m", [[1, 1], [2, 1]]],
            )
        ),
        "begin": [rng.randint(1, 40), None, [None, None, None, None, None]],
        "add": [rng.randint(1, 5), pack_values([b"t"]), None],
        "commit": [rng.randint(1, 5), None],
        "rollback": [rng.randint(1, 5)],
        "append_group": ["memory", pack_values([b"g"]), [None, None, None, None], [None] * 6],
    }
    chosen = rng.choice(sorted(VERBS))
    payload = {"add": [b"t"], "append_group": [b"g"]}.get(chosen, [])
    return chosen, options.get(chosen, []), payload


def damage(rng: Random, made: Sent) -> Sent:
    """Return a request with something wrong."""
    data = bytearray(made.data)
    match rng.randrange(9):
        case 0 | 1 | 2 | 3 | 4:
            return _other_head(rng, made)
        case 5:  # another kind
            data[HEADER.size - 1] = rng.choice((0, 2, 3, 4, 6, 7, 8, 9, 255))
        case 6:  # bits
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return Sent(bytes(data), made.number, is_garbled=True)
        case 7:  # a payload of another length, with the length of the frame right
            tail = rng.randbytes(rng.randint(1, 40))
            data += tail
            struct.pack_into("<I", data, 0, len(data) - 4)
        case _:  # lengths
            struct.pack_into(
                "<I", data, rng.choice((0, 8)), rng.choice((0, 1, 9, 1 << 20, 2**32 - 1))
            )
            return Sent(bytes(data), made.number, is_garbled=True)
    return Sent(bytes(data), made.number)


def _other_head(rng: Random, made: Sent) -> Sent:
    _, number, head_bytes, kind = HEADER.unpack_from(made.data)
    head = msgpack.unpackb(made.data[HEADER.size : HEADER.size + head_bytes], strict_map_key=False)
    packed = msgpack.packb(_replace(rng, head))
    rest = packed + made.data[HEADER.size + head_bytes :]
    header = HEADER.pack(HEADER.size - 4 + len(rest), number, len(packed), kind)
    return Sent(header + rest, made.number)


def _replace(rng: Random, head: Any) -> Any:
    """Return a head with one thing in it replaced, left out or repeated."""
    if not isinstance(head, list | dict) or not head or not rng.randrange(4):
        return rng.choice(ODD)
    if isinstance(head, dict):
        key = rng.choice(list(head))
        return {**head, key: _replace(rng, head[key])}
    at = rng.randrange(len(head))
    match rng.randrange(6):
        case 0:
            return head[:at] + head[at + 1 :]
        case 1:
            return head[: at + 1] + head[at:]
        case _:
            return [*head[:at], _replace(rng, head[at]), *head[at + 1 :]]


def frames(rng: Random) -> list[Sent]:
    """Return the frames of one connection, its greeting first."""
    wrong = rng.choice((0.01, 0.05, 0.5))
    made: list[Sent] = [Sent(PREAMBLE, 0), Sent(hello(), 1)]
    if rng.random() < 0.05:  # a greeting that is none
        made[rng.randrange(2)] = damage(rng, made[1])
    for number in range(2, 2 + FRAMES_EACH):
        number = number if rng.random() > 0.002 else rng.randint(0, number)
        one = request(rng, number)
        made.append(damage(rng, one) if rng.random() < wrong else one)
    return made


# -- one connection ----------------------------------------------------------------------------


async def connect(server: Server, seed: int) -> tuple[int, list[str], dict[int, tuple[bytes, ...]]]:
    """Send the frames of a seed; return how many were taken, what was wrong, and appended records."""
    rng = Random(seed)
    made, wire, problems = frames(rng), Wire(), list[str]()
    connection = ClientConnection(server)
    connection.connection_made(wire)
    taken = 0
    try:
        for one in made:
            for piece in _cut(rng, one.data):
                connection.data_received(piece)
            taken += 1
            if wire.is_closed:
                break
            if rng.random() < 0.2:
                await asyncio.sleep(0)
        if not wire.is_closed and not any(one.is_garbled for one in made[:taken]):
            await _settle(connection, wire, made[:taken], problems)
    except Exception as error:  # noqa: BLE001 - rule F1
        problems.append(f"F1: {error!r}")
    wire.close()
    connection.connection_lost(None)
    try:
        async with asyncio.timeout(60):
            await connection.ended()
    except TimeoutError:
        problems.append("F2: requests go on without their client")
    if connection.used_bytes:
        problems.append(f"F3: {connection.used_bytes} bytes are still counted")
    if held := server.incoming.used_bytes + server.outgoing.used_bytes:
        problems.append(f"F3: {held} bytes of the budgets of all clients are still counted")
    return taken, problems, _appended(made, wire.answers)


def _cut(rng: Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.7 or len(data) < 2:
        return [data]
    ends = sorted({rng.randrange(1, len(data)) for _ in range(rng.randint(1, 3))})
    return [data[low:high] for low, high in zip([0, *ends], [*ends, len(data)], strict=True)]


async def _settle(
    connection: ClientConnection, wire: Wire, sent: list[Sent], problems: list[str]
) -> None:
    """Cancel everything, and compare the answers with the requests."""
    numbers = Counter(one.number for one in sent if one.number)
    for number in numbers:
        connection.data_received(b"".join(encode(Kind.CANCEL, number, None)))
    async with asyncio.timeout(60):
        await connection.ended()
    greeted = any(answer.kind == Kind.DONE and answer.id == 1 for answer in wire.answers)
    if wire.is_closed or not greeted:
        return  # what follows a greeting that was refused waits until the connection is dropped
    answered = Counter(answer.id for answer in wire.answers if answer.kind != Kind.GOODBYE)
    for number, count in answered.items():
        if number and count > numbers[number] and number in numbers:
            problems.append(f"F2: {count} answers to {numbers[number]} requests {number}")
    problems += [f"F2: no answer to {n}" for n in numbers if n not in answered and _whole(sent, n)]


def _whole(sent: list[Sent], number: int) -> bool:
    """Whether the frame with this number certainly arrived as a request with that number."""
    for one in sent:
        if one.number == number:
            _, found, _, kind = HEADER.unpack_from(one.data)
            return found == number and kind in (Kind.APPEND, Kind.READ, Kind.CALL)
    return False


def _appended(made: list[Sent], answers: list[Any]) -> dict[int, tuple[bytes, ...]]:
    """Return the records of valid appends that were answered, by their first offset."""
    if any(one.is_garbled for one in made):
        return {}
    once = Counter(one.number for one in made)
    sent = {one.number: one.values for one in made if one.values and once[one.number] == 1}
    return {
        answer.head[0]: sent[answer.id]
        for answer in answers
        if answer.kind == Kind.DONE and answer.id in sent and answer.head[2] is None
    }


# -- many --------------------------------------------------------------------------------------


async def run_log(directory: Path, seeds: Iterable[int]) -> tuple[int, list[str]]:
    """Send the frames of several seeds to one server; return how many, and what was wrong."""
    defects, problems, total = Defects(), list[str](), 0
    logging.getLogger("walstore").addHandler(defects)
    logging.getLogger("asyncio").addHandler(defects)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: defects.found.append(str(context)))
    kept: dict[int, tuple[bytes, ...]] = {}
    async with (
        Wal.open(directory / "log", settings=Settings(sync="os")) as wal,
        Server.open(wal, unix=directory / "s.sock", settings=SETTINGS) as server,
    ):
        for seed in seeds:
            taken, wrong, appended = await connect(server, seed)
            total += taken
            kept |= appended
            wrong += [f"F1: {text}" for text in defects.found]
            defects.found.clear()
            problems += [f"seed {seed}: {text}" for text in wrong]
            offset = await wal.append(b"another client", durability="memory")
            kept[offset] = (b"another client",)
    async with Wal.open(directory / "log") as wal:
        values = {}
        async with wal.reader(wal.head, follow=False) as reader:
            async for record in reader:
                values[record.offset] = record.value
        for first, expected in kept.items():
            found = tuple(values.get(first + at) for at in range(len(expected)))
            if first >= wal.head and found != expected:
                problems.append(f"F4: at {first} is {found}, not {expected}")
    return total, problems


def work(seeds: list[int]) -> tuple[int, list[str]]:
    """Run the seeds of one log, in this process."""
    logging.getLogger("walstore").propagate = False
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="walstore-frames-", dir=parent) as directory:
        return asyncio.run(run_log(Path(directory), seeds))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frames", description=__doc__)
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began, total, connections, problems = time.monotonic(), 0, 0, list[str]()
    with ProcessPoolExecutor(options.workers) as pool:
        seed = options.first
        while total < options.frames and len(problems) < _SHOWN:
            shares = []
            for _ in range(4 * options.workers):
                shares.append([*range(seed, seed + CONNECTIONS_EACH)])
                seed += CONNECTIONS_EACH
            for taken, found in pool.map(work, shares):
                total += taken
                connections += CONNECTIONS_EACH
                problems += found
    print(*problems[:_SHOWN], sep="\n")
    seconds = time.monotonic() - began
    print(f"{total} frames on {connections} connections, {len(problems)} problems, {seconds:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
