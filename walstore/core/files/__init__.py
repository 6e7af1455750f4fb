"""A log on disk: its files, found, read and written. Blocking."""
