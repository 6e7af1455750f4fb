"""Entry point of the console script ``walstore`` and of ``python -m walstore``: the command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from walstore.core.runtime.extras import MissingExtraError


def main() -> None:
    """Run the command line with the arguments of this process, and exit with its code."""
    _keep_standard_descriptors()
    signals: list[int] = []

    def remember(number: int, _frame: object) -> None:
        signals.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends the process

    # An import that is interrupted may show a traceback nobody can catch.
    signal.signal(signal.SIGINT, remember)
    try:
        run = _import()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if signals:
            raise KeyboardInterrupt
        code = 1 if run is None else run(sys.argv[1:])
    except KeyboardInterrupt:  # before or behind what the application itself handles
        sys.stderr.write("walstore: interrupted\n")
        code = 1
    # From here on the interpreter ends, and would show a traceback for a SIGINT. A verb that was stopped by a
    # signal ignores them, so that a user who sends two sees how it ended.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _import() -> Callable[[Sequence[str]], int] | None:
    """Return what runs a command line, or None after saying which package is missing."""
    try:
        from walstore.cli.app import run
    except MissingExtraError as error:
        sys.stderr.write(f"walstore: {error}\n")
        return None
    return run


def _keep_standard_descriptors() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed.

    Otherwise the next file that is opened, a segment of the log say, would take its place, and what is
    printed would go there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for ever


if __name__ == "__main__":
    main()
