"""LogHandler: records of logging in a log, whatever happens to the log meanwhile."""

from __future__ import annotations

import json
import logging
import logging.config
import math
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.cases import case
from tests.waiting import RUNS_OUT_SECONDS
from tests.walstore.serve.served import serving_from_a_thread
from walstore import sync
from walstore.core.settings import Settings
from walstore.log_handler import LogHandler


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.Logger("app")  # noqa: LOG001 - one of its own
    yield made
    for handler in list(made.handlers):
        handler.close()


def values(path: Path) -> list[Any]:
    with sync.open(path) as log:
        return [json.loads(record.value) for record in log.reader(follow=False)]


def test_records_are_json(tmp_path: Path, logger: logging.Logger) -> None:
    handler = LogHandler(tmp_path / "log", stream="app")
    logger.addHandler(handler)
    logger.info("hello %s", "world", extra={"user": 7, "where": Path("/x")})
    try:
        raise ValueError("oops")
    except ValueError:
        logger.exception("failed")
    handler.close()
    first, second = values(tmp_path / "log")
    assert first | {"time": ""} == {
        "time": "", "level": "INFO", "logger": "app", "message": "hello world", "user": 7, "where": "/x",
    }  # fmt: skip
    assert second["exception"].endswith("ValueError: oops")
    with sync.open(tmp_path / "log") as log:
        assert {record.stream for record in log.reader(follow=False)} == {"app"}


def test_a_formatter_and_a_configuration(tmp_path: Path) -> None:
    logging.config.dictConfig({
        "version": 1, "disable_existing_loggers": False,
        "formatters": {"short": {"format": "%(levelname)s %(message)s"}},
        "handlers": {
            "log": {
                "class": "walstore.log_handler.LogHandler",
                "target": str(tmp_path / "log"), "formatter": "short",
            },
        },
        "loggers": {"configured": {"handlers": ["log"], "level": "INFO", "propagate": False}},
    })  # fmt: skip
    configured = logging.getLogger("configured")
    configured.warning("a\udc80")
    for handler in list(configured.handlers):
        configured.removeHandler(handler)
        handler.close()
    with sync.open(tmp_path / "log") as log:
        assert [record.value for record in log.reader(follow=False)] == [b"WARNING a?"]


def test_many_threads(tmp_path: Path, logger: logging.Logger) -> None:
    handler = LogHandler(tmp_path / "log")
    logger.addHandler(handler)

    def work(name: str) -> None:
        for number in range(200):
            logger.info("%s %d", name, number)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.close()
    handler.close()
    found = [value["message"].split() for value in values(tmp_path / "log")]
    for name in "abcd":
        assert [int(number) for who, number in found if who == name] == list(range(200))
    assert handler.dropped == 0


def test_what_does_not_fit_is_dropped_and_told(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = LogHandler(tmp_path / "log", capacity=3, flush_seconds=0.05)
    logger.addHandler(handler)
    with sync.open(tmp_path / "log"):  # so the handler cannot
        for number in range(10):
            logger.info("%d", number)
        handler.flush()
    assert handler.dropped >= 4  # three may be in the queue, and three in the hands of the thread
    handler.flush_seconds = 20  # now it can
    handler.flush()
    logger.info("last")
    handler.close()
    found = values(tmp_path / "log")
    told = [value for value in found if value["logger"] == "walstore"]
    # Once, or twice if the thread took more in between.
    counts = [
        value["message"].removesuffix(" records were dropped before this one") for value in told
    ]
    assert sum(map(int, counts)) == handler.dropped
    assert len(found) - len(told) + handler.dropped == 11
    assert capsys.readouterr().err.count("walstore.log_handler:") == 1


def test_a_record_that_is_too_large_takes_no_other_with_it(
    tmp_path: Path, logger: logging.Logger
) -> None:
    handler = LogHandler(tmp_path / "log", settings=Settings(max_record_bytes=1000))
    logger.addHandler(handler)
    for text in ("a", "x" * 2000, "b"):
        logger.info(text)
    handler.close()
    told = "1 records were dropped before this one"  # unless all were written at once
    assert [one["message"] for one in values(tmp_path / "log") if one["message"] != told] == [
        "a",
        "b",
    ]
    assert handler.dropped == 1


def test_only_what_was_logged_counts_as_dropped(tmp_path: Path, logger: logging.Logger) -> None:
    """The records that tell of others are the handler's own, and may be refused as well."""
    settings = Settings(max_record_bytes=200)
    handler = LogHandler(tmp_path / "log", settings=settings, flush_seconds=20)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    for text in ("x" * 2000, "y" * 2000, "fine", "z" * 2000):
        logger.info(text)
        handler.flush()
    assert handler.dropped == 3
    logger.info("last")
    handler.close()
    with sync.open(tmp_path / "log") as log:
        found = [record.value for record in log.reader(follow=False)]
    assert found[1::2] == [b"fine", b"last"]
    told = [json.loads(value)["message"] for value in found[::2]]
    assert told == [
        "2 records were dropped before this one",
        "1 records were dropped before this one",
    ]


def test_a_log_that_refuses_the_word_of_what_was_dropped_takes_the_rest(
    tmp_path: Path, logger: logging.Logger
) -> None:
    settings = Settings(max_record_bytes=20)
    handler = LogHandler(tmp_path / "log", settings=settings, flush_seconds=20)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    for text in ("x" * 100, "a", "b", "y" * 100, "c"):
        logger.info(text)
    handler.close()
    with sync.open(tmp_path / "log") as log:
        assert [record.value for record in log.reader(follow=False)] == [b"a", b"b", b"c"]
    assert handler.dropped == 2


def test_what_is_dropped_at_the_end_is_counted_once(tmp_path: Path, logger: logging.Logger) -> None:
    handler = LogHandler(tmp_path / "log", capacity=3, flush_seconds=0.05)
    logger.addHandler(handler)
    with sync.open(tmp_path / "log"):  # so the handler cannot
        for number in range(7):
            logger.info("%d", number)
        handler.close()
        handler.flush_seconds = 20
        handler.close()  # its thread has ended then
    assert handler.dropped == 7
    assert values(tmp_path / "log") == []


def test_a_record_that_cannot_be_rendered_raises_nothing(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = LogHandler(tmp_path / "log")
    logger.addHandler(handler)
    logger.info("%d", "no number")
    handler.close()
    assert "no number" in capsys.readouterr().err


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_whatever_is_passed_as_extra_loses_no_record(
    tmp_path: Path, logger: logging.Logger
) -> None:
    circular: dict[str, Any] = {"a": 1}
    circular["self"] = circular
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    extras: list[tuple[Any, Any]] = [
        ({(1, 2): "pair"}, {"(1, 2)": "pair"}),
        (circular, None),
        (nested, None),
        (Silent(), "<Silent>"),
        (math.nan, "nan"),
        ([1.5, {"deep": -math.inf}], [1.5, {"deep": "-inf"}]),
        (1 << 20_000, hex(1 << 20_000)),
        (b"bytes", "b'bytes'"),
        ("\ud800", "\ud800"),
    ]
    handler = LogHandler(tmp_path / "log", flush_seconds=20)
    logger.addHandler(handler)
    for number, (given, _) in enumerate(extras):
        logger.info("%d", number, extra={"odd": given, "fine": 7})
    handler.close()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    with sync.open(tmp_path / "log") as log:
        texts = [record.value for record in log.reader(follow=False)]
    found = [json.loads(text, parse_constant=refuse) for text in texts]
    assert [(one["message"], one["fine"]) for one in found] == [
        (str(number), 7) for number in range(len(extras))
    ]
    for one, (_, expected) in zip(found, extras, strict=True):
        with case(one["message"]):
            assert expected in (None, one["odd"])
    nested.clear()


def test_extras_replace_nothing(tmp_path: Path, logger: logging.Logger) -> None:
    handler = LogHandler(tmp_path / "log", flush_seconds=20)
    logger.addHandler(handler)
    own = {"time": "noon", "level": 9, "logger": "x", "exception": "mine", "extra_level": 3}
    logger.info("hello", extra=own)
    handler.close()
    (found,) = values(tmp_path / "log")
    assert (found["level"], found["logger"], found["exception"]) == ("INFO", "app", "mine")
    assert datetime.fromisoformat(found["time"])
    assert (found["extra_time"], found["extra_logger"]) == ("noon", "x")
    assert sorted([found["extra_level"], found["extra_extra_level"]]) == [3, 9]


def test_closing_waits_once_for_what_cannot_be_written(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []

    def join(_: threading.Thread, timeout: float | None = None) -> None:
        waited.append(timeout)

    handler = LogHandler(f"unix://{tmp_path}/no.sock", flush_seconds=RUNS_OUT_SECONDS)
    logger.addHandler(handler)
    logger.info("hello")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", join)
        handler.close()
    assert waited == [0.0]  # all of the time went into writing
    handler.flush_seconds = 20
    handler.close()
    assert handler.dropped == 1


def test_walstore_itself_is_left_out(tmp_path: Path) -> None:
    handler = LogHandler(tmp_path / "log")
    record = logging.makeLogRecord({"name": "walstore.store", "msg": "x"})
    assert not handler.filter(record)
    handler.close()
    assert not (tmp_path / "log").exists()  # nothing was logged, nothing is opened


def test_bad_arguments(tmp_path: Path) -> None:
    for options in ({"capacity": 0}, {"flush_seconds": "x"}, {"level": "LOUD"}):
        with pytest.raises((ValueError, TypeError)):
            LogHandler(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        LogHandler(3)  # type: ignore[arg-type]
    for target, options in (
        ("foo://x", {}), ("unix://", {}), ("", {}), ("a\0", {}), ("~/log", {}), (tmp_path, {"nonsense": 1}),
        (tmp_path, {"durability": "bogus"}), (tmp_path, {"stream": ""}), (tmp_path, {"stream": 5}),
        (tmp_path, {"settings": {}}), ("unix:///s", {"settings": Settings()}), ("unix:///s", {"token": 5}),
        (tmp_path, {"token": "t"}), ("unix:///s", {"connect_seconds": 0}),
    ):  # fmt: skip
        with case((target, options)), pytest.raises((ValueError, TypeError)):
            LogHandler(target, **options)  # type: ignore[arg-type]
    logging.shutdown()  # nothing half made is left there


PROGRAM = """
import logging, os, sys
from walstore.log_handler import LogHandler
logging.getLogger().setLevel("INFO")
logging.getLogger().addHandler(LogHandler(sys.argv[1]))
logging.info("parent")
logging.getLogger().handlers[0].flush()
if sys.argv[2] == "fork" and not os.fork():
    logging.info("child")
    logging.shutdown()
    os._exit(0)
if sys.argv[2] == "fork":
    os.wait()
logging.info("at the end")
"""


def test_what_is_logged_last_is_written_when_the_program_ends(tmp_path: Path) -> None:
    assert programs.run(PROGRAM, tmp_path / "log", "-").returncode == 0
    assert [value["message"] for value in values(tmp_path / "log")] == ["parent", "at the end"]


def messages_of(path: Path, program: str) -> list[str]:
    """Run a program that is given the address of a server and ``fork``; return what is in the log then."""
    with serving_from_a_thread(path / "log") as address:
        assert programs.run(program, address, "fork").returncode == 0
    return sorted(value["message"] for value in values(path / "log"))


@pytest.mark.slow
def test_a_forked_child_connects_by_itself(tmp_path: Path) -> None:
    assert messages_of(tmp_path, PROGRAM) == ["at the end", "child", "parent"]


CHILDREN = """
import atexit, logging, multiprocessing, multiprocessing.util, sys
from walstore.log_handler import LogHandler
logging.getLogger().setLevel("INFO")
logging.getLogger().addHandler(LogHandler(sys.argv[1]))
logging.info("parent")
def child(number):
    multiprocessing.util.Finalize(None, logging.info, args=("%d at its end", number), exitpriority=1)
    if number == 1:
        grandchild = context.Process(target=child, args=(2,))
        grandchild.start()
    for at in range(10):
        logging.info("%d says %d", number, at)
    if number == 3:
        raise SystemExit(3)
context = multiprocessing.get_context("fork")
children = [context.Process(target=child, args=(number,)) for number in (0, 1, 3)]
for one in children:
    one.start()
for one in children:
    one.join()
logging.info("the end")
atexit.register(logging.info, "after the end")
"""


@pytest.mark.slow
def test_children_of_multiprocessing_write_what_they_log(tmp_path: Path) -> None:
    said = {f"{number} says {at}" for number in range(4) for at in range(10)}
    said |= {f"{number} at its end" for number in range(4)}
    assert set(messages_of(tmp_path, CHILDREN)) == said | {"parent", "the end", "after the end"}
