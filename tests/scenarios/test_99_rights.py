"""The rights of docs/stores.md are enough for reader, writer and collector, and no more than they need.

Here an emulator applies them as policies of users; ``make test-s3`` runs the same at a real server, as the
policy of a bucket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import boto3
import pytest

from tests.s3.rgw import ACCESS_KEY, OTHERS, SECRET_KEY
from tests.uploader.conftest import RealServer
from tests.walstore.cli.conftest import (  # noqa: F401 - fixtures
    Cli,
    aws_environment,
    cli,
    s3_admin,
    s3_bucket,
    s3_server,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PAGE: Final = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
PART: Final = PAGE.partition("## Rights in a bucket")[2].partition("\n## ")[0]
STATEMENTS: Final = {
    one["Sid"]: one for one in json.loads(re.findall(r"```json\n(.*?)```", PART, re.DOTALL)[0])
}
ROLES: Final = {
    role: names.split(", ")
    for role, names in re.findall(r"^\| (\w+): [^|]* \| ([\w, ]+) \|$", PART, re.MULTILINE)
}
As = Callable[..., Any]


def statements(role: str, bucket: str, without: str = "") -> list[dict[str, Any]]:
    """Return what the page allows a role, in a bucket."""
    text = json.dumps([STATEMENTS[name] for name in ROLES[role] if name != without])
    found: list[dict[str, Any]] = json.loads(text.replace("s3:::bucket", f"s3:::{bucket}"))
    return found


class Rights(Protocol):
    """Users of one bucket."""

    interval: int
    """Seconds for which a collector waits: more than twice what its requests take."""

    def allow(self, without: str = "") -> None:
        """Give each user its statements, without the one of that name."""

    def credentials(self, user: str) -> tuple[str, str]:
        """Return the access key of a user and its secret."""

    def applied(self) -> AbstractContextManager[None]:
        """Apply the rights to all requests of a block."""


class EmulatedRights:
    """Those of users of moto, which applies them while it is told so."""

    interval = 1

    def __init__(self, iam: Any, bucket: str) -> None:
        self._iam, self._bucket = iam, bucket
        self._keys: dict[str, tuple[str, str]] = {}
        for role in ROLES:
            iam.create_user(UserName=self._name(role))
            key = iam.create_access_key(UserName=self._name(role))["AccessKey"]
            self._keys[role] = key["AccessKeyId"], key["SecretAccessKey"]

    def _name(self, role: str) -> str:
        return f"{role}-of-{self._bucket}"

    def allow(self, without: str = "") -> None:
        for role in ROLES:
            found = {
                "Version": "2012-10-17",
                "Statement": statements(role, self._bucket, without),
            }
            self._iam.put_user_policy(
                UserName=self._name(role), PolicyName="rights", PolicyDocument=json.dumps(found)
            )

    def credentials(self, user: str) -> tuple[str, str]:
        return self._keys[user]

    @contextmanager
    def applied(self) -> Iterator[None]:
        from moto import settings

        before = settings.INITIAL_NO_AUTH_ACTION_COUNT
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        try:
            yield
        finally:
            settings.INITIAL_NO_AUTH_ACTION_COUNT = before


@pytest.fixture
def rights(s3_server: Any, s3_bucket: str) -> Iterator[Rights]:  # noqa: F811
    if isinstance(s3_server, RealServer):
        pytest.skip("tests/s3/test_rights.py has the rights of a real server")
    session = boto3.Session(
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name="us-east-1"
    )
    with closing(session.client("iam", endpoint_url=s3_server.endpoint_url)) as iam:
        yield EmulatedRights(iam, s3_bucket)


@pytest.fixture
def url(s3_server: Any, s3_bucket: str, rights: Rights) -> str:  # noqa: F811
    rights.allow()
    return f"s3://{s3_bucket}/orders?endpoint_url={s3_server.endpoint_url}&region=us-east-1"


@pytest.fixture
def run_as(cli: Cli, rights: Rights, monkeypatch: pytest.MonkeyPatch) -> As:  # noqa: F811
    """Run a command line with the credentials of a user: ``run_as("reader", "dump", url)``."""

    def run(user: str, *arguments: object, stdin: bytes = b"") -> Any:
        with monkeypatch.context() as patch, rights.applied():
            key, secret = rights.credentials(user)
            patch.setenv("AWS_ACCESS_KEY_ID", key)
            patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
            return cli(*arguments, stdin=stdin)

    return run


def test_the_page_has_each_role_of_the_server() -> None:
    assert list(ROLES) == list(OTHERS)
    assert {name for names in ROLES.values() for name in names} == STATEMENTS.keys()


def test_a_writer_and_a_reader(run_as: As, url: str, tmp_path: Path) -> None:
    for line in (b"a\n", b"b\n"):
        assert run_as("writer", "append", url, stdin=line).code == 0
    local = ("append", tmp_path / "log", "--tier", url.replace("/orders", "/orders/tiered"))
    done = run_as("writer", *local, "--durability", "cloud", stdin=b"c\n")
    assert done.code == 0, done.err
    done = run_as("writer", "cursors", url, "--set", "billing", "2", "--confirm")
    assert done.code == 0, done.err
    for verb in ("dump", "tail", "verify", "scrub", "inspect", "fragments", "cursors"):
        done = run_as("reader", verb, url)
        assert done.code == 0, (verb, done.err)
    done = run_as("reader", "restore", url, tmp_path / "part", "--to-offset", "2")
    assert done.code == 0, done.err


@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_a_collector(run_as: As, rights: Rights, url: str, layout: str) -> None:
    for number in range(4):
        line = b"%d\n" % number
        done = run_as("writer", "append", url, "--layout", layout, stdin=line)
        assert done.code == 0, done.err
    assert run_as("writer", "cursors", url, "--set", "billing", "3", "--confirm").code == 0
    done = run_as("reader", "gc", "plan", url)
    assert done.code == 0, done.err
    done = run_as(
        "collector",
        "gc",
        "apply",
        url,
        "--interval",
        rights.interval,
        "--wait",
        "--confirm",
        "--json",
    )
    assert done.code == 0, done.err
    assert {one["kind"] for one in done.json["deleted"]} == {"fragment"}
    assert [row["offset"] for row in run_as("reader", "dump", url).rows] == [3, 4]


def test_what_is_denied_is_one_line_and_changes_nothing(
    run_as: As,
    url: str,
    s3_admin: Any,  # noqa: F811
    s3_bucket: str,  # noqa: F811
) -> None:
    for line in (b"a\n", b"b\n"):
        assert run_as("writer", "append", url, stdin=line).code == 0
    assert run_as("writer", "cursors", url, "--set", "billing", "2", "--confirm").code == 0
    before = sorted(one["Key"] for one in s3_admin.list_objects_v2(Bucket=s3_bucket)["Contents"])
    denied: list[tuple[str, tuple[object, ...]]] = [
        ("reader", ("append", url)),
        ("reader", ("cursors", url, "--set", "billing", "1", "--confirm")),
        ("reader", ("seal", url, "--confirm")),
        ("reader", ("gc", "apply", url, "--interval", "0", "--confirm")),
        ("reader", ("destroy", url, "--unsealed", "--confirm")),
    ]
    for user, arguments in denied:
        done = run_as(user, *arguments, stdin=b"c\n")
        assert done.code == 1, arguments
        assert len(done.err.splitlines()) == 1, done.err
        assert "refuses the credentials" in done.error, arguments
    after = sorted(one["Key"] for one in s3_admin.list_objects_v2(Bucket=s3_bucket)["Contents"])
    assert after == before
    assert [row["value"] for row in run_as("reader", "dump", url).rows] == ["a", "b"]


def test_a_writer_deletes_nothing(run_as: As, rights: Rights, url: str) -> None:
    """It may drop fragments from the manifest, and the objects stay until a collector comes."""
    for number in range(4):
        assert run_as("writer", "append", url, stdin=b"%d\n" % number).code == 0
    assert run_as("writer", "cursors", url, "--set", "billing", "3", "--confirm").code == 0
    apply = ("gc", "apply", url, "--interval", rights.interval, "--wait", "--confirm")
    done = run_as("writer", *apply)
    assert done.code == 1
    assert "refuses the credentials" in done.error
    assert [row["offset"] for row in run_as("reader", "dump", url).rows] == [3, 4]
    done = run_as("collector", *apply, "--json")
    assert (done.code, len(done.json["deleted"])) == (0, 2), done.err


def test_another_prefix_is_denied(run_as: As, cli: Cli, url: str) -> None:  # noqa: F811
    other = url.replace("/orders", "/invoices")
    assert cli("append", other, stdin=b"a\n").code == 0  # of the bucket's owner
    for user, verb in (("writer", "append"), ("writer", "dump"), ("reader", "dump")):
        done = run_as(user, verb, other, stdin=b"b\n")
        assert (done.code, "refuses the credentials" in done.error) == (1, True), (user, verb)


def test_a_tier_without_the_right_keeps_the_records(
    run_as: As, rights: Rights, url: str, tmp_path: Path
) -> None:
    """They are on the disk, and shipped once it has the right again."""
    log = tmp_path / "log"
    assert run_as("writer", "append", log, "--tier", url, stdin=b"a\n").code == 0
    rights.allow(without="Write")
    done = run_as("writer", "append", log, stdin=b"b\n")
    assert done.code == 0, done.err
    done = run_as("writer", "upload", log, url)
    assert (done.code, "refuses the credentials" in done.error) == (1, True)
    assert len(run_as("writer", "dump", log).rows) == 2
    rights.allow()
    assert run_as("writer", "upload", log, url).code == 0
    assert [row["value"] for row in run_as("reader", "dump", url).rows] == ["a", "b"]
