"""The commit record and the names around it: what is read is what was written, or refused."""

from __future__ import annotations

import json
import pickle

import pytest

from tests.uploader.partitioned.writes import NOW_US, new_job
from uploader.format.setsum import Setsum
from uploader.partitioned import WriteId, job_name
from uploader.partitioned.commit_record import CommitRecord, LogPlan, PublishPlace
from uploader.partitioned.stager import StagedFragment
from uploader.partitioned.write_id import job_time_us, parse_staged
from walstore.errors import CorruptionError, FormatVersionError, InvalidSettingsError

FRAGMENT = StagedFragment("sink/staging/x", 5, 9, 1000, 77, Setsum.of_items([b"x"]), (3, 4))
RECORD = CommitRecord(
    source="stream",
    generation=3,
    epoch=0,
    job=new_job(),
    committed_us=NOW_US,
    is_done=False,
    logs={
        2: LogPlan((FRAGMENT, FRAGMENT), PublishPlace(1, 7, 9)),
        0: LogPlan((FRAGMENT,), PublishPlace(0, 1, 1)),
    },
)


def test_a_record_comes_back():
    assert CommitRecord.parse(RECORD.serialise(), path="x") == RECORD
    assert CommitRecord.parse(RECORD.done().serialise(), path="x") == RECORD.done()
    assert RECORD.rows == 12
    assert pickle.loads(pickle.dumps(FRAGMENT)) == FRAGMENT


def test_no_two_versions_have_the_same_bytes():
    versions = [RECORD, RECORD.fenced(), RECORD.moved(0, PublishPlace(0, 2, 3)), RECORD.done()]
    assert len({version.serialise() for version in versions}) == 4
    assert RECORD.moved(0, PublishPlace(0, 2, 3)).logs[2] == RECORD.logs[2]


def test_which_epochs_a_record_has():
    assert [RECORD.has(epoch) for epoch in (0, 1)] == [True, False]
    none = CommitRecord("s", 1, None, RECORD.job, 0, is_done=True, logs={})
    assert not none.has(0)
    assert CommitRecord.parse(none.serialise(), path="x") == none


def changed(**changes: object) -> bytes:
    return json.dumps({**json.loads(RECORD.serialise()), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        changed(epoch="1"),
        changed(logs={}),
        changed(
            logs=[{"partition": 0, "base": {"at": 1, "seq_no": 1, "start": 1}, "fragments": []}]
        ),
        changed(
            logs=[
                {
                    "partition": 0,
                    "base": {"at": 0, "seq_no": 1, "start": 1},
                    "fragments": [{**FRAGMENT.to_json(), "limit": 5}],
                }
            ]
        ),
    ],
)
def test_a_damaged_record_is_refused(data):
    with pytest.raises(CorruptionError):
        CommitRecord.parse(data, path="x")


def test_a_newer_version_is_refused():
    with pytest.raises(FormatVersionError):
        CommitRecord.parse(changed(version=2), path="x")


def test_names_of_jobs_and_queries():
    job = job_name(NOW_US, "0123456789abcdef")
    assert job_time_us(job) == NOW_US
    once, named = WriteId.once(job), WriteId("orders", 17, job, "stream")
    assert (once.is_named, named.is_named) == (False, True)
    assert (once.record_key, named.record_key) == (f"sink/jobs/{job}", "sink/queries/orders")
    assert named.staging == f"sink/staging/orders/0000000000000011/{job}/"
    assert parse_staged(named.staging + "0-a/3-0.parquet") == ("orders", 17, job)
    assert parse_staged(once.staging + "0-a/3-0.parquet") == (job, 0, job)


@pytest.mark.parametrize("query", ["", ".x", "-x", "a/b", "é", "x" * 129, new_job()])
def test_names_that_cannot_be(query):
    with pytest.raises(InvalidSettingsError):
        WriteId(query, 0, new_job())


def test_a_job_that_is_none():
    with pytest.raises(InvalidSettingsError):
        WriteId("x", 0, "job")
    with pytest.raises(InvalidSettingsError):
        WriteId("x", -1, new_job())


@pytest.mark.parametrize(
    "base", [{"at": 0, "seq_no": 2**64 - 1, "start": 1}, {"at": 0, "seq_no": 1, "start": 2**64 - 4}]
)
def test_a_plan_that_ends_behind_all_numbers_is_refused(base: dict[str, int]) -> None:
    plan = {"partition": 0, "base": base, "fragments": [FRAGMENT.to_json()]}
    with pytest.raises(CorruptionError):
        CommitRecord.parse(changed(logs=[plan]), path="x")


def test_two_plans_for_one_log_are_refused() -> None:
    plan = json.loads(RECORD.serialise())["logs"][0]
    with pytest.raises(CorruptionError, match="two plans"):
        CommitRecord.parse(changed(logs=[plan, plan]), path="x")
    with pytest.raises(CorruptionError, match="partition"):
        CommitRecord.parse(changed(logs=[plan | {"partition": 1024}]), path="x")
