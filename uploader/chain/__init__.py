"""The second layout of a log's root: a chain of immutable manifests. For stores without swaps, and speed.

docs/chain.md says what the objects are, and why nothing is lost.
"""

from uploader.chain.chain_root import ChainRoot, ChainSettings
from uploader.chain.shards import Rebuilt, rebuild

__all__ = ["ChainRoot", "ChainSettings", "Rebuilt", "rebuild"]
