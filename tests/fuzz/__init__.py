"""Fuzzing the files of a log and the objects of a bucket: callers see typed errors and right records."""
