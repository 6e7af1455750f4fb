"""Care of log directories: verify, repair, build anew."""
