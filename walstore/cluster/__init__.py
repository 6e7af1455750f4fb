"""A cluster: machines that lead logs and keep copies of them, and take over from each other."""
