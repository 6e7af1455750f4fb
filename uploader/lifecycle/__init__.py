"""The life of a log in object storage: begun elsewhere, forked, sealed, destroyed."""
