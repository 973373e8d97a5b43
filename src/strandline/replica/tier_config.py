"""The settings of tiered storage on one node (KIP-405)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Settings of tiered storage on one broker.

    Attributes:
        url: of the object store, with the prefix of the cluster's objects; empty: there is none.
        options: of the store's client, by its own names. They may hold secrets, and are in no repr.
        task_interval_ms: Kafka's remote.log.manager.task.interval.ms: how often is looked for segments to copy, and for
            those in the tier that retention takes.
        copies_max: segments that are copied at once.
        copy_bytes_per_second: the most that copying takes of disk and network, altogether.
        reads_max: reads of objects at once.
        fetch_wait_max_ms: Kafka's remote.fetch.max.wait.ms: how long a fetch waits for the object store before it is
            answered with what there is.
        index_cache_bytes: memory for indexes of objects.
        cache_bytes: memory for chunks of objects.
        timeout_ms: how long one request to the store may take.
        reaper_interval_ms: how often is looked for objects that no metadata name.
        reaper_grace_ms: how long a broker must have found such an object before it deletes it.
    """

    url: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    task_interval_ms: int = 30_000
    copies_max: int = 2
    copy_bytes_per_second: int = (1 << 63) - 1
    reads_max: int = 10
    fetch_wait_max_ms: int = 500
    index_cache_bytes: int = 64 << 20
    cache_bytes: int = 64 << 20
    timeout_ms: int = 30_000
    reaper_interval_ms: int = 3_600_000
    reaper_grace_ms: int = 86_400_000

    @property
    def enabled(self) -> bool:
        """There is an object store."""
        return bool(self.url)
