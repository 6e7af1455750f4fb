"""Iceberg tables of what is stored here: logs as they are, and the content of collections.

Nothing else imports pyiceberg, which is an extra.
"""
