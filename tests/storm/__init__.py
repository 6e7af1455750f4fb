"""Storms of kill -9: writers die at random moments, and their logs are held to what they acknowledged."""
