"""An open log: what Wal and ReadonlyWal are made of."""
