"""The two layouts of a root behind one door, and the swapped manifest."""
