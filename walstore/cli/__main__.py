"""Entry point of the console script ``walstore``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the arguments of this process, and exit with its code."""
    try:
        from walstore.cli.app import run
    except ModuleNotFoundError as error:
        from walstore.cli.errors import explain

        print(f"walstore: {explain(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
