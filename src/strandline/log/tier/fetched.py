"""What was fetched of an object store, in memory: bounded, and each thing fetched once, however many ask for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from strandline.proto.errors import StoreError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Fetched(Generic[K, V]):
    """The latest used of what was fetched, up to so many bytes.

    Invariants:
    - one fetch of a key is under way at a time; all who ask meanwhile get its result, or its error;
    - a caller that is cancelled takes nobody else's result: the fetch goes on;
    - an error is not kept: who asks after it fetches anew.
    """

    def __init__(self, bytes_max: int, size: Callable[[V], int]) -> None:
        self._bytes_max = bytes_max
        self._size = size
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._under_way: dict[K, asyncio.Task[V]] = {}
        self.bytes = 0
        """That are kept."""
        self.hits = 0
        """Times that what was asked for was there, or under way."""

    def find(self, key: K) -> V | None:
        """What is there."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
            self.hits += 1
        return value

    def begin(self, key: K, fetch: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        """Fetch what is not there, if that is not under way; nobody needs to await it."""
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.get_running_loop().create_task(fetch())
            task.add_done_callback(lambda task: self._ended(key, task))
        else:
            self.hits += 1
        return task

    async def get(self, key: K, fetch: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """What is there, or is fetched now. Raises what `fetch` raises, StoreError once this is closed."""
        value = self.find(key)
        if value is not None:
            return value
        task = self.begin(key, fetch)
        await asyncio.wait((task,))  # which leaves it to itself, whatever becomes of who waits
        if task.cancelled():
            raise StoreError("the object store is not read any more: the node stops")
        return task.result()

    def forget(self, wanted: Callable[[K], bool]) -> None:
        """What is there of these keys is fetched anew the next time."""
        for key in [key for key in self._kept if wanted(key)]:
            self.bytes -= self._size(self._kept.pop(key))

    def has(self, key: K) -> bool:
        """Whether it is there, or under way."""
        return key in self._kept or key in self._under_way

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        self._under_way.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = value = task.result()
        self.bytes += self._size(value)
        while self.bytes > self._bytes_max and self._kept:
            _, old = self._kept.popitem(last=False)
            self.bytes -= self._size(old)

    async def close(self) -> None:
        """End what is under way, and forget everything."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._kept.clear()
        self.bytes = 0
