"""Options that a seed draws for its transactional clients."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from strandline.chaos.services.options import NODE, PROTOCOLS

TRANSACTING_SHARE = 0.25
"""Share of the seeds in which there are transactional clients."""

ACCOUNTS, STATEMENTS = "accounts", "statements"
"""Topics: one that writers write to, in transactions and without; one that pipelines make of it."""
PIPELINES = "pipelines"
"""The group of the pipelines."""

BESIDE_TRANSACTIONS: dict[str, Any] = {"workload": {"many": 100, "consumers": 1}}
"""Options of those seeds: the plain clients do less."""

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
