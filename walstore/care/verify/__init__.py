"""Verifying a log: every byte of it, with every damaged place named."""

from walstore.care.verify.verifying import Problem, VerifyReport, verify_directory

__all__ = ["Problem", "VerifyReport", "verify_directory"]
