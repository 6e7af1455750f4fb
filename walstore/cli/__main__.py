"""``python -m walstore.cli``: as ``python -m walstore``."""

from walstore.__main__ import main

if __name__ == "__main__":
    main()
