"""Cursors in the cloud: how far consumers have read, and what is pinned against collection."""
