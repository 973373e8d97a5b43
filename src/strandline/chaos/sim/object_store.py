"""An object store in virtual time: one for a world, beside its machines, whose power cuts it does not notice.

It is slow, away, refuses and forgets to answer as a scenario has it. What it was sent it may carry out after its caller
gave up, or died. `tests/log/tier/test_store_contract.py` holds it to the contract of the production store.
"""

from __future__ import annotations

import contextvars
import random
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from strandline.chaos.sim.clock import EPOCH_MS
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.process import Process
from strandline.log.object_store import StoredObject
from strandline.proto.errors import ObjectMissing, StoreError

T = TypeVar("T")

_WORLD = contextvars.Context()
_PAGE = 1000
"""Objects that one request lists, as S3 does."""


@dataclass
class StoreConfig:
    """Behaviour of the store in this run; times in microseconds."""

    latency_min_us: int = 5_000
    latency_max_us: int = 80_000
    bytes_per_us: int = 100
    timeout_us: int = 10_000_000
    """Microseconds that a node waits for an answer: `remote.log.storage.timeout.ms` of the real one."""


@dataclass
class StoreFaults:
    """Faults that a nemesis has switched on. Probabilities are of a call."""

    away: bool = False
    """True while the store does not answer; callers notice by their timeout."""
    slow_factor: float = 1.0
    """Factor of a call's duration: beyond the timeout a call fails, and is carried out all the same."""
    refused: float = 0.0
    """Probability of an answer 503: nothing was done."""
    answers_lost: float = 0.0
    """Probability that a write is carried out, and answered with an error."""
    deletes_refused: float = 0.0


@dataclass(frozen=True, slots=True)
class SimObject:
    """Object in the store."""

    data: bytes
    modified_ms: int


class SimStore:
    """The store itself: `for_node` is how a process uses it."""

    def __init__(self, loop: SimLoop, rng: random.Random, config: StoreConfig | None = None) -> None:
        self.loop = loop
        self.config = config or StoreConfig()
        self.faults = StoreFaults()
        self.objects: dict[str, SimObject] = {}
        self.calls = 0
        self.reads = 0
        """Number of GETs that were answered with bytes."""
        self._rng = rng

    def for_node(self, process: Process) -> SimStorePort:
        """The ObjectStore port of one process incarnation."""
        return SimStorePort(self, process)

    def heal(self) -> None:
        """End every fault; what was done stays."""
        self.faults = StoreFaults()

    def flip_bit(self, key: str, position: int, bit: int = 0) -> None:
        """Rot one bit of an object. Raises KeyError."""
        old = self.objects[key]
        data = bytearray(old.data)
        data[position] ^= 1 << bit
        self.objects[key] = SimObject(bytes(data), old.modified_ms)

    # ------------------------------------------------------------------ for its ports

    def write(self, key: str, data: bytes) -> None:
        """Make an object appear."""
        self.loop.mix(zlib.crc32(data))
        self.objects[key] = SimObject(data, EPOCH_MS + self.loop.now_us // 1000)

    def find(self, key: str) -> SimObject:
        """Object of that key. Raises ObjectMissing."""
        found = self.objects.get(key)
        if found is None:
            raise ObjectMissing(key)
        return found

    def duration_us(self, size_bytes: int) -> int:
        """Microseconds of a call that transfers `size_bytes`."""
        config = self.config
        latency_us = self._rng.randint(config.latency_min_us, config.latency_max_us)
        if self.faults.slow_factor > 1:
            self.loop.effects["store-slow"] += 1
        return int((latency_us + size_bytes // config.bytes_per_us) * self.faults.slow_factor)

    def strikes(self, probability: float, effect: str) -> bool:
        """Whether a fault of this probability hits a call."""
        if not probability or self._rng.random() >= probability:
            return False
        self.loop.effects[effect] += 1
        return True


class SimStorePort:
    """ObjectStore port of one process. A dead process sends no more requests; those that it has sent are carried
    out."""

    def __init__(self, store: SimStore, process: Process) -> None:
        self._store = store
        self._process = process

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int | None = None) -> None:
        """Implement `ObjectStore.put`."""
        parts: list[bytes] = []
        async for chunk in chunks:
            parts.append(chunk)
            if self._store.faults.away:
                await self._call(lambda: None)
        data = b"".join(parts)
        if size_bytes is not None and len(data) != size_bytes:
            raise StoreError(f"{len(data)} bytes were to be written to {key} instead of {size_bytes}")
        await self._call(lambda: self._store.write(key, data), len(data), writes=True)

    async def create(self, key: str, data: bytes) -> bool:
        """Implement `ObjectStore.create`."""

        def make() -> bool:
            if key in self._store.objects:
                return False
            self._store.write(key, data)
            return True

        return await self._call(make, len(data), writes=True)

    async def get(self, key: str, start: int, end: int) -> bytes:
        """Implement `ObjectStore.get`."""

        def read() -> bytes:
            data = self._store.find(key).data
            if end > len(data):
                raise StoreError(f"{key} ends at {len(data)}, before byte {end}")
            self._store.reads += 1
            return data[start:end]

        return await self._call(read, end - start)

    async def read(self, key: str) -> bytes:
        """Implement `ObjectStore.read`."""
        return await self._call(lambda: self._store.find(key).data)

    async def head(self, key: str) -> StoredObject:
        """Implement `ObjectStore.head`."""

        def look() -> StoredObject:
            found = self._store.find(key)
            return StoredObject(key, len(found.data), found.modified_ms)

        return await self._call(look)

    async def delete(self, key: str) -> None:
        """Implement `ObjectStore.delete`."""

        def remove() -> None:
            if self._store.strikes(self._store.faults.deletes_refused, "store-delete-refused"):
                raise StoreError(f"the object store refuses to delete {key}")
            self._store.objects.pop(key, None)

        await self._call(remove, writes=True)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Implement `ObjectStore.list`."""
        last = ""

        def page() -> list[StoredObject]:
            inside = [key for key in self._store.objects if key > last and (not prefix or key.startswith(f"{prefix}/"))]
            found = ((key, self._store.objects[key]) for key in sorted(inside)[:_PAGE])
            return [StoredObject(key, len(item.data), item.modified_ms) for key, item in found]

        while items := await self._call(page):
            for item in items:
                yield item
            last = items[-1].key

    async def copy(self, source: str, target: str) -> None:
        """Implement `ObjectStore.copy`."""
        await self._call(lambda: self._store.write(target, self._store.find(source).data), writes=True)

    async def close(self) -> None:
        """Implement `ObjectStore.close`."""

    async def _call(self, work: Callable[[], T], size_bytes: int = 0, *, writes: bool = False) -> T:
        """Return the result of `work`, carried out at an instant of the world's, unless a fault strikes."""
        self._process.require_alive()
        store = self._store
        store.calls += 1
        done: Any = store.loop.create_future()
        duration_us = store.duration_us(size_bytes)
        self._later(duration_us // 2, self._carry_out, work, done, duration_us - duration_us // 2, writes)
        self._later(store.config.timeout_us, _time_out, done)
        result: T = await done
        return result

    def _carry_out(self, work: Callable[[], T], done: Any, answer_us: int, writes: bool) -> None:
        store, faults = self._store, self._store.faults
        if faults.away:
            store.loop.effects["store-away"] += 1
            return
        try:
            if store.strikes(faults.refused, "store-refused"):
                raise StoreError("the object store is busy: 503 Slow Down")
            result = work()
            if writes and store.strikes(faults.answers_lost, "store-answer-lost"):
                raise StoreError("the connection to the object store broke")
        except StoreError as error:
            self._later(answer_us, _answer, done, None, error)
        else:
            self._later(answer_us, _answer, done, result, None)

    def _later(self, delay_us: int, callback: Callable[..., None], *args: Any) -> None:
        self._store.loop.call_at_us(self._store.loop.now_us + delay_us, callback, *args, context=_WORLD)


def _answer(done: Any, result: object, error: StoreError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _time_out(done: Any) -> None:
    if not done.done():
        done.set_exception(StoreError("the object store gave no answer in time"))
