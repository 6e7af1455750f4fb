"""Records in memory: accepted, batched, selected, concatenated. No I/O."""
