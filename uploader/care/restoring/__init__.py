"""Restoring: a local log made from its fragments."""
