"""Options that a seed draws for its users."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from strandline.chaos.services.options import NODE, PROTOCOLS

USERS_SHARE = 0.3
"""Share of the seeds in which there are users."""

ORDERS, LATEST = "orders", "latest"
"""Topics: one that is read record by record; and one that is compacted, where the last value of each key is what
counts."""
BUYERS = "buyers"
"""The group that reads `orders`."""

SAFE = {"min.insync.replicas": "2"}
COMPACTS = SAFE | {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.2"}

BESIDE_USERS: dict[str, Any] = {"workload": {"many": 200, "consumers": 1}}
"""Options of those seeds: the plain clients do less."""

NODE_BESIDE_USERS = NODE


@dataclass
class UserOptions:
    """Options of the users. Times in milliseconds."""

    partitions: int
    """Partitions of `orders`."""
    segment_bytes: str
    records: int
    """Number of records; then there are no more."""
    gap_ms: float
    keys: int
    producers: tuple[dict[str, Any], ...]
    """Settings of the producers."""
    readers: tuple[str, ...]
    """Consumers that name their partitions: what each of them does besides polling, seeking and pausing ("" or
    "deserializes")."""
    members: tuple[str, ...]
    """Members of the group: who commits ("auto" or "own")."""
    consumer: dict[str, Any]
    group: dict[str, Any]
    cut_share: float
    """Share of the calls that are cut short."""
    kill: bool
    """The whole process dies once."""
    twins: bool
    """One of the producers, of the readers and of the members is the blocking twin, on a thread of its own."""
    switch_points: int
    """Average number of points where CPython may switch threads, after which a thread gives way to another one."""

    @classmethod
    def draw(cls, rng: random.Random) -> UserOptions:
        return cls(
            partitions=rng.randint(1, 3),
            segment_bytes=rng.choice(("4096", "100000", "1073741824")),
            records=rng.choice((200, 600)),
            gap_ms=rng.choice((50.0, 150.0, 400.0)),
            keys=rng.choice((2, 7, 30)),
            producers=tuple(_producer(rng) for _ in range(rng.randint(1, 2))),
            readers=tuple(rng.choice(("", "deserializes")) for _ in range(rng.randint(1, 2))),
            members=tuple(rng.choice(("auto", "own")) for _ in range(rng.randint(1, 2))),
            consumer={
                "fetch_max_wait_ms": rng.choice((50, 500)),
                "request_timeout_ms": rng.choice((2_000, 10_000)),
                "max_poll_records": rng.choice((3, 30, 500)),
                "metadata_max_age_ms": rng.choice((1_000, 60_000)),
                "default_api_timeout_ms": 10_000,
            },
            group={
                **rng.choice(PROTOCOLS),
                "auto_commit_interval_ms": rng.choice((100, 1_000)),
                "max_poll_interval_ms": 8_000,
            },
            cut_share=rng.choice((0.02, 0.1, 0.3)),
            kill=rng.random() < 0.2,
            twins=rng.random() < 0.5,
            switch_points=rng.choice((10, 100, 1_000)),
        )


def _producer(rng: random.Random) -> dict[str, Any]:
    """Half of them soon have no room: `buffer.memory` holds a few records, and a send waits no longer than it may."""
    return {
        "batch_size": rng.choice((200, 2_000, 16_384)),
        "linger_ms": rng.choice((0, 5, 50, 1_000)),
        "buffer_memory": rng.choice((3_000, 20_000, 33_554_432, 33_554_432)),
        "max_block_ms": rng.choice((50, 1_000, 10_000)),
        "delivery_timeout_ms": rng.choice((15_000, 60_000)),
        "request_timeout_ms": rng.choice((1_000, 5_000)),
        "compression_type": rng.choice(("none", "none", "zstd", "lz4")),
    }
