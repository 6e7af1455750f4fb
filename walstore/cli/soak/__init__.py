"""``walstore soak``: a load on a log whose processes are killed, and every record of it checked."""
