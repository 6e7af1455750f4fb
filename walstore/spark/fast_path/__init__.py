"""The fast path: Spark's own Parquet reader reads fragments that Spark can open itself.

``reading.py`` decides and builds the frame; ``planner.py`` chooses the fragments and checks their footers;
only ``jvm.py`` calls the JVM, and converts the fragments' columns to those of ``format("walstore")``.
"""
