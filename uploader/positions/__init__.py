"""Positions in logs of a store: cursors and groups."""
