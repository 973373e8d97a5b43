"""The ObjectStore port: the only way to an object store.

`strandline.log.tier.object_store` has the production one; the simulator's double (`strandline.chaos.sim.object_store`)
is slow, away or refuses as a nemesis has it. `tests/log/tier/test_store_contract.py` holds both to one contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, as a listing has it.

    Attributes:
        modified_ms: when it came to be, in the store's own wall time.
    """

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Objects by their keys: names joined by `/`. Each object is written once, and never changed.

    Every method raises StoreError where the store is away, slow or refuses, within the timeout that it was opened with.
    """

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """Write an object of `size_bytes` in all; it appears whole or not at all, and is durable when this returns.

        After an error it may be there all the same. What `chunks` raises is raised, and then there is no object.
        `chunks` is read as fast as the store takes it; no more than 20 MiB of it are in memory. A key is never used
        again: an object that is there already may be replaced.

        Raises:
            StoreError: also where `chunks` are not `size_bytes`; then there is no object.
        """

    async def get(self, key: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of an object; at least one.

        Raises:
            ObjectMissing: there is no such object.
            StoreError: also where the object is shorter than `end`.
        """

    async def delete(self, key: str) -> None:
        """Delete an object; one that is not there is fine."""

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """All objects whose keys begin with `prefix` and `/` (every object where it is empty), in no order. An object
        that comes or goes meanwhile is there or not."""

    async def copy(self, source: str, target: str) -> None:
        """Make `target` an object of the same bytes, inside of the store; it appears whole or not at all.

        Raises:
            ObjectMissing: there is no such source.
        """

    async def close(self) -> None:
        """Let go of what the store was reached with. Idempotent."""
