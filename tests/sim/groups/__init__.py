"""Groups of a log in object storage on virtual time: members in several processes, over a bad network."""
