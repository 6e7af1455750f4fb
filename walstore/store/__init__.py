"""Many logs in one directory and one process."""
