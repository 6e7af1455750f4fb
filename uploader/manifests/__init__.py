"""Manifests: what names the fragments of a log, the tree of its snapshots, and how it is changed."""
