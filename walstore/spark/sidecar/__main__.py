"""``walstore sidecar`` as a program of its own, for ``spark-submit``, with the same arguments."""

from __future__ import annotations

import sys

from walstore.cli.app import run

if __name__ == "__main__":
    sys.exit(run(["sidecar", *sys.argv[1:]]))
