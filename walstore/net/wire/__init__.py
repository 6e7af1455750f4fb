"""The protocol between a served log and its clients: frames, errors, records. No I/O."""
