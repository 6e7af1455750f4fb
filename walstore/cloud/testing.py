"""What tests of programs on the cloud tier can use: the same objects as in ``uploader.testing``."""

from uploader import testing
from uploader.testing import *  # noqa: F403 - all public names, listed once

__all__: list[str] = []
__all__ += testing.__all__
