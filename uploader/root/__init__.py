"""The root of a stored log, whatever its layout, and how it is read and changed."""
