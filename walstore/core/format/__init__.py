"""The file formats of a log: bytes in, values out. No I/O."""
