"""An archive of Spark's classes: a JVM that maps it starts with half the processor time.

``python -m tests.spark_classes`` makes it once for a virtual environment, with a session that does what the
tests do: it reads a log, streams from it, and reads and writes Parquet. Java ignores an archive of another
Java or of other jars, so it never has to be deleted. Without one, the tests are only slower.

``spark_path`` does the like for Spark's Python processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / ".spark-classes.jsa"

# Java's optimising compiler takes more than it gives to a program that runs for seconds, and so do the
# threads of its parallel collector.
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET: Final = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """Return the options of a JVM that lives for the seconds of a test."""
    if not ARCHIVE.exists():
        return _SHORT_LIVED
    return f"{_SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} {_QUIET}"


def python_path(*more: str | Path) -> str:
    """Return the PYTHONPATH of Spark's Python processes, and of who starts them."""
    return os.pathsep.join([str(Path(__file__).with_name("spark_path")), *map(str, more)])


def _use_spark(directory: Path) -> None:
    """Load the classes that the tests load."""
    import asyncio

    from walstore import Wal
    from walstore.spark import local_session

    async def write_log() -> None:
        async with Wal.open(directory / "log") as wal:
            await wal.append_many([b"%d" % number for number in range(100)])

    asyncio.run(write_log())
    spark = local_session(threads=2, config={"spark.sql.shuffle.partitions": "2"})
    log = str(directory / "log")
    records = spark.read.format("walstore").load(log)
    records.write.parquet(str(directory / "table"))
    table = spark.read.parquet(str(directory / "table"))
    table.groupBy("stream").count().orderBy("count").collect()
    stream = spark.readStream.format("walstore").load(log).writeStream.format("parquet")
    stream = stream.option("checkpointLocation", str(directory / "checkpoint"))
    query = stream.trigger(availableNow=True).start(str(directory / "streamed"))
    query.awaitTermination()
    gateway = spark.sparkContext._gateway  # PySpark has no public name for it
    assert gateway is not None
    java = gateway.proc
    spark.stop()
    java.stdin.close()  # Java ends when its input does, and writes the archive then
    java.wait(timeout=120)


def _make() -> None:
    part = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={part} {_QUIET}"
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.spark_classes", directory]
        subprocess.run(command, env=environment, check=False, stdin=subprocess.DEVNULL)
    if part.exists():
        part.replace(ARCHIVE)


def main() -> int:
    """Make the archive, unless it is there or Spark cannot run here."""
    if sys.argv[1:]:
        _use_spark(Path(sys.argv[1]))
        return 0
    from walstore.spark import problem

    if not ARCHIVE.exists() and not problem():
        _make()
    return 0


if __name__ == "__main__":
    sys.exit(main())
