"""The demo: the whole path once, on real data of this machine, with a kill in the middle.

``run`` is the parent, which starts and kills the writing process (``writer``) and reads everything back;
``checks`` compares what was read with what was appended. docs/cli.md ("Demo") describes the steps.
"""
