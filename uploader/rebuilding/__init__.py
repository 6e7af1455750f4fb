"""Rebuilding a damaged log of the default layout: what its fragments prove is kept, the rest is named."""
