"""Replication of a log to other machines: its files, byte by byte, and who may write them."""
