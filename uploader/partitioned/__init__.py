"""Partitioned logs: one name, several logs, ``orders/0``, ``orders/1``, … as Kafka has them."""

from uploader.partitioned.partitions import (
    PARTITIONS,
    create_partitions,
    partition_url,
    read_partitions,
)

__all__ = ["PARTITIONS", "create_partitions", "partition_url", "read_partitions"]
