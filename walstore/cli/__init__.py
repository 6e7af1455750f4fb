"""The command line: the verbs by noun, on the public parts of walstore and uploader. Extra ``cli``.

Nobody imports this package but the console script ``walstore`` and ``python -m walstore``. What every verb
keeps to, and the exit codes, are written down in docs/cli.md.
"""

from walstore.core.runtime.extras import needs_extra

with needs_extra("cli", "the command line"):
    import aiofiles  # noqa: F401
    import rich  # noqa: F401
    import typer  # noqa: F401
