"""Versioned collections: tables in object storage that change over time."""
