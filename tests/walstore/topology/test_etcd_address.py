"""EtcdAddress: what is an address of etcd, and that none shows a password."""

from __future__ import annotations

import pytest

from tests.cases import case
from walstore.errors import InvalidSettingsError
from walstore.topology.etcd_address import (
    EtcdAddress,
    check_endpoints,
    parse_etcd,
    parse_etcd_address,
)


def test_addresses() -> None:
    for text, endpoints in (
        ("etcd://host", ["http://host:2379"]),
        ("etcd://host:1,host2/", ["http://host:1", "http://host2:2379"]),
        ("etcds://a.example:2379,[::1]:7", ["https://a.example:2379", "https://[::1]:7"]),
        ("etcd://u:p@10.0.0.1,10.0.0.1:2379", ["http://10.0.0.1:2379"]),
    ):
        with case(text):
            assert parse_etcd(text) == endpoints


def test_credentials() -> None:
    address = parse_etcd_address("etcds://us%40er:p%3Aa@s%2Cs:/@host,two")
    assert (address.user, address.password) == ("us@er", "p:a@s,s:/")
    assert address.endpoints == ("https://host:2379", "https://two:2379")
    assert address.is_encrypted
    assert "p:a" not in repr(address)


def test_what_is_no_address() -> None:
    for text in (
        "",
        "host:2379",
        "http://host",
        "etcd:",
        "etcd://",
        "etcd://host,",
        "etcd://host:0",
        "etcd://host:65536",
        "etcd://host:x",
        "etcd://host/path",
        "etcd://host?a=b",
        "etcd://host#f",
        "etcd://ho st",
        "etcd://host\n",
        "etcd://[::1",
        "etcd://[1.2.3.4]",
        "etcd://secret@host",
        "etcd://:secret@host",
        "etcd://user:@host",
        "etcd://a,user:secret@host",
        "etcd://user:secret@",
        "etcd://user:secret@host/secret2@",
        "user:secret@host",
        "http://user:secret@host",
    ):
        with case(text):
            with pytest.raises(InvalidSettingsError) as caught:
                parse_etcd(text)
            assert "secret" not in str(caught.value)
    with pytest.raises(TypeError):
        parse_etcd(["etcd://host"])


def test_endpoints() -> None:
    assert check_endpoints(["http://a", "http://b:1/", "http://a:2379"]) == EtcdAddress(
        ("http://a:2379", "http://b:1")
    )
    assert check_endpoints("etcd://a") == EtcdAddress(("http://a:2379",))
    for wrong in ([], ["a:1"], ["etcd://a"], ["http://a", "https://b"], ["http://u:secret@a"]):
        with case(wrong):
            with pytest.raises(InvalidSettingsError) as caught:
                check_endpoints(wrong)
            assert "secret" not in str(caught.value)
    with pytest.raises(TypeError):
        check_endpoints([1])
