"""The one account that every Azurite has, with the key that Microsoft publishes for it."""

from __future__ import annotations

import hashlib
import hmac
import urllib.request
from base64 import b64decode, b64encode
from email.utils import formatdate
from typing import Final

ENDPOINT: Final = "WALSTORE_AZURE_ENDPOINT"
"""The variable that names the emulator, with the account in its path."""
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def create_container(endpoint: str, name: str) -> None:
    """Make a container: the one request that no store makes. Signed with the account's shared key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    kind = "text/plain"  # what urllib would say otherwise is not signed
    lines = ["PUT", "", "", "", "", kind, *[""] * 6]
    lines += [f"{key}:{value}" for key, value in headers.items()]
    lines += [f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
    signed = hmac.digest(b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256)
    headers["Content-Type"] = kind
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{b64encode(signed).decode()}"
    url = f"{endpoint}/{name}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, b"", headers, method="PUT")):
        pass
