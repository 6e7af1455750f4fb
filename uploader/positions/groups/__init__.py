"""Groups of logs in object storage: members in any number of processes share one object by swaps."""
