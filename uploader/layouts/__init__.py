"""Opens a root of either layout, and contains the swapped manifest."""
