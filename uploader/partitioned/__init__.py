"""Partitioned logs: one name, several logs, ``orders/0``, ``orders/1``, … as Kafka has them.

Writes into them are staged by many tasks and committed by one (``stager.py``, ``committer.py``).
"""

from uploader.partitioned.committer import Committer, Swept, finish_commits, sweep_staging
from uploader.partitioned.partitions import (
    PARTITIONS,
    create_partitions,
    open_partitions,
    partition_url,
    read_partitions,
)
from uploader.partitioned.sink_settings import SinkSettings
from uploader.partitioned.stager import Staged, Stager
from uploader.partitioned.write_id import WriteId, job_name

__all__ = [
    "PARTITIONS",
    "Committer",
    "SinkSettings",
    "Staged",
    "Stager",
    "Swept",
    "WriteId",
    "create_partitions",
    "finish_commits",
    "job_name",
    "open_partitions",
    "partition_url",
    "read_partitions",
    "sweep_staging",
]
