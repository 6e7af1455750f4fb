"""Versioned collections on virtual time: programs that write, read, compact and die, over a bad network."""
