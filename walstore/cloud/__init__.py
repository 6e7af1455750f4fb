"""The cloud tier under walstore's own name: the same objects as in the package ``uploader``. Extra ``cloud``.

Without the extra's packages the import raises :class:`walstore.MissingExtraError`. If another module named
``uploader`` comes first on ``sys.path``, it raises ImportError, which names the file. ``import walstore``
loads nothing of it.
"""

import uploader
from uploader import *  # noqa: F403 - all public names, listed once
from walstore.core.runtime.extras import hiding

if not hasattr(uploader, "CloudTier"):
    raise ImportError(hiding(uploader.__file__), name="uploader", path=uploader.__file__)

__all__: list[str] = []
__all__ += uploader.__all__
