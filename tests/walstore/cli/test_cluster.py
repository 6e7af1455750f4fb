"""walstore logs: what a cluster has, and changing it. The cluster's store is in memory here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from tests.walstore.cluster.replication.cluster import Cluster
from uploader import CloudTier
from walstore import Wal
from walstore.cli import cluster
from walstore.topology.documents import Leader, LogSpec, Member, Synced
from walstore.topology.key_values import Swap
from walstore.topology.memory import MemoryKeyValues

ADOPT = ("--adopt", "--give-up-records", "--confirm")
"""No machine has anything; see test_cluster_adopt.py."""


def spec(store: MemoryKeyValues, name: str = "orders") -> LogSpec:
    found = store.get(f"walstore/logs/{name}")
    assert found is not None
    return LogSpec.decode(found.value, found.key)


def put(store: MemoryKeyValues, key: str, value: bytes | None) -> None:
    found = store.get(key)
    assert store.swap(key, value, 0 if found is None else found.revision, 0).happened


def test_a_log_is_made_and_changed(cli: Cli, store: MemoryKeyValues) -> None:
    made = cli("logs", "apply", "orders", "--label", "env=prod", "--label", "old=")
    assert (made.code, made.lines[1:3]) == (0, ["replicas   3", "quorum     more than half"])
    assert spec(store) == LogSpec(labels={"env": "prod"})
    done = cli("logs", "apply", "orders", "--replicas", "5", "--quorum", "4", "--json")
    (log,) = done.json["logs"]
    assert (log["replicas"], log["quorum"], log["labels"]) == (5, 4, {"env": "prod"})
    assert spec(store) == LogSpec(5, 4, {"env": "prod"})
    revision = store.revision
    assert cli("logs", "apply", "orders", "--label", "env=prod").code == 0
    assert store.revision == revision  # nothing to change


def test_a_log_has_a_tier_and_settings_of_its_own(
    cli: Cli, store: MemoryKeyValues, tmp_path: Path
) -> None:
    url = (tmp_path / "store" / "orders").as_uri()
    assert "needs a store URL" in cli("logs", "apply", "orders", "--tier", "bucket").error
    done = cli("logs", "apply", "orders", "--tier", url,
               "--set", "retention_bytes=1000000", "--set", "compression=zstd")  # fmt: skip
    assert (done.code, done.lines[5:]) == (
        0,
        [f"tier             {url}", "retention_bytes  1000000", "compression      zstd"],
    ), done.out
    own = {"retention_bytes": 1000000, "compression": "zstd"}
    assert (spec(store).tier, spec(store).settings) == (url, own)
    assert cli("logs", "apply", "orders", "--set", "compression=", "--label", "a=b").code == 0
    assert (spec(store).tier, spec(store).settings) == (url, {"retention_bytes": 1000000})
    for wrong in ("no=1", "durability=disk", "segment_bytes=1", "segment_bytes=many"):
        refused = cli("logs", "apply", "orders", "--set", wrong)
        assert (refused.code, wrong.partition("=")[0] in refused.error) == (1, True), refused.error
    (row,) = cli("logs", "list", "--json").json["logs"]
    assert (row["tier"], row["settings"]) == (url, {"retention_bytes": 1000000})


def test_a_tier_is_changed_only_while_nothing_is_there(
    cli: Cli, store: MemoryKeyValues, tmp_path: Path
) -> None:
    first, second, used = ((tmp_path / name).as_uri() for name in ("first", "second", "used"))

    async def use(url: str) -> None:
        async with Wal.open(tmp_path / "log", tier=CloudTier(url)) as wal:
            await wal.append(b"v", durability="cloud")

    asyncio.run(use(used))
    for wrong, said in (("s3://", "must be a URL"), ("nope://x", "store URL"), (used, "is a log")):
        refused = cli("logs", "apply", "orders", "--tier", wrong)
        assert (refused.code, said in refused.error) == (1, True), refused.error
    assert cli("logs", "apply", "orders", "--tier", first).code == 0
    assert cli("logs", "apply", "orders", "--tier", second).code == 0  # nothing was shipped
    assert spec(store).tier == second
    put(store, "walstore/logs/orders", LogSpec(tier="nope://x").encode())
    assert cli("logs", "apply", "orders", "--tier", first).code == 0  # nothing can be there
    put(store, "walstore/logs/orders", LogSpec(tier=used).encode())
    row = cli("logs", "list", "--json").json["logs"][0]
    without = json.dumps({**row, "tier": ""}).encode()
    for refused in (
        cli("logs", "apply", "orders", "--tier", first),
        cli("logs", "apply", "--from", "-", stdin=without),
    ):
        assert (refused.code, "cannot be changed" in refused.error) == (1, True)
    assert spec(store).tier == used


def test_a_log_is_read_from_a_store(cli: Cli, store: MemoryKeyValues, tmp_path: Path) -> None:
    url, none = ((tmp_path / name).as_uri() for name in ("theirs", "none"))

    async def ship() -> None:
        async with Wal.open(tmp_path / "log", tier=CloudTier(url)) as wal:
            await wal.append(b"v", durability="cloud")

    asyncio.run(ship())
    for wrong, said in (("bucket", "needs a store URL"), (none, "there is no log at")):
        refused = cli("logs", "apply", "theirs", "--source", wrong)
        assert (refused.code, said in refused.error) == (1, True), refused.error
    assert store.get("walstore/logs/theirs") is None
    done = cli("logs", "apply", "theirs", "--source", url, "--label", "from=them")
    assert (done.code, [line.split() for line in done.lines[1:]]) == (0, [["source", url]])
    assert spec(store, "theirs") == LogSpec(labels={"from": "them"}, source=url)
    assert cli("logs", "list").lines[1].split()[:4] == ["theirs", url, "–", "–"]
    (row,) = cli("logs", "list", "--json").json["logs"]
    put(store, "walstore/logs/theirs", None)
    assert cli("logs", "apply", "--from", "-", stdin=json.dumps(row).encode()).code == 0
    assert spec(store, "theirs") == LogSpec(labels={"from": "them"}, source=url)
    put(store, "walstore/logs/orders", LogSpec(copies=("tls://a:1", "tls://b:1")).encode())
    refused = cli("logs", "apply", "orders", "--source", url)
    assert (refused.code, "has no copies" in refused.error) == (1, True)
    assert "--from FILE goes without" in cli("logs", "apply", "--from", "-", "--source", url).error


def test_what_there_is(cli: Cli, store: MemoryKeyValues) -> None:
    assert "make one with" in cli("logs", "list").err
    copies = ("tls://a:1", "tls://b:1", "tls://c:1")
    put(store, "walstore/logs/orders", LogSpec(labels={"env": "prod"}, copies=copies).encode())
    put(store, "walstore/logs/other", LogSpec(2).encode())
    leader = Leader(copies[0], "00", 7, copies[1:], copies[1:2], {copies[2]: "its disk is full"})
    put(store, "walstore/leaders/orders", leader.encode())
    member = Member("tls://a:1", "00", "z", "https://a:2", "h2:/srv/w", "h1:/srv/w")
    put(store, "walstore/members/tls://a:1", member.encode())
    listed = cli("logs", "list")
    assert listed.lines[1].split() == ["orders", "tls://a:1", "7", "3", "of", "3", "2", "env=prod"]
    assert listed.lines[2].split()[:4] == ["other", "nobody", "–", "0"]
    assert "orders: the copy at tls://c:1 does not count: its disk is full" in listed.err
    assert "tls://a:1: h2:/srv/w has taken the place of h1:/srv/w; if both" in listed.err
    found = cli("logs", "list", "--json", "--selector", "env,!old").json
    (log,) = found["logs"]
    assert (log["leader"], log["epoch"], log["present"]) == ("tls://a:1", 7, 2)
    assert log["missing"] == {"tls://c:1": "its disk is full"}
    assert found["members"] == [member._asdict()]
    assert (
        cli("logs", "list", "--json", "--selector", "env!=prod").json["logs"][0]["name"] == "other"
    )


def test_specs_from_a_file(cli: Cli, store: MemoryKeyValues) -> None:
    """What ``list`` prints can be applied; all lines are checked before one is changed."""
    for name in ("a", "b"):
        assert cli("logs", "apply", name, "--label", f"is={name}").code == 0
    rows = cli("logs", "list", "--json").json["logs"]
    rows[1]["labels"] = {"is": "changed"}
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert cli("logs", "apply", "--from", "-", stdin=lines.encode()).code == 0
    assert (spec(store, "a").labels, spec(store, "b").labels) == ({"is": "a"}, {"is": "changed"})
    bad = '{"name": "c"}\n{"name": "a", "replicas": 0}\n'
    refused = cli("logs", "apply", "--from", "-", stdin=bad.encode())
    assert (refused.code, "replicas must be" in refused.error) == (1, True)
    assert store.get("walstore/logs/c") is None


@pytest.mark.usefixtures("impatient")
def test_a_list_of_copies_that_a_store_has_forgotten_is_adopted(
    cli: Cli, store: MemoryKeyValues
) -> None:
    """Etcd was set back: it has generation 2 of the list, and the copies know 3."""
    a, b, c, d = (f"unix:///nowhere/{letter}" for letter in "abcd")
    newer = LogSpec(copies=(a, b, d), generation=3, joined={d: 3})
    put(store, "walstore/logs/orders", newer.encode())
    (row,) = cli("logs", "list", "--json").json["logs"]
    line = json.dumps(row).encode()
    assert cli("logs", "apply", "--from", "-", stdin=line).code == 0  # nothing is different
    older = LogSpec(copies=(a, b, c), generation=2)
    put(store, "walstore/logs/orders", older.encode())
    refused = cli("logs", "apply", "--from", "-", stdin=line)
    assert (refused.code, "--adopt" in refused.error) == (1, True), refused.error
    assert spec(store) == older
    assert cli("logs", "apply", "--from", "-", *ADOPT, stdin=line).code == 0
    assert spec(store) == newer
    for wrong in ({**row, "generation": 2, "copies": [a, b, c]}, {**row, "copies": [a, b, c]}):
        for options in ((), ("--adopt",)):
            given = json.dumps(wrong).encode()
            refused = cli("logs", "apply", "--from", "-", *options, stdin=given)
            assert (refused.code, "leave copies" in refused.error) == (1, True), refused.error
    assert spec(store) == newer
    assert "goes with --from" in cli("logs", "apply", "orders", "--adopt").error


@pytest.mark.usefixtures("impatient")
def test_a_second_copy_that_is_adopted_is_said_to_be_new_or_not(
    cli: Cli, store: MemoryKeyValues
) -> None:
    """If it is new, the first one leads with what it has, whatever other copies there were."""
    put(
        store,
        "walstore/logs/orders",
        LogSpec(2, copies=("unix:///nowhere/a",), generation=3).encode(),
    )
    line = {"name": "orders", "copies": ["unix:///nowhere/a", "unix:///nowhere/b"], "generation": 6}
    done = cli("logs", "apply", "--from", "-", "--adopt", stdin=json.dumps(line).encode())
    assert "no copy of 'orders' at unix:///nowhere/b; say with \"joined\"" in done.error
    for joined in ({}, {"unix:///nowhere/b": 6}):
        line |= {"joined": joined, "generation": line["generation"] + 1}  # type: ignore[operator]
        for _ in range(2):
            given = json.dumps(line).encode()
            assert cli("logs", "apply", "--from", "-", *ADOPT, stdin=given).code == 0
        assert spec(store).joined == joined


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "line 1 is no spec of a log: Expecting value"),
        ("[]", "line 1 is no spec of a log: it is no JSON object"),
        ("[" * 200_000, "line 1 is no spec of a log"),
        ('\n{"replicas": 3}', 'line 2 is no spec of a log: it has no "name"'),
        (
            '{"name": "../a"}',
            "line 1 is no spec of a log: the name of a replicated log has 1 to 100",
        ),
        ('{"name": 7}', "line 1 is no spec of a log: the name of a replicated log must be"),
        ('{"name": "a"}\n{"name": "a"}', "line 2: the log 'a' is there twice, in line 1, too"),
        ('{"name": "a", "replica": 3}', "line 1 is no spec of a log: it has a field 'replica'"),
        ('{"name": "a", "labels": 7}', "line 1, log 'a': labels"),
        ('{"name": "a", "replicas": "three"}', "line 1, log 'a': replicas"),
        ('{"name": "a"}\n{"name": "b", "replicas": 0}', "line 2, log 'b': replicas"),
        ('{"name": "a", "copies": "tls://a:1"}', "line 1, log 'a': copies must be a list"),
        ('{"name": "a", "copies": ["x"]}', "line 1, log 'a': not an address"),
        ('{"name": "a", "copies": ["tls://a:1"], "generation": "2"}', "log 'a': generation must"),
        ('{"name": "a", "copies": ["tls://a:1"], "generation": 1e3}', "log 'a': generation must"),
        (f'{{"name": "a", "copies": ["tls://a:1"], "generation": {1 << 62}}}', "log 'a': gener"),
        ('{"name": "a", "copies": ["tls://a:1"], "joined": [1]}', "log 'a': joined must map"),
        ('{"name": "a", "copies": ["tls://a:1"], "joined": {"x": -1}}', "log 'a': a generation"),
        ('{"name": "a", "preferred": "tls://b:1"}', "log 'a': tls://b:1 has no copy"),
        (b'{"name": "a\xff"}', "byte 11 is not UTF-8"),
    ],
    ids=case,
)
@pytest.mark.parametrize("option", [(), ("--adopt", "--confirm")], ids=case)
def test_specs_that_are_none(
    cli: Cli, store: MemoryKeyValues, text: str | bytes, said: str, option: tuple[str, ...]
) -> None:
    """One line names the line and the log, and says what to do; nothing is changed."""
    given = text if isinstance(text, bytes) else text.encode()
    done = cli("logs", "apply", "--from", "-", *option, stdin=given)
    assert (done.code, said in done.error) == (1, True), done.error
    assert "nothing was changed" in done.error
    assert store.revision == 1


def test_specs_in_an_editor(
    cli: Cli, store: MemoryKeyValues, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli("logs", "apply", "orders").code == 0
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    assert "set EDITOR" in cli("logs", "edit").error
    monkeypatch.setenv("EDITOR", "true")
    assert "nothing was changed" in cli("logs", "edit").err
    monkeypatch.setenv("EDITOR", 'sed -i s/{}/{\\"env\\":\\"prod\\"}/')
    assert cli("logs", "edit").code == 0
    assert spec(store).labels == {"env": "prod"}
    monkeypatch.setenv("EDITOR", "false")
    assert "ended with code 1; nothing was changed" in cli("logs", "edit").error
    monkeypatch.setenv("EDITOR", str(tmp_path / "none"))
    assert "cannot be run" in cli("logs", "edit").error


def test_a_log_is_moved(cli: Cli, store: MemoryKeyValues) -> None:
    put(store, "walstore/logs/orders", LogSpec(copies=("tls://a:1", "tls://b:1")).encode())
    assert cli("logs", "move", "orders", "tls://b:1").code == 0
    assert spec(store).preferred == "tls://b:1"
    refused = cli("logs", "move", "orders", "tls://c:1").error
    assert (
        "has no copy of 'orders', so it cannot lead; copies are at tls://a:1, tls://b:1" in refused
    )
    assert "'walstore logs apply orders --replicas 3' makes one more" in refused
    assert spec(store).preferred == "tls://b:1"
    missing = cli("logs", "move", "none", "tls://b:1")
    assert (missing.code, missing.error) == (3, "the cluster has no log 'none'")
    assert "not an address" in cli("logs", "move", "orders", "b").error


def test_a_log_is_suspended_and_resumed(cli: Cli, store: MemoryKeyValues) -> None:
    put(store, "walstore/logs/orders", LogSpec(copies=("tls://a:1", "tls://b:1")).encode())
    put(store, "walstore/leaders/orders", Leader("tls://a:1", "00", 7).encode())
    done = cli("logs", "suspend", "orders")
    assert (done.code, done.lines[-1].split()) == (0, ["suspended", "yes"])
    assert spec(store).suspended
    assert cli("logs", "list").lines[1].split()[1] == "tls://a:1"  # it has not closed the log yet
    put(store, "walstore/leaders/orders", None)
    assert cli("logs", "list").lines[1].split()[1] == "suspended"
    (row,) = cli("logs", "list", "--json").json["logs"]
    assert (row["suspended"], row["leader"]) == (True, None)
    assert cli("logs", "suspend", "orders").code == 0
    assert cli("logs", "resume", "orders", "--json").json["logs"][0]["suspended"] is False
    assert not spec(store).suspended
    assert cli("logs", "apply", "--from", "-", stdin=json.dumps(row).encode()).code == 0
    assert spec(store).suspended
    for verb in ("suspend", "resume"):
        missing = cli("logs", verb, "none")
        assert (missing.code, missing.error) == (3, "the cluster has no log 'none'")
    wrong = json.dumps({"name": "orders", "suspended": "no"}).encode()
    refused = cli("logs", "apply", "--from", "-", stdin=wrong)
    assert (refused.code, "suspended must be true or false" in refused.error) == (1, True)


def test_a_suspended_log_that_is_made_again_is_led(cli: Cli, store: MemoryKeyValues) -> None:
    copies = ("tls://a:1", "tls://b:1", "tls://c:1")
    put(store, "walstore/logs/orders", LogSpec(copies=copies, suspended=True).encode())
    assert cli("logs", "remove", "orders", "--confirm").code == 0
    assert cli("logs", "apply", "orders").code == 0
    assert spec(store) == LogSpec(copies=copies)


def test_a_log_that_was_changed_meanwhile_is_not_suspended(
    cli: Cli, store: MemoryKeyValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies were changed, say. The call may be repeated."""
    assert cli("logs", "apply", "orders").code == 0
    swap = MemoryKeyValues.swap

    def raced(self: MemoryKeyValues, key: str, value: bytes | None, at: int, lease: int) -> Swap:
        monkeypatch.setattr(MemoryKeyValues, "swap", swap)
        put(store, key, LogSpec(copies=("tls://a:1", "tls://b:1")).encode())
        return self.swap(key, value, at, lease)

    monkeypatch.setattr(MemoryKeyValues, "swap", raced)
    refused = cli("logs", "suspend", "orders")
    assert (refused.code, "call again" in refused.error) == (4, True)
    assert spec(store) == LogSpec(copies=("tls://a:1", "tls://b:1"))


def test_a_log_is_taken_out(cli: Cli, store: MemoryKeyValues) -> None:
    assert cli("logs", "apply", "orders").code == 0
    dry = cli("logs", "remove", "orders")
    assert (dry.code, "give --confirm" in dry.err) == (0, True)
    assert cli("logs", "remove", "orders", "--confirm", "--json").json["removed"] is True
    assert store.get("walstore/logs/orders") is None
    assert cli("logs", "remove", "orders", "--confirm").code == 3


def test_fewer_copies(cli: Cli, store: MemoryKeyValues) -> None:
    """The machines give one up after the other."""
    put(store, "walstore/logs/orders", LogSpec(copies=("a", "b", "c")).encode())
    assert cli("logs", "apply", "orders", "--replicas", "2").code == 0
    assert spec(store) == LogSpec(2, copies=("a", "b", "c"))
    assert cli("logs", "list").lines[1].split()[3:6] == ["3", "of", "2"]
    assert "replicas must be" in cli("logs", "apply", "orders", "--replicas", "0").error


def test_options_that_need_each_other(cli: Cli, store: MemoryKeyValues, tmp_path: Path) -> None:
    assert "give the NAME of a log, or --from FILE" in cli("logs", "apply").error
    (tmp_path / "f").write_text("")
    both = cli("logs", "apply", "--from", tmp_path / "f", "--replicas", "3")
    assert "--from FILE goes without" in both.error
    assert "--label NAME=VALUE" in cli("logs", "apply", "a", "--label", "x").error
    assert "no selector" in cli("logs", "list", "--selector", "a b").error


@pytest.mark.parametrize(
    "verb", [("apply",), ("move",), ("suspend",), ("resume",), ("remove",)], ids=case
)
def test_names_that_are_none(cli: Cli, store: MemoryKeyValues, verb: tuple[str, ...]) -> None:
    more = ("tls://10.0.0.2:7430",) if verb == ("move",) else ()
    for name in ("a b", "../x", ".a", "x" * 101):
        done = cli("logs", *verb, name, *more)
        assert (done.code, "1 to 100 letters" in done.error, "Replication" in done.error) == (
            1,
            True,
            False,
        )
    assert store.revision == 1


def test_keys_that_are_left_out_are_listed(cli: Cli, store: MemoryKeyValues) -> None:
    put(store, "walstore/logs/orders", LogSpec().encode())
    put(store, "walstore/logs/a b", LogSpec().encode())
    put(store, "walstore/logs/newer", b'{"version": 2}')
    listed = cli("logs", "list")
    assert [line.split()[0] for line in listed.lines] == ["log", "orders"]
    told = [line.partition(" of the cluster")[0] for line in listed.err.splitlines()]
    assert told == [f"walstore: ERROR: the key walstore/logs/{name}" for name in ("a b", "newer")]
    found = cli("logs", "list", "--json").json
    assert [one["name"] for one in found["logs"]] == ["orders"]
    assert [one["key"] for one in found["left_out"]] == ["walstore/logs/a b", "walstore/logs/newer"]


@pytest.mark.parametrize("address", ["127.0.0.1:2379", "http://a", "etcd://"], ids=case)
def test_addresses_that_are_none(cli: Cli, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cluster.CLUSTER_VARIABLE, raising=False)
    done = cli("logs", "list", "--cluster", address)
    assert (done.code, "etcd" in done.error) == (1, True)
    assert "missing option '--cluster'" in cli("logs", "list").error


def test_nobody_at_the_address(cli: Cli) -> None:
    done = cli("logs", "list", "--cluster", "etcd://user:secret@127.0.0.1:1", "--json")
    assert (done.code, "secret" in done.err) == (1, False)
    assert "127.0.0.1:1" in done.err


async def test_a_copy_becomes_the_log(cli: Cli, store: MemoryKeyValues, tmp_path: Path) -> None:
    """The other machines are lost."""
    async with Cluster(tmp_path) as machines:
        wal = await machines.primary(0)
        await wal.append_many([b"v"] * 3)
        await wal.aclose()
    copy, key = tmp_path / "m1" / "orders", "walstore/synced/orders"
    put(store, key, Synced("ab" * 16, 1, 1, {"tls://a": 9}).encode())
    dry = await asyncio.to_thread(cli, "logs", "reset-head", copy)
    assert (dry.code, "give --confirm" in dry.err) == (0, True)
    assert store.get(key) is not None
    done = await asyncio.to_thread(cli, "logs", "reset-head", copy, "--confirm", "--json")
    assert (done.json["reset"], done.json["limit"], done.json["epoch"]) == (True, 4, 1)
    assert (done.json["marks"], store.get(key)) == (key, None)
    async with Wal.open(copy) as found:
        assert found.tail == 4
    plain = await asyncio.to_thread(cli, "logs", "reset-head", copy)
    assert (plain.code, "no copy of a replicated log" in plain.error) == (3, True)
    put(
        store, key, Synced("ab" * 16, 1, 1, {"tls://a": 9}).encode()
    )  # of a log made from its bucket
    assert (await asyncio.to_thread(cli, "logs", "reset-head", copy, "--confirm")).code == 0
    assert store.get(key) is None


async def test_a_copy_is_reset_where_no_etcd_is_known(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cluster.CLUSTER_VARIABLE, raising=False)
    async with Cluster(tmp_path) as machines:
        wal = await machines.primary(0)
        await wal.append(b"v")
        await wal.aclose()
    done = await asyncio.to_thread(cli, "logs", "reset-head", tmp_path / "m1/orders", "--confirm")
    assert (done.code, "give --cluster" in done.err) == (0, True)


async def test_a_copy_is_given_up(cli: Cli, tmp_path: Path) -> None:
    async with Cluster(tmp_path) as machines:
        wal = await machines.primary(0)
        await wal.append_many([b"v"] * 3)
        await wal.aclose()
        copy = tmp_path / "m1" / "orders"
        locked = await asyncio.to_thread(cli, "logs", "give-up", copy, "--confirm")
        assert locked.code == 4
    dry = await asyncio.to_thread(cli, "logs", "give-up", copy, "--json")
    assert (dry.code, dry.json["given_up"], "give --confirm" in dry.err) == (0, False, True)
    assert (dry.json["first"], dry.json["limit"], dry.json["differs_from"]) == (1, 4, None)
    done = await asyncio.to_thread(cli, "logs", "give-up", copy, "--confirm", "--json")
    assert done.json["given_up"]
    assert not copy.exists()
    assert list(Path(done.json["kept_in"]).glob("*.wal"))
    plain = await asyncio.to_thread(cli, "logs", "give-up", copy)
    assert (plain.code, "no copy of a replicated log" in plain.error) == (3, True)
