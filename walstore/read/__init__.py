"""How records get from memory, the disk or the tier to a reader."""
