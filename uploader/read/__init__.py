"""How records get from the store to a reader."""
