"""CoordinatedTransaction: the interface of one transaction over several logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from walstore.errors import WalClosedError
from walstore.log.wal import Wal
from walstore.messages.publisher import Publisher


class CoordinatedTransaction:
    """Messages to several logs that become visible all together or not at all.

    Made by :meth:`walstore.messages.Coordinator.transaction`.
    """

    def __init__(
        self, publisher: Publisher, outputs: Collection[str], position: bytes | None
    ) -> None:
        """Not for callers."""
        self._publisher: Publisher | None = publisher
        self._outputs = outputs
        self.position = position
        """Value to store with the commit, for example the position of the input; set it. If it is not set,
        the previous one stays."""

    async def publish(
        self,
        log: Wal,
        value: bytes,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
    ) -> int:
        """Append a message to one of the coordinator's outputs; return its offset when accepted.

        Options as for :meth:`walstore.Wal.append`. ValueError for a log that is not an output,
        WalClosedError outside the transaction's block. Let errors leave the block: they roll the
        transaction back.
        """
        if self._publisher is None:
            raise WalClosedError("the transaction has ended; publish inside its async with block")
        if log.log_id not in self._outputs:
            raise ValueError(f"{log!r} is not among the outputs the coordinator was opened with")
        return await self._publisher.publish_uncommitted(
            log, value, key=key, stream=stream, headers=headers, timestamp_us=timestamp_us
        )

    def end(self) -> None:
        """Refuse further messages. Called when the block is left."""
        self._publisher = None
