"""``python -m walstore``: the command line, as the console script ``walstore``."""

from walstore.cli.__main__ import main

if __name__ == "__main__":
    main()
