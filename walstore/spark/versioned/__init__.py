"""Versioned collections for Spark: reading them, and their compaction. docs/spark_collections.md."""
