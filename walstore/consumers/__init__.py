"""Readers that keep their place in a cursor, or in the output."""
