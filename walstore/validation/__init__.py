"""Checks of what callers pass and of settings."""
