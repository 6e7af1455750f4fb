"""Serving logs to other processes: ``Server`` owns them, clients use :func:`walstore.connect`."""

from walstore.cluster.member import ClusterMember
from walstore.cluster.replication.node import ReplicaNode
from walstore.net.wire.access_scope import AccessScope
from walstore.serve.access_token import AccessToken
from walstore.serve.access_tokens import AccessTokens
from walstore.serve.serve_settings import ServeSettings
from walstore.serve.server import Server

__all__ = [
    "AccessScope",
    "AccessToken",
    "AccessTokens",
    "ClusterMember",
    "ReplicaNode",
    "ServeSettings",
    "Server",
]
