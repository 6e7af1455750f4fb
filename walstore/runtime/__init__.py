"""Threads, time, waiting and what programs watch: nothing here knows what a log is."""
