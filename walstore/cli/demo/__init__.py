"""The demo: the whole path once, on real data of this machine, with a kill in the middle.

A parent orchestrates and checks; a child process writes the log and is killed and restarted. What is
shown, and what is compared with what, is described in docs/cli.md ("Demo").
"""
