"""Options that a seed draws for its services."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

JOBS, LETTERS, COPIED, FLEETING = "jobs", "jobs.dead", "jobs.copied", "fleeting"
TRIMMED, ALTERED, EXPIRING, COMPACTED = "trimmed", "altered", "expiring", "compacted"
RESTING = "resting"
WORKERS, VISITORS, COPIER = "workers", "visitors", "copier"

STYLES = ("poll", "commit", "iterate", "run")
"""Styles of handling records: those of a poll, of a poll with a commit behind them, one by one, by `handle_async`.
"""

POISON_EVERY = 13
"""Every job with a number divisible by this is one that no handler of `run` accepts."""

PROTOCOLS: tuple[dict[str, Any], ...] = (
    {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000},
    {
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 1_000,
        "partition_assignment_strategy": "cooperative-sticky",
    },
    {"group_protocol": "consumer"},
)

TOMBSTONES_MS = 120_000
"""Longer than any replica lags: one that has a value, and is away while its tombstone comes and goes, keeps it."""

NODE = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "offsets.topic.segment.bytes": "8192",
}
"""Settings of the nodes in runs with services."""


@dataclass
class ServiceOptions:
    """Options of the services. Times in milliseconds."""

    partitions: int
    """Partitions of `jobs`."""
    records: int
    """Jobs; then there are no more."""
    gap_ms: float
    members: tuple[str, ...]
    """Styles of the workers."""
    consumer: dict[str, Any]
    visitor: str
    """The style in which `fleeting` is read."""
    subscribes: bool
    """Whether the visitor subscribes; else its partition is named."""
    anew: int
    """Number of times that `fleeting` is deleted and made anew."""
    copy: bool
    cancel_gap_ms: float
    kill: bool
    """The whole process dies once."""
    alters: bool = False
    """Records of `trimmed` are deleted from its front, settings of `altered` changed, records of `expiring` go by its
    size, and `compacted` is compacted."""
    delete_delay_ms: int = 0
    """file.delete.delay.ms of `expiring` and `compacted`."""
    lowers_min_isr: bool = False
    """`altered` has min.insync.replicas 1 now and then. What is acknowledged there may be on one disk alone: nothing
    may destroy it, so no bits rot and no directory is lost in such a run."""
    remakes: int = 0
    """Number of times that `compacted` is deleted and made anew."""
    cleaner_backoff_ms: int = 500
    """log.cleaner.backoff.ms of the nodes: where it is long, nodes start again between two passes."""
    tombstones_go: bool = False
    """delete.retention.ms of `compacted` is TOMBSTONES_MS, which pass in the end."""
    rests: bool = False
    """True: there is `resting`, which is empty most of the time, with a consumer at its end."""
    tiered: dict[str, str] = field(default_factory=dict)
    """Configs of `jobs`, `fleeting`, `trimmed`, `expiring` and `resting`, where segments go to the object store."""

    @classmethod
    def draw(cls, rng: random.Random) -> ServiceOptions:
        return cls(
            partitions=rng.randint(1, 3),
            records=rng.choice((60, 150)),
            gap_ms=rng.choice((20.0, 100.0)),
            members=tuple(rng.choice(STYLES) for _ in range(rng.randint(1, 3))),
            consumer={
                **rng.choice(PROTOCOLS),
                "request_timeout_ms": rng.choice((2_000, 5_000)),
                "auto_commit_interval_ms": rng.choice((200, 1_000)),
                "metadata_max_age_ms": rng.choice((1_000, 5_000)),
                "max_poll_interval_ms": 8_000,
                "default_api_timeout_ms": 10_000,
            },
            visitor=rng.choice(STYLES),
            subscribes=rng.random() < 0.5,
            anew=rng.choice((0, 1, 2, 3)),
            copy=rng.random() < 0.4,
            cancel_gap_ms=rng.choice((200.0, 1_000.0, 5_000.0)),
            kill=rng.random() < 0.3,
            alters=rng.random() < 0.5,
            delete_delay_ms=rng.choice((0, 0, 2_000)),
            remakes=rng.choice((0, 1, 2)),
            cleaner_backoff_ms=rng.choice((500, 500, 8_000)),
            tombstones_go=rng.random() < 0.5,
        )


def is_poison(value: str) -> bool:
    """True if the value is a job that no handler of `run` takes."""
    return value.startswith("j") and int(value[1:]) % POISON_EVERY == 7
