"""Named, durable positions in a log."""
