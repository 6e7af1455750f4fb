"""walstore serve in a directory that is not there: what it refuses leaves nothing behind."""

from __future__ import annotations

import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path, PosixPath

import pytest

from tests.walstore.cli.conftest import Cli
from tests.walstore.serve.certificates import make_certificate
from walstore.cli.configuration import Configuration
from walstore.cli.serving import Serving

pytestmark = pytest.mark.timeout(60)

CLUSTER = "--cluster etcd://127.0.0.1:1"
"""Where no etcd is."""
REFUSALS = {
    "used port": ("--tcp {used}", 1, "cannot listen at 127.0.0.1:"),
    "used port for HTTP": ("--http {used}", 1, "cannot listen at 127.0.0.1:"),
    "used port, after a socket": ("--unix {at}/s --http {used}", 1, "cannot listen at 127"),
    "used port for metrics": ("--metrics {used}", 1, "cannot listen at 127.0.0.1:"),
    "bad port for metrics": ("--metrics nowhere", 1, "HOST:PORT"),
    "used socket": ("--unix {at}/used.sock", 1, "used.sock: Address already in use"),
    "no directory of the socket": ("--unix {at}/no/s", 1, "no/s: No such file or directory"),
    "long socket": (f"--unix {{at}}/{'x' * 120}", 1, "a socket's path has"),
    "bad port": ("--tcp nowhere", 1, "HOST:PORT"),
    "bad port with TLS": ("--tcp nowhere {tls}", 1, "HOST:PORT"),
    "bad port for HTTP with TLS": ("--http nowhere {tls}", 1, "HOST:PORT"),
    "bad token": ("--tcp 127.0.0.1:0", 1, "lone surrogates"),
    "bad token for HTTP": ("--unix {at}/s --http 127.0.0.1:0", 1, "lone surrogates"),
    "no file of scopes": ("--token-file {at}/none", 1, "cannot read the file of tokens"),
    "a bad file of scopes": ("--token-file {at}/bad", 1, "is no TOML"),
    "no certificate": ("--tcp 127.0.0.1:0 --tls-cert {at}/a --tls-key {at}/b", 1, "cannot use"),
    "bad certificate": (
        "--tcp 127.0.0.1:0 --tls-cert {at}/bad --tls-key {at}/bad", 1, "cannot use",
    ),
    "no collection": ("--http 127.0.0.1:0 --collection file://{at}/none", 3, "no collection"),
    "no extra": ("--http 127.0.0.1:0", 1, "needs the extra 'serve'"),
    "no etcd": (CLUSTER, 1, "no node of etcd does it"),
    "no etcd, after a socket": (f"{CLUSTER} --unix {{at}}/s", 1, "no node of etcd does it"),
    "bad address to advertise": (f"{CLUSTER} --advertise x", 1, "not an address"),
    "every machine's address to advertise": (
        f"{CLUSTER} --advertise tcp://0.0.0.0:7430", 1, "no other machine reaches this one at 0.0.0.0",
    ),
    "every machine's address with TLS": (
        f"{CLUSTER} --tcp [::]:0 {{tls}}", 1, "no other machine reaches this one at ::",
    ),
}  # fmt: skip


CASES = [
    (name, kind)
    for name, (arguments, _, _) in REFUSALS.items()
    for kind in ("", "--store", "--replicate")
    if not (kind and CLUSTER in arguments) and not (kind == "--replicate" and "--http" in arguments)
]
"""Without options that exclude each other."""


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_refused_leaves_nothing(
    name: str, kind: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message and the code are those that it has where the directory is there."""
    arguments, code, words = REFUSALS[name]
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "bad").write_text("no certificate")
    if "TLS" in name or "token" in name:
        monkeypatch.setenv("WALSTORE_TOKEN", "\udcff" if "token" in name else "secret")
    if name == "no extra":
        monkeypatch.setitem(sys.modules, "aiohttp", None)  # type: ignore[arg-type]
        monkeypatch.delitem(sys.modules, "walstore.http.answering", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as path:
        path.bind(str(tmp_path / "used.sock"))
        path.listen()
        used = f"127.0.0.1:{port.getsockname()[1]}"
        tls = f"--tls-cert {certificate} --tls-key {key}"
        directory = tmp_path / "parent" / "new"
        quiet = "--log-level warning"
        given = f"{directory} {kind} {quiet} {arguments}".format(
            at=tmp_path, used=used, tls=tls
        ).split()
        before = sorted(tmp_path.rglob("*"))
        refused = cli("serve", *given)
        assert (refused.code, refused.out) == (code, b"")
        assert words in refused.error
        assert sorted(tmp_path.rglob("*")) == before
        directory.mkdir(parents=True)
        assert cli("serve", *given) == refused


class Appearing(PosixPath):
    """A directory that another program makes just after it was looked for."""

    def exists(self) -> bool:
        found = super().exists()
        self.mkdir(exist_ok=True)
        return found


async def test_a_log_that_another_server_makes_at_the_same_time_comes_before_its_port(
    tmp_path: Path,
) -> None:
    """The log is locked then, and the error names its owner."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        used = f"127.0.0.1:{port.getsockname()[1]}"
        places = {"unix": str(tmp_path / "s"), "tcp": used}
        async with AsyncExitStack() as stack:
            serving = Serving(
                Appearing(tmp_path / "log"), places, None, None, [], Configuration(), as_json=False
            )
            prepared = await serving.prepare(stack)
            assert prepared.places["listening"].ports == []
            assert (tmp_path / "s").exists()
    assert not (tmp_path / "s").exists()
