"""Fragments: the Parquet files that hold a log's records in object storage."""
