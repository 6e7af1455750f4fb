"""Writing: from records to published fragments, for the uploader of a local log and for ``CloudWriter``."""
