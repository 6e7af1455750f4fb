"""Groups: members that share the records of a log between them, each record for one of them at a time."""
