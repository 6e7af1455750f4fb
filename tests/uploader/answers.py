"""Strange answers to a put that leave its outcome to be found out, for every protocol that puts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from uploader.stores.port import PreconditionFailedError
from uploader.testing.faults import Fault, conflict, fail, happen_then_fail, timeout


def refusal() -> PreconditionFailedError:
    """Return the error for a 412, whether there is a reason for it or not."""
    return PreconditionFailedError("refused (injected)", key="somewhere")


PUT_FAULTS: Final[dict[str, Callable[[], Fault]]] = {
    "refused": lambda: fail(timeout("not_written")),
    "lost": lambda: fail(timeout()),
    "happened": lambda: happen_then_fail(timeout()),
    "409": lambda: fail(conflict()),
    "412 out of nothing": lambda: fail(refusal()),
    "412 about an earlier attempt": lambda: happen_then_fail(refusal()),
}
