"""Reloading: SIGHUP lets a server read its tokens and its certificate again."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from walstore.core.runtime.tasks import start_task, wait_ended
from walstore.errors import InvalidSettingsError
from walstore.serve import AccessTokens
from walstore.serve.server_certificate import ServerCertificate

logger = logging.getLogger("walstore.serve")


@asynccontextmanager
async def reloading(
    tokens: AccessTokens | None, certificate: ServerCertificate | None
) -> AsyncIterator[None]:
    """Read the files of tokens and certificate again at each SIGHUP, until the block ends; None for none.

    What cannot be used changes nothing, and is logged as an error. A certificate that ends soon has a warning
    every day.
    """
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    with suppress(RuntimeError, ValueError):  # not the main thread, which gets no signals
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    tasks = [start_task(_reload(asked, tokens, certificate), name="walstore serve reload")]
    if certificate is not None:
        tasks.append(start_task(certificate.watch(), name="walstore serve certificate"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            await wait_ended(task)
        with suppress(RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGHUP)


async def _reload(
    asked: asyncio.Event, tokens: AccessTokens | None, certificate: ServerCertificate | None
) -> None:
    sources = (
        (tokens, "tokens", "stay as they were", "were"),
        (certificate, "certificate", "stays as it was", "was"),
    )
    while True:
        await asked.wait()
        asked.clear()
        for source, what, stays, was in sources:
            if source is None:
                continue
            try:
                await source.reload()
            except InvalidSettingsError as error:
                logger.error("SIGHUP: the %s %s: %s", what, stays, error)
            else:
                logger.info("SIGHUP: the %s %s read again", what, was)
        if tokens is None and certificate is None:
            logger.info("SIGHUP: there is no file of tokens and no certificate to read again")
