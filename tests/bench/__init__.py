"""Tests of the programs in ``bench``."""
