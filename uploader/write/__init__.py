"""How records get to the store."""
