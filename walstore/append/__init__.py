"""How records get from a caller to the disk."""
