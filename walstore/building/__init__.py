"""Makes a log directory out of records that exist already, as a restore does. Blocking."""
