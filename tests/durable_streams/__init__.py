"""The conformance suite of the Durable Streams protocol, run against ``walstore serve --http``."""
