"""Deterministic simulation of logs: the real code on virtual time, simulated disks and seeded chance.

``loop.py`` is the event loop, ``threads.py`` the threads, ``disk.py`` and ``files.py`` the disk.
``programs.py`` and ``actors.py`` use a log in every way at once,
and ``rules.py`` says what must be true whatever happens.
``cloud/`` is the same for logs in object storage.
``python -m tests.sim`` (``make sim``) runs many histories; ``python -m tests.sim --seed N`` shows one.
"""
