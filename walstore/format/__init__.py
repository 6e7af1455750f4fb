"""What the bytes of a log mean. Pure: bytes in, values out."""
