"""Threads, time, waiting, errors and statistics. Nothing here depends on the rest of a log."""
