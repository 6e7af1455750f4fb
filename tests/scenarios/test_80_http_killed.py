"""Producers over HTTP and their server, killed in turn: a live reader sees each message once, in order."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import signal
import socket
import subprocess
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from tests import programs
from tests.effort import first_seed, some
from tests.programs import COMMANDS, WALSTORE, Program
from tests.scenarios.test_78_served_and_killed import wait_for_more

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(600)]

KILLS = some(80)
"""In turn the server and a producer."""
PRODUCERS = 3
STREAM = "/v1/stream/shop/orders"
PRODUCER = """
import http.client, os, sys, time

ports, name, epoch, acks = sys.argv[1].split(","), sys.argv[2], sys.argv[3], sys.argv[4]
file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = turn = 0
connection = None
while True:
    if connection is None:
        connection = http.client.HTTPConnection("127.0.0.1", int(ports[turn % len(ports)]), timeout=30)
        turn += 1
    headers = {
        "Content-Type": "application/json",
        "Producer-Id": name, "Producer-Epoch": epoch, "Producer-Seq": str(number),
    }
    value = f'"{name} {epoch} {number}"'
    try:
        connection.request("POST", "STREAM", value, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        connection = None
        time.sleep(0.01)
        continue
    if answer.status in (502, 503):  # of 502 it may have been done: the producer says whether
        connection.close()
        connection = None
        time.sleep(0.01)
        continue
    assert answer.status in (200, 204), answer.status
    os.write(file, (value.strip('"') + "\\n").encode())
    number += 1
""".replace("STREAM", STREAM)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def start_server(directory: Path, port: int) -> Program:
    place = f"127.0.0.1:{port}"
    command = ("serve", directory, "--store", "--http", place)
    server = programs.start(WALSTORE, *command, imports=COMMANDS, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline().startswith(b"serving")
    while not server.stdout.readline().startswith(b"at       http"):
        assert server.poll() is None
    return server


class Follower(threading.Thread):
    """Reads the stream by long polls, over whatever happens to the servers, asked in turn."""

    def __init__(self, *ports: int, stream: str = STREAM) -> None:
        super().__init__()
        self.stream = stream
        self.ports = itertools.cycle(ports)
        self.messages: list[str] = []
        self.is_ending = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            offset = "-1"
            while True:
                is_last = self.is_ending  # an answer of before may be older than the last message
                found = self._poll(offset)
                if found is None:
                    continue
                offset, messages, is_up_to_date = found
                self.messages += messages
                if is_last and is_up_to_date:
                    return
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def _poll(self, offset: str) -> tuple[str, list[str], bool] | None:
        connection = http.client.HTTPConnection("127.0.0.1", next(self.ports), timeout=30)
        live = "" if self.is_ending else "&live=long-poll"
        try:
            connection.request("GET", f"{self.stream}?offset={offset}{live}")
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if answer.status in (502, 503):
            return None
        assert answer.status in (200, 204), answer.status
        following = answer.headers["Stream-Next-Offset"]
        messages = json.loads(body) if body else []
        return following, messages, answer.headers.get("Stream-Up-To-Date") == "true"


def test_each_message_is_there_once_and_seen_once(tmp_path: Path) -> None:
    chance, port, acks = random.Random(first_seed("serving HTTP")), free_port(), tmp_path / "acks"
    acks.touch()
    server = start_server(tmp_path / "store", port)
    create(port)
    epochs = dict.fromkeys((f"p{at}" for at in range(PRODUCERS)), 0)
    producers: dict[str, Program] = {}

    def start(name: str) -> None:
        producers[name] = programs.start(PRODUCER, port, name, epochs[name], acks)

    follower = Follower(port)
    follower.start()
    try:
        for name in epochs:
            start(name)
        for kill in range(KILLS):
            wait_for_more(acks, chance.randrange(1, 200))
            assert all(one.poll() is None for one in producers.values())
            if kill % 2:
                name = chance.choice(sorted(epochs))
                producers[name].kill()
                producers[name].wait()
                epochs[name] += 1
                start(name)
            else:
                server.send_signal(signal.SIGKILL)
                server.communicate()
                server = start_server(tmp_path / "store", port)
        wait_for_more(acks, 100)
    finally:
        for one in producers.values():
            one.kill()
            one.wait()
        follower.is_ending = True
        follower.join(60)
        server.kill()
        server.communicate()
    assert follower.error is None
    check(follower.messages, acks.read_text().splitlines(), KILLS)


def create(port: int, stream: str = STREAM) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", stream, headers={"Content-Type": "application/json"})
    assert connection.getresponse().status == 201
    connection.close()


def check(messages: list[str], acknowledged: list[str], kills: int) -> None:
    """All that was acknowledged is there; the messages of a producer's life have no gap."""
    assert len(set(messages)) == len(messages)
    assert set(acknowledged) <= set(messages)
    lives: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for message in messages:
        name, epoch, number = message.split()
        lives[name, epoch].append(int(number))
    for life, numbers in lives.items():
        assert numbers == [*range(len(numbers))], life
    assert len(messages) - len(acknowledged) <= kills  # a killed producer cannot note its last one
