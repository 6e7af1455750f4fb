"""Serving logs to other processes: ``Server`` owns them, clients use :func:`walstore.connect`."""

from walstore.cluster.member import ClusterMember
from walstore.cluster.replication.node import ReplicaNode
from walstore.serve.serve_settings import ServeSettings
from walstore.serve.server import Server

__all__ = ["ClusterMember", "ReplicaNode", "ServeSettings", "Server"]
