"""What ``python -m tools.fragile_tests`` finds, and what it does not."""

from __future__ import annotations

import pytest

from tools.fragile_tests import EXCEPTIONS, ROOT, find, find_all

REAL = [
    "import time\ntime.sleep(1)",
    "from time import sleep as nap\nnap(0.1)",
    "import asyncio\nasync def test():\n    await asyncio.sleep(0.01)",
    "import asyncio\nasync def test(seconds):\n    await asyncio.sleep(seconds)",
    "import asyncio\nimport time\nasync def test():\n    await asyncio.to_thread(time.sleep, 0.1)",
    "import threading\nthreading.Event().wait(0.1)",
    "from threading import Event\nEvent().wait(timeout=60)",
    "import time\nbegan = time.monotonic()",
    "import time\nlog(clock=time.time_ns)",
    "from time import perf_counter\nbegan = perf_counter()",
    "import time\nused = time.process_time()",
    "async def test(loop):\n    began = loop.time()",
    "import asyncio\nasync def test():\n    began = asyncio.get_running_loop().time()",
]
LIMITS = [
    "import asyncio\nasync def test():\n    async with asyncio.timeout(5):\n        pass",
    "import asyncio\nasync def test(clock):\n    await asyncio.wait_for(event.wait(), 0.5)",
    "import asyncio\nSHORT = 9.5\nasync def test():\n    await asyncio.wait_for(future, timeout=SHORT)",
    "import subprocess\nsubprocess.run(command, timeout=2)",
    "import threading\nthread.join(1)",
    "import pytest\n@pytest.mark.timeout(5)\ndef test():\n    pass",
    "async def test():\n    await until(found, seconds=3)",
    "async def until(condition, *, seconds: float = 5):\n    pass",
]
SETTINGS = [
    "async def test():\n    await cluster.open(lease_seconds=1)",
    "async def test():\n    await connect(address, connect_seconds=0.1)",
    "async def test():\n    await connect(address, connect_seconds=0.1, clock=SystemClock())",
    'options = {"lease_seconds": 1, **more}',
    "LEASE_SECONDS = 2.0",
    "REQUEST_SECONDS: Final = 2.0",
    "def member(patience_seconds: float = 0.5):\n    pass",
    "async def test():\n    open(lease_seconds=1)\n\nasync def test_other(clock):\n    pass",
]
FINE = [
    "import asyncio\nasync def test():\n    await asyncio.sleep(0)",
    "import asyncio\nasync def test():\n    async with asyncio.timeout(60):\n        await event.wait()",
    "import asyncio\nasync def test():\n    async with asyncio.timeout(0):\n        await event.wait()",
    "import subprocess\nsubprocess.run(command, timeout=60)",
    "import threading\nthreading.Event().wait()",
    "import threading\nasync def test():\n    await watermark.wait(5)",
    "async def test(clock):\n    began = clock.monotonic()\n    await clock.sleep(1)",
    "async def test(clock):\n    await cluster.open(lease_seconds=1)",
    "async def test():\n    await cluster.open(clock=ManualClock(), lease_seconds=1)",
    "async def test():\n    await cluster.open(lease_seconds=60, interval_seconds=0.1)",
    "from tests.waiting import RUNS_OUT_SECONDS\nconnect(connect_seconds=RUNS_OUT_SECONDS)",
    "from datetime import datetime, timedelta\nat = datetime.now().time(), timedelta(seconds=1)",
    "import asyncio\nloop = VirtualLoop()\nasync def test(loop):\n    await asyncio.sleep(loop.time())",
]


@pytest.mark.parametrize("text", [*REAL, *LIMITS, *SETTINGS])
def test_what_depends_on_the_machine_is_found_once(text: str) -> None:
    assert len(find("tests/test_it.py", text)) == 1


@pytest.mark.parametrize("text", FINE)
def test_what_does_not_is_not(text: str) -> None:
    assert find("tests/test_it.py", text) == []


def test_the_loop_of_simulations_is_virtual_but_no_clock_is() -> None:
    text = (
        "import asyncio\nimport time\nasync def act():\n    await asyncio.sleep(1)\n    time.time()"
    )
    assert [found.line for found in find("tests/sim/it.py", text)] == [5]


def test_a_finding_names_its_place_and_what_to_do() -> None:
    (found,) = find(
        "tests/it.py", "import time\nclass A:\n    def nap(self):\n        time.sleep(1)"
    )
    assert found.function == "A.nap"
    assert str(found) == (
        "tests/it.py:4: time.sleep waits for time: await the event itself, or a ManualClock"
    )


def test_every_exception_has_a_place_and_a_reason() -> None:
    used = {found.exception for found in find_all()}
    assert set(EXCEPTIONS) == used - {None}
    assert all((ROOT / name.split()[0]).is_file() for name in EXCEPTIONS)
    assert all(EXCEPTIONS.values())
