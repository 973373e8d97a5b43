"""Options that a seed draws for tiered storage (KIP-405): the object store, and how soon segments go there and leave
the disks.

Everything is sooner than anybody would have it: a segment is closed after a few batches, copied within a second, and
gone from the disks soon after, so that whoever starts at the beginning reads from the store.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from strandline.chaos.nemesis.kinds import STORE_KINDS
from strandline.chaos.sim.object_store import StoreConfig
from strandline.chaos.workload import WorkloadOptions
from strandline.replica.partition import Partition

TIERED_SHARE = 0.25
"""Share of the seeds in which topics are tiered."""

SERVICES_BESIDE = 0.4
"""Share of the seeds of the scenario `tiered`, at least, with services, which delete topics and records of them."""

GRACE_MS = 60_000
"""The shortest that brokers take. Copies take less than half of it: timeouts are shorter by far."""

LEAVES_DISKS_MS = 6_000
"""Milliseconds after which, without faults, closed segments are in the store and most are on no disk any more."""

SEGMENT_GETS = 3
"""Requests that a reader awaits at each segment, one behind the other: two of the sidecar, one of the log."""

_FETCH_MS = 100
"""Milliseconds for a segment, beside the store: a fetch that was answered before there was anything, and the next
one."""

_REAPER_MS = 2_000
_SEGMENTS = {"segment.bytes": ("4096", "20000"), "segment.ms": ("500", "2000", "604800000")}
_STAYS = ({"local.retention.ms": "1"}, {"local.retention.ms": "3000"}, {"local.retention.bytes": "3000"})
_BATCH_MARGIN_BYTES = 1_000
_OTHERS = 10
"""Kinds of fault for each of which every kind of the store counts once more: else a run of all kinds has few."""


@dataclass
class TieredOptions:
    """The store, and the settings of nodes and topics. Times in milliseconds."""

    store: StoreConfig
    node: dict[str, str]
    topics: dict[str, str]
    """Configs of the tiered topics."""
    kinds: tuple[str, ...]
    """Faults of the store, beside the others that the seed draws."""

    @classmethod
    def draw(cls, rng: random.Random, workload: WorkloadOptions) -> TieredOptions:
        timeout_ms = rng.choice((1_000, 5_000))
        batch_bytes = max(workload.producer["batch_size"], workload.value_bytes_max) + _BATCH_MARGIN_BYTES
        return cls(
            store=StoreConfig(latency_max_us=rng.choice((10_000, 80_000, 300_000)), timeout_us=timeout_ms * 1_000),
            node={
                "remote.log.storage.url": "s3://simulated/tier",
                "remote.log.storage.timeout.ms": str(timeout_ms),
                "remote.log.manager.task.interval.ms": rng.choice(("100", "1000")),
                "remote.log.manager.copier.thread.pool.size": rng.choice(("1", "2", "10")),
                "remote.log.manager.copy.max.bytes.per.second": rng.choice(("100000", "10000000", "10000000")),
                "remote.fetch.max.wait.ms": rng.choice(("20", "500")),
                "remote.log.reader.threads": rng.choice(("1", "10")),
                "remote.log.reaper.interval.ms": str(_REAPER_MS),
                "remote.log.reaper.grace.ms": str(GRACE_MS),
                "log.retention.check.interval.ms": rng.choice(("300", "1500")),
            },
            topics={
                "remote.storage.enable": "true",
                "segment.bytes": str(max(batch_bytes, int(rng.choice(_SEGMENTS["segment.bytes"])))),
                "segment.ms": rng.choice(_SEGMENTS["segment.ms"]),
                "file.delete.delay.ms": rng.choice(("0", "2000")),
                **rng.choice(_STAYS),
            },
            kinds=tuple(rng.sample(STORE_KINDS, rng.choice((0, 1, 2, len(STORE_KINDS))))),
        )

    def changes(self, kinds: tuple[str, ...]) -> dict[str, Any]:
        """Changes of the options of a seed; `kinds`: the faults that it drew."""
        return {
            "node": self.node,
            "workload": {"topic_configs": self.topics, "rewinds_max": 12, "rewinds_share": 0.02},
            "faults": {"kinds": (*kinds, *self.kinds * max(1, len(kinds) // _OTHERS))},
        }


def tier_read_ms(store: StoreConfig, segments: int) -> float:
    """The longest that a client needs to read so many segments from the store, as far as the store is concerned.

    Seeds that draw large values, small segments and a slow store have a thousand segments of two records, each of which
    takes half a second. A fixed time that is enough for them is too much for all others: a reader that stands still
    would not show.
    """
    return segments * (SEGMENT_GETS * store.latency_max_us / 1000 + _FETCH_MS)


def segments_to_read(partition: Partition) -> int:
    """Segments that a client may have to read from the store until it is at the end: those that are there, and those
    that may leave the disk before it comes to them."""
    log, tier = partition.log, partition.state.tier
    closed = [] if log is None else log.bases[1:]
    return len(tier.segments) + sum(end > tier.end_offset for end in closed)
