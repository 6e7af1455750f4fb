"""What is garbage: cursors, pins and announcements that a collection obeys."""
