"""The simulated store, as one program sees it over a network that loses, delays and repeats requests.

A request that was sent may take effect whether or not its sender still waits, or lives: conditions are judged
at the moment of the effect. Everything is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Self

from tests.sim.loop import Killed, Process, SimLoop
from uploader.stores.port import (
    ListedObject,
    ObjectInfo,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
    check_key,
    check_range,
)
from uploader.stores.probe import Proof
from walstore.errors import Outcome, StorageUnavailableError

LATEST_SECONDS: Final = 7200.0
"""The latest that a request takes effect after it was sent."""
_TIMEOUT_SECONDS: Final = 30.0
_PATIENT_SECONDS: Final = 20_000.0
_ATTEMPTS: Final = 3
"""Of reads, listings and deletes, which a store repeats by itself."""


@dataclass
class Network:
    """How requests fare, as shares of all of them."""

    usual_seconds: float = 0.1
    """A request and its answer take about this."""
    slow: float = 0.0
    """Take up to 25 s."""
    lost: float = 0.0
    """Never arrive."""
    unanswered: float = 0.0
    """Take effect, and the answer is lost."""
    late: float = 0.0
    """Of those that change something: take effect after minutes or up to two hours."""
    twice: float = 0.0
    """Of the same: take effect, and once more, at once or hours later, judged anew."""
    busy: float = 0.0
    """Are refused, by a server that did nothing (503)."""
    broken: float = 0.0
    """End with a server that broke down, before or after it obeyed, or half done (500)."""
    patient: float = 0.0
    """Are waited for without a time limit."""

    @property
    def is_fine(self) -> bool:
        """Whether every request is answered."""
        return not (self.lost or self.unanswered or self.late or self.busy or self.broken)


class Bucket:
    """The objects below one prefix."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.objects: dict[str, StoredObject] = {}
        self.puts = 0


class World:
    """The store behind the network: buckets by their URLs, and what becomes of requests."""

    def __init__(
        self,
        random: Random,
        loop: SimLoop,
        network: Network,
        *,
        etags_of_content: bool,
        page: int,
        shuffles: bool,
        probes: bool,
        lies: bool,
        watch: Callable[[Process, str], None],
    ) -> None:
        """``watch`` is told of each request that is sent, and each effect."""
        self.random = random
        self.loop = loop
        self.network = network
        self.etags_of_content = etags_of_content
        """Whether the same bytes have the same ETag whenever they are put, as on S3."""
        self.page = page
        self.shuffles = shuffles
        """Whether listings come in an order of their own."""
        self.probes = probes
        self.lies = lies
        """Whether puts happen whatever their conditions are."""
        self.watch = watch
        self.is_away = False
        """Whether no request gets anywhere."""
        self.buckets: dict[str, Bucket] = {}
        self.troubles = 0
        """Requests that were not answered as they should."""
        self.repeated = 0

    def bucket(self, url: str) -> Bucket:
        return self.buckets.setdefault(url, Bucket(url))

    # -- requests ----------------------------------------------------------------------------

    async def ask(
        self, process: Process, what: str, effect: Callable[[], Any], *, is_write: bool
    ) -> Any:
        """Send a request; return its answer, or learn that none came."""
        if not process.is_alive:
            raise Killed
        request = _Request(self, process, what, effect, is_write=is_write)
        self.watch(process, f"  {what}")
        request.send(self._fate(is_write))
        outcome: Outcome = "unknown" if is_write else "not_written"
        silence = StorageUnavailableError("no answer", outcome=outcome)
        is_patient = self.random.random() < self.network.patient
        patience = _PATIENT_SECONDS if is_patient else _TIMEOUT_SECONDS
        timer = self.later(patience, request.answer, None, silence)
        try:
            return await request.answered
        finally:
            timer.cancel()

    def later(self, seconds: float, call: Callable[..., None], *args: Any) -> Any:
        """Let something happen in the world, whoever lives then."""
        return self.loop.call_at(
            self.loop.time() + seconds, call, *args, context=contextvars.Context()
        )

    def _fate(self, is_write: bool) -> str:
        network, chance = self.network, self.random.random()
        if self.is_away:
            return "lost" if chance < 0.3 else "busy"
        for fate in ("slow", "lost", "unanswered", "busy", "broken", "late", "twice"):
            if is_write or fate not in ("late", "twice"):
                chance -= getattr(network, fate)
                if chance < 0:
                    return fate
        return ""

    def way(self) -> float:
        """Return how long a message takes."""
        return self.random.expovariate(2 / self.network.usual_seconds)


class _Request:
    """One request, from its sending until nothing of it is under way any more."""

    def __init__(
        self,
        world: World,
        process: Process,
        what: str,
        effect: Callable[[], Any],
        *,
        is_write: bool,
    ) -> None:
        self._world = world
        self._process = process
        self._what = what
        self._effect = effect
        self._is_write = is_write
        self._sent = world.loop.time()
        self.answered: asyncio.Future[Any] = world.loop.create_future()

    def answer(self, result: Any, error: Exception | None) -> None:
        """Let the sender have an answer, if it still waits and lives."""
        if self.answered.done() or not self._process.is_alive:
            return
        if error is not None:
            self.answered.set_exception(error)
        else:
            self.answered.set_result(result)

    def send(self, fate: str) -> None:
        """Begin what fate has in store."""
        world, random = self._world, self._world.random
        world.troubles += fate not in ("", "twice")
        if fate in ("busy", "broken"):
            self._refuse(fate)
        elif fate == "late":
            seconds = random.choice([random.uniform(5, 500), random.uniform(3000, LATEST_SECONDS)])
            world.later(seconds, self._arrive, True)
        elif fate == "twice":
            self._repeat()
        elif fate != "lost":
            way = random.uniform(1, 25) if fate == "slow" else world.way()
            world.later(way, self._arrive, fate != "unanswered")

    def _refuse(self, fate: str) -> None:
        world = self._world
        is_broken = fate == "broken"
        if is_broken and world.random.random() < 0.5:
            world.later(world.way(), self._arrive, False, " (then 500)")
        outcome: Outcome = "unknown" if is_broken and self._is_write else "not_written"
        error = StorageUnavailableError(f"the server is {fate}", outcome=outcome)
        world.later(2 * world.way() + world.network.usual_seconds, self.answer, None, error)

    def _repeat(self) -> None:
        """Arrive twice: the sender gets the first answer, or the second one of a proxy that asked again."""
        world, random = self._world, self._world.random
        world.repeated += 1
        is_retold = random.random() < 0.4
        first = world.way()
        between = random.choice([0.0, 1.0, random.uniform(1, LATEST_SECONDS)])
        world.later(first, self._arrive, not is_retold)
        world.later(first + (0.01 if is_retold else between), self._arrive, is_retold, " (again)")

    def _arrive(self, answers: bool, note: str = "") -> None:
        result, error = None, None
        try:
            result = self._effect()
        except (ObjectNotFoundError, PreconditionFailedError) as raised:
            error = raised
        world = self._world
        after = world.loop.time() - self._sent
        if after > _TIMEOUT_SECONDS:
            note += f" (sent {after:.0f} s ago)"
        if self._is_write or error is not None or note:
            said = "ok" if error is None else type(error).__name__
            world.watch(self._process, f"    {self._what} = {said}{note}")
        if answers:
            world.later(world.way(), self.answer, result, error)


class SimStore:
    """The port, for one program."""

    def __init__(self, world: World, url: str, process: Process) -> None:
        self._world = world
        self._bucket = world.bucket(url)
        self._process = process

    @property
    def url(self) -> str:
        return self._bucket.url

    def __repr__(self) -> str:
        return f"<SimStore {self.url}>"

    async def proof(self) -> Proof:
        """Return what is known of conditional puts; kept for a program's life."""
        proofs = self._process.__dict__.setdefault("proofs", {})
        proof = proofs.get(self.url)
        if proof is None:
            proof = proofs[self.url] = Proof()
            if not self._world.probes:
                proof.note(with_swaps=True)
        return proof

    async def get(self, key: str) -> StoredObject:
        return await self._ask("get", key, lambda: self._found(key))

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        check_range(start, limit)
        return await self._ask("get_range", key, lambda: self._found(key).data[start:limit])

    async def head(self, key: str) -> ObjectInfo | None:
        def effect() -> ObjectInfo | None:
            found = self._bucket.objects.get(key)
            return None if found is None else ObjectInfo(key, len(found.data), found.etag)

        return await self._ask("head", key, effect)

    def list(self, prefix: str, *, after: str | None = None) -> _Listing:
        return _Listing(self, prefix, after)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        def effect() -> str:
            if key in self._bucket.objects and not self._world.lies:
                raise PreconditionFailedError("it exists", key=key)
            return self._put(key, data)

        return await self._ask("put_if_absent", key, effect, is_write=True)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        def effect() -> str:
            found = self._bucket.objects.get(key)
            if found is None or (found.etag != etag and not self._world.lies):
                raise PreconditionFailedError("it was changed", key=key)
            return self._put(key, data)

        return await self._ask("put_if_match", key, effect, is_write=True)

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = [check_key(key) for key in keys]

        def effect() -> None:
            for key in doomed:
                self._bucket.objects.pop(key, None)

        if doomed:
            await self._ask("delete", " ".join(doomed), effect, is_write=True)

    async def aclose(self) -> None:
        pass

    # -- inside ------------------------------------------------------------------------------

    async def page(self, prefix: str, after: tuple[Any, str] | None, floor: str | None) -> Any:
        """Return some objects behind a place in the listing, as the bucket is when it is asked."""

        def effect() -> list[tuple[tuple[Any, str], ListedObject]]:
            found = sorted(
                (self._place(key), ListedObject(key, len(item.data)))
                for key, item in self._bucket.objects.items()
                if key.startswith(prefix) and (floor is None or key > floor)
            )
            if after is not None:
                found = [one for one in found if one[0] > after]
            return found[: self._world.page]

        return await self._ask("list", prefix, effect)

    def _place(self, key: str) -> tuple[Any, str]:
        if not self._world.shuffles:
            return 0, key
        return hashlib.md5(key.encode(), usedforsecurity=False).digest(), key

    async def _ask(
        self, kind: str, key: str, effect: Callable[[], Any], *, is_write: bool = False
    ) -> Any:
        if kind not in ("list", "delete"):
            check_key(key)
        name = f"{kind} {self.url.rpartition('/')[2]}/{key}"
        attempts = _ATTEMPTS if not kind.startswith("put") else 1
        while True:
            try:
                return await self._world.ask(self._process, name, effect, is_write=is_write)
            except StorageUnavailableError:
                attempts -= 1
                if not attempts:
                    raise

    def _found(self, key: str) -> StoredObject:
        found = self._bucket.objects.get(key)
        if found is None:
            raise ObjectNotFoundError("there is no such object", key=key)
        return found

    def _put(self, key: str, data: bytes) -> str:
        bucket = self._bucket
        bucket.puts += 1
        etag = f"{bucket.puts:016x}"
        if self._world.etags_of_content:
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        bucket.objects[key] = StoredObject(bytes(data), etag)
        return etag


class _Listing:
    """Pages of a listing, each asked for when it is wanted; others change the bucket in between."""

    def __init__(self, store: SimStore, prefix: str, floor: str | None) -> None:
        self._store = store
        self._prefix = prefix
        self._floor = floor
        self._after: tuple[Any, str] | None = None
        self._page: list[tuple[tuple[Any, str], ListedObject]] = []
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ListedObject:
        if not self._page and not self._is_over:
            self._page = await self._next_page()
        if not self._page:
            raise StopAsyncIteration
        self._after, listed = self._page.pop(0)
        return listed

    async def aclose(self) -> None:
        self._is_over = True
        self._page = []

    async def _next_page(self) -> list[tuple[tuple[Any, str], ListedObject]]:
        """Ask for a page."""
        found = await self._store.page(self._prefix, self._after, self._floor)
        self._is_over = len(found) < self._store._world.page
        return found
