"""Repairing a log that does not open."""
