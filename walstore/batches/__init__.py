"""Records in memory: accepted, batched, selected, joined. Pure."""
