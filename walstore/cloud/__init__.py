"""The cloud tier under walstore's own name: the same objects as in the package ``uploader``. Extra ``cloud``.

``uploader`` is a common name for a module; a program that has one of its own imports this instead. Without
the extra's packages the import raises :class:`walstore.MissingExtraError`. ``import walstore`` loads nothing
of it.
"""

import uploader
from uploader import *  # noqa: F403 - all public names, listed once

__all__: list[str] = []
__all__ += uploader.__all__
