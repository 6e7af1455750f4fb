"""Logs over HTTP: the Durable Streams protocol, for browsers, curl and any language."""

from walstore.http.http_server import HttpServer
from walstore.http.http_settings import HttpSettings

__all__ = ["HttpServer", "HttpSettings"]
