"""What the continuous integration runs, and in which order."""
