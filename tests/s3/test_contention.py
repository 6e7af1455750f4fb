"""Two writers at one prefix of a real S3 server: the scenarios of ``test_51_cloud_contention``."""

from __future__ import annotations

import pytest

from tests.scenarios import test_51_cloud_contention

pytestmark = [pytest.mark.s3, pytest.mark.timeout(300)]

globals().update(
    {
        name: each
        for name, each in vars(test_51_cloud_contention).items()
        if name[:5] == "test_" or name == "inner"
    }
)
