"""The client of a served log: :func:`walstore.connect` and what it returns."""
