"""The path of records from memory, the disk or the tier to a reader."""
