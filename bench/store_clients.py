"""What a request to an S3 server costs this process: aioboto3 compared with obstore.

Run from the root of the repository, with a server that is another process; it takes a minute::

    python tests/s3/rgw.py run python -m bench.store_clients [--rounds 3] [--puts 200]

Puts of new objects, one after the other, and gets of them; the rounds of the two clients are interleaved. The
processor time is that of this process, all threads, so signing, hashing and HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
import uuid
from contextlib import aclosing
from typing import Final

import boto3

from tests.s3.rgw import ACCESS_KEY, ENDPOINT, SECRET_KEY
from uploader.stores import open_store

CLIENTS: Final = ("aioboto3", "obstore")
SIZES: Final = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}


async def one_round(url: str, size_bytes: int, puts: int) -> dict[str, float]:
    """Return milliseconds of the processor for a put and a get, and of a put's time."""
    keys = [f"{uuid.uuid4().hex}/{number}" for number in range(puts)]
    data = os.urandom(size_bytes)
    async with aclosing(open_store(url)) as store:
        await store.put_if_absent(uuid.uuid4().hex, data)  # connects
        began, used = time.perf_counter(), time.process_time()
        for key in keys:
            await store.put_if_absent(key, data)
        took, put = time.perf_counter() - began, time.process_time() - used
        used = time.process_time()
        for key in keys:
            assert len((await store.get(key)).data) == size_bytes
        got = time.process_time() - used
    parts = {"put, processor": put, "get, processor": got, "put, time": took}
    return {name: value / puts * 1e3 for name, value in parts.items()}


async def main(rounds: int, puts: int) -> None:
    """Measure and print a table."""
    endpoint = os.environ[ENDPOINT]
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    bucket = f"bench-{uuid.uuid4().hex[:8]}"
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=bucket)
    place = f"s3://{bucket}/x?endpoint_url={endpoint}&region=us-east-1&client="
    for name, size_bytes in SIZES.items():
        found: dict[str, list[dict[str, float]]] = {client: [] for client in CLIENTS}
        for _ in range(rounds):
            for client in CLIENTS:
                found[client].append(await one_round(place + client, size_bytes, puts))
        for what in found[CLIENTS[0]][0]:
            old, new = (statistics.median(one[what] for one in found[client]) for client in CLIENTS)
            print(
                f"{name:8}{what:16}aioboto3 {old:6.2f} ms   obstore {new:6.2f} ms   {new / old:.2f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--puts", type=int, default=200)
    options = parser.parse_args()
    asyncio.run(main(options.rounds, options.puts))
