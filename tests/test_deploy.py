"""deploy/: what its files start is a command line of ours, of this version, and they say the same."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.programs import COMMANDS, WALSTORE, run

ROOT: Final = Path(__file__).parent.parent
DEPLOY: Final = ROOT / "deploy"
DOCKERFILE: Final = (DEPLOY / "Dockerfile").read_text()
COMPOSE: Final = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICE, STATEFUL_SET = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
UNIT: Final = (DEPLOY / "walstore.service").read_text()
ENTRYPOINT: Final = json.loads(re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[0])
POD: Final = STATEFUL_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
EXEC: Final = shlex.split(re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)[0])


def shown(tmp_path: Path, words: list[str]) -> dict[str, Any]:
    """Return the settings that a command line of a file has."""
    assert words[1] == "serve"
    at = {"/data/logs": tmp_path / "logs", "/var/lib/walstore/logs": tmp_path / "logs"}
    at["/etc/walstore/walstore.toml"] = DEPLOY / "walstore.toml"
    arguments = [at.get(word, word) for word in words[2:]]
    environment = {"WALSTORE_TOKEN": "t"}
    code = f"import os; os.environ.update({environment!r})\n{WALSTORE}"
    done = run(code, "serve", *arguments, "--show-config", "--json", imports=COMMANDS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_container_starts_a_server(tmp_path: Path) -> None:
    found = shown(tmp_path, ENTRYPOINT)
    assert found["log.retention_bytes"]["source"] == "default"


def test_compose_adds_options_to_it(tmp_path: Path) -> None:
    server = COMPOSE["services"]["walstore"]
    found = shown(tmp_path, [*ENTRYPOINT, *server["command"]])
    assert found["log.retention_bytes"] == {"value": 10 << 30, "source": "--set"}
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])


def test_kubernetes_adds_options_to_it(tmp_path: Path) -> None:
    found = shown(tmp_path, [*ENTRYPOINT, *CONTAINER["args"]])
    assert found["log.retention_bytes"]["source"] == "--set"
    drain = found["serve.drain_seconds"]["value"]
    assert POD["terminationGracePeriodSeconds"] > drain
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert POD["securityContext"]["runAsUser"] == int(user)
    assert SERVICE["spec"]["selector"] == STATEFUL_SET["spec"]["selector"]["matchLabels"]
    (claim,) = STATEFUL_SET["spec"]["volumeClaimTemplates"]
    mounts = {one["name"]: one["mountPath"] for one in CONTAINER["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/data"


def test_the_unit_starts_a_server(tmp_path: Path) -> None:
    found = shown(tmp_path, EXEC)
    assert found["log.retention_bytes"]["value"] == 10 << 30
    assert found["log.retention_bytes"]["source"] == str(DEPLOY / "walstore.toml")
    stop = int(re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[0])
    assert stop > found["serve.drain_seconds"]["value"]
    assert "Type=notify" in UNIT
    assert re.findall(r"^ExecReload=(.*)$", UNIT, re.MULTILINE) == ["/bin/kill -HUP $MAINPID"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is missing")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a program in the place of the installed one."""
    unit = tmp_path / "walstore.service"
    unit.write_text(UNIT.replace("/opt/walstore/bin/walstore", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ports_are_the_same_everywhere() -> None:
    ports = set(re.findall(r"0\.0\.0\.0:(\d+)", " ".join(ENTRYPOINT)))
    (exposed,) = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    assert set(exposed.split()) == ports
    assert {str(one["containerPort"]) for one in CONTAINER["ports"]} == ports
    assert {str(one["port"]) for one in SERVICE["spec"]["ports"]} == ports
    published = COMPOSE["services"]["walstore"]["ports"]
    assert {one.rpartition(":")[2] for one in published} == ports
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", " ".join(EXEC))) == ports
    names = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
    watched = str(names["metrics"])
    assert f"127.0.0.1:{watched}/health" in DOCKERFILE
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == "metrics"


def test_the_image_has_what_the_server_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'pip install .*"\.\[(.*)\]"', DOCKERFILE)
    known = project["optional-dependencies"]
    assert set(extras.split(",")) <= known.keys()
    assert {"cli", "cloud", "metrics", "serve"} <= set(extras.split(","))
    for sources in re.findall(r"^COPY ([^-].*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    assert project["license-files"] == ["LICENSE"]  # the build needs it, and README.md
