"""walstore compared with its peers and the limits of the disk, in one run: ``python -m bench.report``."""
