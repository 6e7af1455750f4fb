"""A replicated log on virtual time: machines that lose power, a bad network, primaries that come and go."""
