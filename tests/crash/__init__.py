"""Power loss and kill -9 against the real program: its system calls are recorded, cut off, and judged."""
