"""The streams of a log that is written straight to object storage: which there are, and which are closed."""
