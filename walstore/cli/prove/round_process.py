"""One round of walstore prove, as a process: it forks others, so it has no thread and never opened a log."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections import Counter
from typing import Final

from walstore.cli.child_process import say
from walstore.cli.errors import leaves
from walstore.cli.prove.promises import BrokenPromiseError
from walstore.cli.prove.trials import BUCKET_TRIALS, DIRECTORY_TRIALS, RoundPlan

COUNTS: Final = "counts"
"""What the round did: a map of counts. The last message but for BROKEN."""
BROKEN: Final = "broken"
"""A rule was broken, or an error was raised that nobody expected: what in one line."""


def main() -> None:
    """Run the round that the arguments describe. The traceback of what was wrong goes to stderr."""
    plan = RoundPlan(**json.loads(sys.argv[1]))
    logging.getLogger("walstore").setLevel(logging.CRITICAL)  # damage is looked for here
    trials = DIRECTORY_TRIALS if plan.url is None else BUCKET_TRIALS
    counts: Counter[str] = Counter()
    try:
        trials[plan.kind].run(plan, counts)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        traceback.print_exc()
        say(COUNTS, dict(counts))
        say(BROKEN, _in_one_line(error))
    else:
        say(COUNTS, dict(counts))


def _in_one_line(error: BaseException) -> str:
    """Return what was wrong; of a child's traceback only its error."""
    (error, *_) = leaves(error)
    line = str(error).rstrip().rpartition("\n")[2].strip()
    if not isinstance(error, BrokenPromiseError):
        line = f"{type(error).__name__}: {line}"
    for note in getattr(error, "__notes__", ()):
        line += f", {note}"
    return line.removeprefix("walstore.cli.prove.promises.BrokenPromiseError: ")


if __name__ == "__main__":
    main()
