"""The root of a stored log in either layout: how it is read and changed."""
