"""Replication of a log to other machines: its files, byte by byte, and the right to write them."""
