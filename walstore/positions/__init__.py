"""Cursors wherever they are: the handle, what it asks for, and the rule by which that is granted."""
