"""Object stores: the same objects as in ``uploader.stores``, whose documentation says more."""

from uploader import stores
from uploader.stores import *  # noqa: F403 - all public names, listed once

__all__: list[str] = []
__all__ += stores.__all__
