"""EngineSource: an open log as its replicator sees it; and the beginning of replication."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from walstore.errors import WalClosedError, WalError
from walstore.files.directory import read_segment_header
from walstore.files.frame_walk import frames_of, read_bytes
from walstore.format import segment
from walstore.ports import Replicator
from walstore.runtime.error_mapping import copy_error

if TYPE_CHECKING:
    from walstore.log.engine import Engine


class EngineSource:
    """Implements :class:`walstore.ports.ReplicatedLog`. Belongs to the event loop of the log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.extents: list[tuple[int, int, int, int, bool]] = []
        """As the port says."""

    def look(self) -> None:
        """Note which segments there are. Blocking, for the writer's thread."""
        engine = self._engine
        *sealed, active = engine.opened.tail.summaries()
        for summary in (*sealed, active):
            header = read_segment_header(engine.fs, engine.path, summary.start)
            is_sealed = summary is not active
            size = summary.data_bytes
            if is_sealed:
                path = engine.path / segment.file_name(summary.start)
                with contextlib.closing(engine.fs.open(path, "r")) as file:
                    size = file.size()
            extent = (summary.start, header.salt or 0, header.created_us, size, is_sealed)
            self.extents.append(extent)

    async def read(self, start: int, created_us: int, position: int, size: int) -> bytes:
        """As the port says."""
        path = self._engine.path / segment.file_name(start)
        fs = self._engine.fs
        return await self._engine.reading.run(read_bytes, fs, path, created_us, position, size)

    async def frames(self, start: int) -> Sequence[Sequence[int]]:
        """As the port says."""
        path = self._engine.path / segment.file_name(start)
        return await self._engine.reading.run(frames_of, self._engine.fs, path)

    def on_replicated(self, limit: int) -> None:
        """As the port says."""
        replicated = self._engine.state.replicated
        if replicated is not None:
            replicated.advance(limit)

    def on_too_few(self, error: WalError) -> None:
        """As the port says."""
        replicated = self._engine.state.replicated
        if replicated is not None:
            replicated.fail_waiting(lambda _: copy_error(error))

    def on_failed(self, error: Exception) -> None:
        """As the port says."""
        self._engine.writer.fail(error)
        self._engine.request_close()


async def begin_to_replicate(engine: Engine, replicator: Replicator) -> None:
    """Begin to copy, and return once enough copies have a frame of this opening.

    Closes the log if that fails: StorageUnavailableError, FencedError.
    """
    try:
        source = EngineSource(engine)
        await engine.writer.attach(replicator.tee, source.look)
        replicator.start(source, engine.opened.log_id)
        await engine.writer.mark_epoch()
        await replicator.wait_all()
    except BaseException as error:
        with contextlib.suppress(WalError):
            await engine.close()
        failure = engine.writer.failure
        if isinstance(error, WalClosedError) and failure is not None:
            cause = failure.__cause__
            raise copy_error(cause if isinstance(cause, WalError) else failure) from cause
        raise
