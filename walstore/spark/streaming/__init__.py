"""Logs as streams: ``spark.readStream.format("walstore").load(location)``."""
