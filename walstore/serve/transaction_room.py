"""TransactionRoom: what the open transactions of all clients may hold in memory. No I/O."""

from __future__ import annotations

from typing import Final

from walstore.core.append.budgets import ChannelBudget
from walstore.errors import LimitExceededError

OWN_BYTES: Final = 64 << 10
"""So much those of one client hold in any case, so that nobody keeps it from small transactions."""


class TransactionRoom:
    """A part of the room for requests, so that transactions which nobody ends keep no request out.

    Nobody waits for it: a transaction without room is written to its file, or refused. So two that hold
    some and need more do not wait for each other. Belongs to the event loop of the server.
    """

    def __init__(self, budget: ChannelBudget, most_bytes: int) -> None:
        """Take up to ``most_bytes`` of what ``budget`` has for all."""
        self.most_bytes = most_bytes
        self.used_bytes = 0
        """What the transactions of all clients take, beyond what each client has of its own."""
        self._share = budget.share(lambda: None)

    def change(self, before_bytes: int, after_bytes: int) -> bool:
        """Let a client hold another number of bytes; False, and nothing changes, if there is no room."""
        added = max(after_bytes - OWN_BYTES, 0) - max(before_bytes - OWN_BYTES, 0)
        if added > 0:
            if self.used_bytes + added > self.most_bytes or not self._share.has_room(added):
                return False
            self._share.take(added)
        self.used_bytes += added
        if added < 0:
            self._share.give(-added)
            self._share.serve()
        return True

    def refusal(self) -> LimitExceededError:
        """Return the error of a transaction for which there is no room."""
        return LimitExceededError(
            f"the open transactions of all clients may hold {self.most_bytes} bytes in the server, and there "
            "is no room for more; this one was rolled back and nothing was written: make it again later, "
            "have fewer open at a time, or let the server have larger request_bytes",
            limit=self.most_bytes,
            retriable=True,
        )
