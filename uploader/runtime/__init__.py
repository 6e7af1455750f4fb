"""Tasks and threads that many stored logs share."""
