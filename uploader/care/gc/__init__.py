"""Collection: garbage is planned, announced, dropped and deleted."""
