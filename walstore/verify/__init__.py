"""Verifying a log: every byte of it, with every damaged place named."""
