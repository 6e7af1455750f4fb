//! In the place of `chroma-config`: what remains of wal3 without Spanner has no configuration.
