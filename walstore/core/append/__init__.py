"""The path of records from a caller to the disk."""
