"""What etcd answers, right and wrong, and the bounds of prefixes."""

from __future__ import annotations

import json

import pytest

from tests.cases import case
from walstore.errors import (
    AccessDeniedError,
    LimitExceededError,
    StorageUnavailableError,
)
from walstore.topology import etcd_messages as messages
from walstore.topology.etcd_messages import EtcdEndpointError, EtcdRefusalError, prefix_end
from walstore.topology.key_values import KeyValue, LeaseLostError


def test_the_end_of_a_prefix() -> None:
    for prefix, end in (
        (b"", b"\0"),
        (b"a", b"b"),
        (b"a/", b"a0"),
        (b"a\xff", b"b"),
        (b"a\xff\xff", b"b"),
        (b"\xff\xff", b"\0"),
        (b"a\0", b"a\x01"),
    ):
        with case(prefix):
            assert prefix_end(prefix) == end
    assert messages.prefix_body("") == {"key": "AA==", "range_end": "AA=="}


def test_keys_of_other_programs_are_kept() -> None:
    body = {"header": {"revision": 7}, "kvs": [{"key": "/w==", "mod_revision": 5, "value": "YQ=="}]}
    found, revision = messages.found_of(body)
    assert (found, revision) == (KeyValue("\udcff", b"a", 5), 7)


def test_refusals_and_failures() -> None:
    for status, answer, is_open in (
        (200, {"error": {"grpc_code": 14, "http_code": 503, "message": "no leader"}}, True),
        (200, {"error": "unknown"}, True),
        (503, {"error": "x", "code": 14}, True),
        (400, {"error": "x", "code": []}, True),
        (429, {"error": "etcdserver: too many requests", "code": 8}, False),
        (404, {}, False),
        (429, {"error": "grpc: received message larger than max", "code": 8}, True),
    ):
        with case(status, answer), pytest.raises(EtcdEndpointError) as caught:
            _parse(answer, status)
        assert caught.value.is_open == is_open
    for status, answer, lease, kind, is_retriable in (
        (200, {"error": {"grpc_code": 5, "message": "no lease"}}, 7, LeaseLostError, False),
        (404, {"error": "no lease", "code": 5}, 0, StorageUnavailableError, False),
        (401, {}, 0, AccessDeniedError, False),
        (403, {}, 0, AccessDeniedError, False),
        (400, {"message": "authentication failed", "code": 3}, 0, AccessDeniedError, False),
        (400, {"message": "request is too large", "code": 3}, 0, LimitExceededError, False),
        (400, {"message": "key is not provided", "code": 3}, 0, StorageUnavailableError, False),
        (429, {"error": "etcdserver: space exceeded", "code": 8}, 0, StorageUnavailableError, True),
    ):
        with case(status, answer):
            with pytest.raises(EtcdRefusalError) as refused:
                _parse(answer, status)
            error = refused.value.as_error(lease)
            assert type(error) is kind
            assert error.retriable == is_retriable


def test_what_is_no_answer() -> None:
    for answer in (b"", b"{", b"\xff", b"1", b"null", b"[]", b'"error"', b"{}", b"[" * 100_000):
        for decode in (
            messages.found_of,
            messages.snapshot_of,
            messages.lease_of,
            messages.seconds_of,
            messages.token_of,
        ):
            with case(answer[:10], decode), pytest.raises(EtcdEndpointError, match="not an answer"):
                messages.parse("http://node", answer, decode)
    for item in ({}, {"key": "?"}, {"key": "YQ==", "mod_revision": "x"}, {"key": 1}, None):
        answer = json.dumps({"header": {"revision": "1"}, "kvs": [item]}).encode()
        with case(item), pytest.raises(EtcdEndpointError):
            messages.parse("http://node", answer, messages.found_of)
    for token in (1, "a\nb", "ü"):
        with case(token), pytest.raises(EtcdEndpointError):
            messages.parse("", json.dumps({"token": token}).encode(), messages.token_of)


def _parse(answer: object, status: int) -> None:
    messages.parse("http://node", json.dumps(answer).encode(), messages.revision_of, status=status)
