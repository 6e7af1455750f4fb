"""Integrity: whether a log in object storage is what its manifest says."""
