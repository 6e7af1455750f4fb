"""Rebuilding a damaged log of the default layout: keeps what its fragments prove, reports the rest."""
