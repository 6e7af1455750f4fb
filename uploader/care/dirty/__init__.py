"""The dirty log: one log that records which of many logs were written."""
