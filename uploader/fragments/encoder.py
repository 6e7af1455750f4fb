"""The program of a process that encodes fragments for another one, and what the two say to each other.

A message is the length of its head and the head, a msgpack array; the head ends with the sizes of what
follows it. A request has the columns of frames behind it, an answer the encoded object. Each request is
whole in itself, so a process may be killed at any time.

Started by :mod:`uploader.fragments.encoder_processes`, whose end it sees as the end of the connection.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Final

import msgpack

from uploader.format.setsum import Setsum
from uploader.fragments.fragment_builder import EncodedFragment, FragmentBuilder
from uploader.fragments.fragment_file import FORMAT_VERSION
from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format.frame import FRAME_VERSION, FrameHeader

GREETING: Final = b"walstore encoder, frames %d, fragments %s\n" % (FRAME_VERSION, FORMAT_VERSION)
"""Its first bytes, once it can be used. Another program may have been installed since its parent began."""

_FIELDS: Final = tuple(field.name for field in fields(FrameHeader))
_SIZE: Final = struct.Struct("<I")
_AT_ONCE: Final = 512
"""So many pieces are passed to the system together, which takes 1024."""
_NICENESS: Final = 10
"""On a busy machine appends go first. Their p99 was 1.4 times as long as without an encoder; 2.1 times with
the same priority (bench/test_upload.py)."""

Buffer = bytes | bytearray | memoryview


def main(*descriptors: int) -> None:
    """Serve connections until the other side closes them, or dies.

    Two are enough: while one fragment is encoded, the next is received, which takes half as long.
    """
    # Whoever stops its parent does not mean this process, which ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    turn = threading.Lock()
    threads = [threading.Thread(target=serve, args=(one, turn)) for one in descriptors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve(descriptor: int, turn: threading.Lock) -> None:
    """Serve one connection, and encode whenever it is its turn."""
    with socket.socket(fileno=descriptor) as connection:
        try:
            connection.sendall(GREETING)
            while True:
                answer(connection, turn)
        except (EOFError, ConnectionError):
            return


def answer(connection: socket.socket, turn: threading.Lock) -> None:
    """Answer one request; EOFError or OSError if the other side is gone."""
    head, blobs = receive(connection)
    try:
        with turn:
            made = _encode(head, blobs)
    except Exception as error:  # noqa: BLE001 - the other side does it again, and raises it there
        send(connection, [f"{type(error).__name__}: {error}"], ())
    else:
        send(connection, [made.start, made.limit, made.setsum.hexdigest()], [made.data])


def request(
    connection: socket.socket,
    batches: Sequence[FrameBatch],
    *,
    timestamp_us: int,
    writer: str | None,
    closings: int | None,
) -> EncodedFragment:
    """Let the other side encode a fragment, see :class:`FragmentBuilder`; OSError, EOFError.

    RuntimeError if it could not.
    """
    listed, blobs = [], []
    for batch in batches:
        columns = [(kind, *batch.column(kind)) for kind in batch.kinds]
        listed.append(
            [
                [getattr(batch.header, name) for name in _FIELDS],
                batch.start,
                batch.limit,
                [[kind, encoding] for kind, encoding, _ in columns],
            ]
        )
        blobs += [data for _, _, data in columns]
    send(connection, [timestamp_us, writer, closings, listed], blobs)
    head, answered = receive(connection)
    if len(head) == 1:
        raise RuntimeError(head[0])
    start, limit, setsum = head
    (data,) = answered
    assert isinstance(data.obj, bytes)
    return EncodedFragment(data.obj, start, limit, Setsum.from_hexdigest(setsum))


def receive_greeting(connection: socket.socket) -> bytes:
    """Return the first bytes of an encoder; none if it ended instead."""
    return connection.recv(len(GREETING))


def _encode(head: Sequence[Any], blobs: Sequence[memoryview]) -> EncodedFragment:
    timestamp_us, writer, closings, listed = head
    left = iter(blobs)
    batches: list[Batch] = []
    for header, start, limit, kinds in listed:
        columns = {kind: (encoding, next(left)) for kind, encoding in kinds}
        batches.append(FrameBatch.of_columns(FrameHeader(*header), columns).slice(start, limit))
    builder = FragmentBuilder(timestamp_us=timestamp_us, writer=writer, closings=closings)
    return builder.finish(batches)


def send(connection: socket.socket, head: Sequence[Any], blobs: Sequence[Buffer]) -> None:
    """Send a message; OSError. The connection blocks, perhaps for a limited time."""
    packed = msgpack.packb([*head, [len(blob) for blob in blobs]])
    left = deque(memoryview(piece) for piece in (_SIZE.pack(len(packed)), packed, *blobs))
    while left:
        sent = connection.sendmsg(list(islice(left, _AT_ONCE)))
        while left and sent >= len(left[0]):
            sent -= len(left.popleft())
        if sent:
            left[0] = left[0][sent:]


def receive(connection: socket.socket) -> tuple[list[Any], list[memoryview]]:
    """Return the next message; EOFError if the other side is gone, OSError. If there is one blob, it is
    all of its buffer.
    """
    (size,) = _SIZE.unpack(_receive_bytes(connection, _SIZE.size))
    *head, sizes = msgpack.unpackb(_receive_bytes(connection, size))
    data = memoryview(_receive_bytes(connection, sum(sizes)))
    blobs = []
    at = 0
    for size in sizes:
        blobs.append(data[at : at + size])
        at += size
    return head, blobs


def _receive_bytes(connection: socket.socket, size: int) -> bytes:
    """Return so many bytes. The system puts them where they stay, while others have the interpreter."""
    data = connection.recv(size, socket.MSG_WAITALL)
    while len(data) < size:  # one of the two was stopped for a while, or is gone
        more = connection.recv(size - len(data), socket.MSG_WAITALL)
        if not more:
            raise EOFError("the other process is gone")
        data += more
    return data
