"""Logs of other machines: the protocol, and its client."""
