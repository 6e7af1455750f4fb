"""What is missing for Spark is said in words that help, before Spark says it in its own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from walstore.errors import WalError
from walstore.spark import environment, problem
from walstore.spark.environment import explain_worker


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def java(home: Path, version: str) -> Path:
    program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    return home


def session(python: str) -> SimpleNamespace:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))


def test_java_in_java_home(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "17.0.15")))
    assert problem() is None


def test_java_on_the_path(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java(tmp_path, '21')}/bin:{os.environ['PATH']}")
    assert problem() is None


def test_no_java(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = problem()
    assert found is not None
    for word in ("JAVA_HOME is not set", "apt-get install openjdk-17-jre-headless"):
        assert word in found
    with pytest.raises(WalError, match="finds none"):
        environment.require()


def test_java_home_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME is {tmp_path}" in (problem() or "")


@pytest.mark.parametrize(("version", "shown"), [("11.0.2", "11"), ("1.8.0_292", "8")])
def test_old_java(tmp_path, monkeypatch, version, shown):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    found = problem()
    assert found is not None
    assert f"java is {shown} " in found


def test_java_that_does_not_answer(tmp_path, monkeypatch):
    program(tmp_path / "bin" / "java", "exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not report its version" in (problem() or "")


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "pyarrow" else 1)
    with pytest.raises(WalError, match=r"pyarrow cannot be imported by .*walstore\[spark\]"):
        environment.require_packages()


def test_the_same_interpreter_is_not_asked(tmp_path):
    environment.require_interpreter(session(sys.executable))
    environment.require_interpreter(session(str(Path(sys.executable).with_name("python"))))


def test_another_interpreter_that_has_all(tmp_path):
    environment.require_interpreter(session(str(program(tmp_path / "python", "echo ok"))))


def test_another_interpreter_that_lacks_walstore(tmp_path):
    python = program(
        tmp_path / "python", 'echo "ModuleNotFoundError: No module named x" >&2; exit 1'
    )
    with pytest.raises(WalError, match="No module named x") as caught:
        environment.require_interpreter(session(str(python)))
    assert f"PYSPARK_PYTHON={sys.executable}" in str(caught.value)


def local(master: str, **settings: str) -> SimpleNamespace:
    context = SimpleNamespace(master=master, pythonExec="python3", getConf=lambda: settings)
    return SimpleNamespace(sparkContext=context)


@pytest.mark.parametrize(
    ("master", "settings", "chosen"),
    [
        ("local", {}, sys.executable),
        ("local[*]", {}, sys.executable),
        ("local-cluster[2,1,512]", {}, sys.executable),
        ("local[2]", {"spark.pyspark.python": "/opt/python"}, "/opt/python"),
        ("spark://host:7077", {"spark.pyspark.python": "/opt/python"}, "/opt/python"),
        ("spark://host:7077", {}, "python3"),
    ],
)
def test_the_interpreter_of_the_workers(monkeypatch, master, settings, chosen):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    found = local(master, **settings)
    environment.choose_interpreter(found)
    assert found.sparkContext.pythonExec == chosen


def test_an_interpreter_that_was_named_stays(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    found = local("local[*]", **{"spark.pyspark.python": "/opt/python"})
    environment.choose_interpreter(found)
    assert found.sparkContext.pythonExec == "python3"
    environment.choose_interpreter(SimpleNamespace())


def test_an_interpreter_that_is_not_there():
    assert shutil.which("no-such-python") is None
    with pytest.raises(WalError, match="no such program"):
        environment.require_interpreter(session("no-such-python"))


def test_a_session_that_does_not_tell():
    environment.require_interpreter(SimpleNamespace())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('java.io.IOException: Cannot run program "/x/python3": error=2', "cannot run /x/python3"),
        ("ModuleNotFoundError: No module named 'walstore'", "no module named 'walstore'"),
        ("ModuleNotFoundError: No module named 'uploader.x'", "no module named 'uploader.x'"),
        ("[PYTHON_VERSION_MISMATCH] 3.9 and 3.11", "another version of Python"),
    ],
)
def test_what_is_wrong_and_what_to_do(text, what):
    found = explain_worker(text)
    assert found is not None
    assert what in found
    assert "install walstore[spark] for one interpreter" in found


def test_other_errors_are_not_the_workers():
    assert explain_worker("No module named 'pandas'") is None
    assert explain_worker("org.apache.spark.SparkException: Job aborted") is None
