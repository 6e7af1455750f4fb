"""Deterministic simulation of logs in object storage: the real code over a simulated network and store.

``network.py`` is the store and what may become of a request, ``ledger.py`` the rules and the book that is
kept to check them. ``writing.py``, ``machines.py``, ``reading.py`` and ``keeping.py`` are the programs;
``history.py`` starts and kills them, and ``ending.py`` looks at what they left.
"""
