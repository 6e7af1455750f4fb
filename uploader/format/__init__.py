"""What the objects of a stored log mean. Pure: bytes in, values out."""
