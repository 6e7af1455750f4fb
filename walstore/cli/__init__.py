"""The command line: one file per verb, on the public parts of walstore and uploader. Extra ``cli``.

Nobody imports this package but the console script ``walstore`` and ``python -m walstore.cli``. What
every verb keeps to, and the exit codes, are written down in docs/cli.md.
"""
