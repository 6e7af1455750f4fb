"""The dirty log: which of many logs were written, told in one log of their own."""
