"""Options that a seed draws for its transactional clients."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strandline.chaos.services.options import NODE, PROTOCOLS
from strandline.cluster.transactions import marker_writes
from strandline.cluster.transactions.commands import EPOCH_VERSION, FIRST_VERSION
from strandline.cluster.transactions.marker_writes import REMEMBERED_MAX, WRITE_MARKERS
from strandline.cluster.transactions.verification import VERIFY_PARTITIONS

TRANSACTING_SHARE = 0.25
"""Share of the seeds in which there are transactional clients."""

ACCOUNTS, STATEMENTS = "accounts", "statements"
"""Topics: one that writers write to, in transactions and without; one that pipelines make of it."""
PIPELINES = "pipelines"
"""The group of the pipelines."""

BESIDE_TRANSACTIONS: dict[str, Any] = {"workload": {"many": 100, "consumers": 1}}
"""Options of those seeds: the plain clients do less."""


def _writers(number: int) -> tuple[str, ...]:
    """Transactional ids of `number` writers, which do not fence each other."""
    return tuple(f"writer-{one}" for one in range(number))


RACES: dict[str, dict[str, Any]] = {
    "markers twice": {
        "faults": {
            "kinds": ["isolate", "partition", "kill_leader", "delay"],
            "gap_min_ms": 500, "gap_max_ms": 3_000, "duration_min_ms": 300, "duration_max_ms": 2_000,
        },
        "world": {"network": {"repeated_methods": (WRITE_MARKERS.path,), "method_probability": 0.3}},
        "transactions": {
            "remembered": 1, "version": EPOCH_VERSION, "raised_after_ms": None, "first_protocol": 0.0,
            "dawdle_share": 0.2, "dawdle_ms": 1_000, "timeout_ms": 15_000,
        },
    },
    "late verifications": {
        "faults": {
            "kinds": ["stall_connection", "partition_one_way", "stop", "delay"],
            "gap_min_ms": 500, "gap_max_ms": 3_000, "duration_min_ms": 300, "duration_max_ms": 2_000,
        },
        "world": {
            "network": {
                "late_answers": (VERIFY_PARTITIONS.path,), "method_probability": 0.5, "method_max_us": 900_000,
            }
        },
        "transactions": {
            "first_protocol": 1.0, "gap_ms": 300.0, "abort_share": 0.6, "writers": _writers(12), "timeout_ms": 15_000,
            "dawdle_share": 0.5, "dawdle_ms": 200,
        },
    },
    "late ends": {
        "faults": {
            "kinds": [*["stall_connection"] * 40, "stop"],
            "gap_min_ms": 20, "gap_max_ms": 200, "duration_min_ms": 1_000, "duration_max_ms": 5_000,
        },
        "transactions": {"first_protocol": 0.7, "dawdle_share": 0.5, "dawdle_ms": 1_000, "timeout_ms": 15_000},
    },
    "leaders die": {
        "faults": {
            "kinds": ["kill_leader", "kill_leader", "power_cut", "stop"],
            "gap_min_ms": 1_000, "gap_max_ms": 3_000, "duration_min_ms": 300, "duration_max_ms": 1_500,
        },
        "world": {"network": {"latency_max_us": 20_000}},
        "transactions": {"timeout_ms": 15_000},
    },
    "lost calls": {
        "faults": {
            "kinds": ["pause", "pause", "break_connections", "delay", "slow_disk"],
            "gap_min_ms": 200, "gap_max_ms": 1_000, "duration_min_ms": 1_000, "duration_max_ms": 2_500,
        },
        "transactions": {},
    },
    "deposed coordinators": {
        "faults": {
            "kinds": ["cut_off"],
            "gap_min_ms": 3_000, "gap_max_ms": 5_000, "duration_min_ms": 2_000, "duration_max_ms": 4_000,
        },
        "node": {"broker.silence.timeout.ms": "500"},
        "duration_ms": 20_000,
        "transactions": {
            "goes_back": True, "writers": _writers(1), "gap_ms": 50.0, "abort_share": 0.6, "plain": True,
            "consumer": {"max_poll_records": 3, "fetch_max_wait_ms": 50},
        },
    },
}  # fmt: skip
"""Races that seeds are given to, each with the faults that bring it about, and few others: left to chance a request is
hardly ever late enough to meet what it could spoil."""

RACING: dict[str, Any] = {
    "writers": _writers(6),
    "records": 3_000,
    "gap_ms": 5.0,
    "pipelines": 1,
    "kill": False,
    "consumer": {"max_poll_records": 500, "fetch_max_wait_ms": 50},
    "abort_share": 0.4,
    "producer": {"request_timeout_ms": 1_000, "max_block_ms": 10_000, "linger_ms": 0},
}
"""Transactional clients of a seed with a race: many, each under a name of its own, that do little else than to begin
and to end."""

RACE_MS = 10_000
"""Duration of a race that names none."""

RACES_SHARE = 0.6

FIRST_LEVEL_SHARE = 0.3
"""Share of the seeds whose cluster begins at transaction.version 1; in half of them it is raised in the middle."""

NODE_BESIDE_TRANSACTIONS = NODE | {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "8192",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "5000",
}


@dataclass
class TransactionOptions:
    """Options of the transactional clients. Times in milliseconds."""

    partitions: int
    """Partitions of either topic."""
    segment_bytes: str
    records: int
    """Number of records; then there are no more."""
    gap_ms: float
    """Pause between two transactions, on average."""
    writers: tuple[str, ...]
    """The transactional id of each writer."""
    producer: dict[str, Any]
    timeout_ms: int
    """transaction.timeout.ms."""
    abort_share: float
    dawdle_share: float
    """Share of the transactions that stay open for a while, some for longer than they may."""
    pipelines: int
    consumer: dict[str, Any]
    plain: bool
    """True: a producer without transactions writes to the same partitions."""
    kill: bool
    """The whole process dies once."""
    dawdle_ms: float | None = None
    """So long they stay open at most, at their end and between their records; None: at their end alone, for up to twice
    as long as they may."""
    race: str = ""
    """One of `RACES`."""
    version: int = EPOCH_VERSION
    """transaction.version of the cluster as it is formatted."""
    raised_after_ms: float | None = None
    """Milliseconds after which the level is raised to the newest one; None: never."""
    first_protocol: float = 0.0
    """Share of the producers that speak the first protocol, whatever the cluster offers."""
    goes_back: bool = False
    """Behind an abort a pipeline asks for the offsets that its group has committed and seeks them, as programs of
    Java's clients do (Kafka's TransactionalMessageCopier); else consumer and producer begin anew."""
    remembered: int = REMEMBERED_MAX
    """Producers whose last marker a leader remembers. The second protocol needs none: each marker has its epoch."""

    @classmethod
    def draw(cls, rng: random.Random) -> TransactionOptions:
        ids = rng.randint(1, 2)
        return cls(
            partitions=rng.randint(1, 3),
            segment_bytes=rng.choice(("4096", "100000", "1073741824")),
            records=rng.choice((200, 600)),
            gap_ms=rng.choice((5.0, 20.0, 100.0)),
            writers=tuple(f"writer-{rng.randrange(ids)}" for _ in range(rng.randint(1, 3))),
            producer={
                "batch_size": rng.choice((200, 16_384)),
                "linger_ms": rng.choice((0, 5, 50)),
                "max_block_ms": rng.choice((2_000, 10_000)),
                "delivery_timeout_ms": rng.choice((5_000, 15_000)),
                "request_timeout_ms": rng.choice((1_000, 4_000)),
                "compression_type": rng.choice(("none", "none", "zstd")),
            },
            timeout_ms=rng.choice((1_000, 3_000, 15_000)),
            abort_share=rng.choice((0.1, 0.4)),
            dawdle_share=rng.choice((0.0, 0.1, 0.3)),
            pipelines=rng.randint(0, 2),
            consumer={
                **rng.choice(PROTOCOLS),
                "fetch_max_wait_ms": rng.choice((50, 500)),
                "request_timeout_ms": rng.choice((2_000, 5_000)),
                "max_poll_records": rng.choice((3, 30, 500)),
                "max_poll_interval_ms": 8_000,
                "default_api_timeout_ms": 10_000,
            },
            plain=rng.random() < 0.5,
            kill=rng.random() < 0.3,
        )

    def draw_races(self, rng: random.Random, duration_ms: float) -> dict[str, Any]:
        """Draw protocols and levels, and the race that the seed is for: changes of all options."""
        self.first_protocol = rng.choice((0.0, 0.0, 0.3, 1.0))
        if rng.random() < FIRST_LEVEL_SHARE:
            self.version = FIRST_VERSION
            self.raised_after_ms = rng.choice((None, rng.uniform(0, duration_ms)))
        has_race = rng.random() < RACES_SHARE
        race = rng.choice(list(RACES))
        self.goes_back = rng.random() < 0.5
        if not has_race:
            return {}
        changes = RACES[race]
        transactions = RACING | changes["transactions"] | {"race": race}
        return {"duration_ms": RACE_MS} | changes | {"transactions": transactions}


@contextmanager
def markers_remembered(number: int) -> Iterator[None]:
    """Let leaders remember only the last `number` markers that they wrote."""
    before = marker_writes.REMEMBERED_MAX
    marker_writes.REMEMBERED_MAX = number
    try:
        yield
    finally:
        marker_writes.REMEMBERED_MAX = before
