"""The rights of docs/stores.md are enough for reader, writer and collector, and no more than they need."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.s3.rgw import ENDPOINT, OTHERS
from tests.walstore.cli.conftest import Cli, cli  # noqa: F401 - fixture

pytestmark = [pytest.mark.s3, pytest.mark.timeout(300)]

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


def policy(bucket: str, without: str = "") -> str:
    """Return the statements of the page for all users, as the policy of a bucket."""
    found = []
    for role, names in ROLES.items():
        for name in names:
            one = json.loads(json.dumps(STATEMENTS[name]).replace("s3:::bucket", f"s3:::{bucket}"))
            one |= {"Sid": f"{role}{name}", "Principal": {"AWS": [f"arn:aws:iam:::user/{role}"]}}
            if name != without:
                found.append(one)
    return json.dumps({"Version": "2012-10-17", "Statement": found})


@pytest.fixture
def url(s3_bucket: str, s3_admin: Any) -> str:
    s3_admin.put_bucket_policy(Bucket=s3_bucket, Policy=policy(s3_bucket))
    return f"s3://{s3_bucket}/orders?endpoint_url={os.environ[ENDPOINT]}&region=us-east-1"


@pytest.fixture
def run_as(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[As]:  # noqa: F811
    """Run a command line with the credentials of a user: ``run_as("reader", "dump", url)``."""

    def run(user: str, *arguments: object, stdin: bytes = b"") -> Any:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", OTHERS[user])
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
def test_a_collector(run_as: As, url: str, layout: str) -> None:
    for number in range(4):
        line = b"%d\n" % number
        done = run_as("writer", "append", url, "--layout", layout, stdin=line)
        assert done.code == 0, done.err
    assert run_as("writer", "cursors", url, "--set", "billing", "3", "--confirm").code == 0
    done = run_as("reader", "gc", "plan", url)
    assert done.code == 0, done.err
    done = run_as(
        "collector", "gc", "apply", url, "--interval", "4", "--wait", "--confirm", "--json"
    )
    assert done.code == 0, done.err
    assert {one["kind"] for one in done.json["deleted"]} == {"fragment"}
    assert [row["offset"] for row in run_as("reader", "dump", url).rows] == [3, 4]


def test_what_is_denied_is_one_line_and_changes_nothing(
    run_as: As, url: str, s3_admin: Any, s3_bucket: str
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


def test_a_writer_deletes_nothing(run_as: As, url: str) -> None:
    """It may drop fragments from the manifest, and the objects stay until a collector comes."""
    for number in range(4):
        assert run_as("writer", "append", url, stdin=b"%d\n" % number).code == 0
    assert run_as("writer", "cursors", url, "--set", "billing", "3", "--confirm").code == 0
    apply = ("gc", "apply", url, "--interval", "4", "--wait", "--confirm")
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
    run_as: As, url: str, s3_admin: Any, s3_bucket: str, tmp_path: Path
) -> None:
    """They are on the disk, and shipped once it has the right again."""
    log = tmp_path / "log"
    assert run_as("writer", "append", log, "--tier", url, stdin=b"a\n").code == 0
    s3_admin.put_bucket_policy(Bucket=s3_bucket, Policy=policy(s3_bucket, without="Write"))
    done = run_as("writer", "append", log, stdin=b"b\n")
    assert done.code == 0, done.err
    done = run_as("writer", "upload", log, url)
    assert (done.code, "refuses the credentials" in done.error) == (1, True)
    assert len(run_as("writer", "dump", log).rows) == 2
    s3_admin.put_bucket_policy(Bucket=s3_bucket, Policy=policy(s3_bucket))
    assert run_as("writer", "upload", log, url).code == 0
    assert [row["value"] for row in run_as("reader", "dump", url).rows] == ["a", "b"]
