"""Garbage collection: taking the oldest records out of a log, in steps that may die anywhere."""
