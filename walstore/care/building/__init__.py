"""Builds a log directory from existing records, for a restore. Blocking."""
