"""Fuzzing the files of a log directory: whatever lies there, callers see typed errors and right records."""
