"""The promises of a log, one file per noun, for every way in which a program may have one (``faces.py``)."""
