"""What must hold when anything stops anywhere, over a real S3 server: the scenarios of ``test_40_upload``."""

from __future__ import annotations

import pytest

from tests.scenarios import test_40_upload

pytestmark = [pytest.mark.s3, pytest.mark.timeout(300)]

globals().update({name: each for name, each in vars(test_40_upload).items() if name[:5] == "test_"})
