"""Programs for those who work on walstore; not part of the packages."""
