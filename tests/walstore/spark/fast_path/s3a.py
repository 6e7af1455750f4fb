"""A session of its own with Hadoop's S3A connector, run as ``python s3a.py JARS URL`` by test_s3a.py.

The credentials are in this process's environment, from where the JVM has them. Prints what was read.
"""

from __future__ import annotations

import json
import sys
from urllib.parse import urlsplit

from tests.walstore.spark.fast_path.building import both, is_native
from walstore.spark import FastPathError, local_session, read


def main(jars: str, url: str) -> None:
    session = local_session(threads=2, config={"spark.driver.extraClassPath": f"{jars}/*"})
    bucket = urlsplit(url).netloc
    frame = read(session, url, fast_path="always")
    found = {
        "native": is_native(frame),
        "rows": len(both(session, url)),
        "cut": len(both(session, url, startingOffsets=15, endingOffsets=400, stream="eu")),
        "inputs": sorted({name.partition("://")[0] for name in frame.inputFiles()}),
        # Not for the whole session: other stores may have a bucket of that name.
        "setting": session._jsc.hadoopConfiguration().get(f"fs.s3a.bucket.{bucket}.endpoint"),
    }
    try:
        read(session, f"{url}&region=us-east-1", {"store.endpoint_url": "x"}, fast_path="always")
    except (FastPathError, ValueError) as error:
        found["mistake"] = type(error).__name__
    sys.stdout.write(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
