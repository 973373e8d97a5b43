"""The anomaly table of rule E1 (after Jepsen's `kafka.clj`), over histories of simulator and live runs alike.

| anomaly | definition | legal |
|---|---|---|
| inconsistent-offsets | one (partition, offset), two values | never |
| duplicate | one value at more than one offset | retried without idempotence |
| lost-write | a promised value, at or below the highest offset read, never polled | never |
| shown-then-lost | a value that a poll returned and the final read lacks | never |
| G1a | a value of a failed operation seen by an ok poll | never |
| precommitted-read | a transaction polls its own send | never |
| int-poll-skip, int-nonmonotonic-poll | within one poll, an index step above 1, below 1 | if rebalanced meanwhile |
| poll-skip, nonmonotonic-poll | the same from poll to poll of one consumer | under subscribe |
| int-send-skip | within one operation, sends with something in between | always |
| nonmonotonic-send | a producer's later send at a smaller offset | retried without idempotence |
| unseen | promised, not polled, beyond all that was read | never, once healed and read to the end |
| G0 | transactions whose writes form a circle | always |
| G1c | a circle of writes and reads of transactions | if it needs ww edges |
| pair-duplicate, pair-lost | an input of an exactly-once pipeline with two outputs, or none | never |
| committed-offset-back | a group's offset smaller than one known, in the same generation | never |
| realtime-lag | a value stayed unread for longer than a bound after its ack | where no bound is given |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from strandline.chaos.checkers.columns import NONE, Columns
from strandline.chaos.checkers.groups import committed_offsets
from strandline.chaos.checkers.history import History
from strandline.chaos.checkers.invariant import Anomaly
from strandline.chaos.checkers.order import Analysis
from strandline.chaos.checkers.order_checks import poll_order, realtime_lag, send_order
from strandline.chaos.checkers.promises import (
    aborted_reads,
    duplicates,
    inconsistent_offsets,
    lost_writes,
    shown_then_lost,
    unseen,
)
from strandline.chaos.checkers.transactions import cycles, pairs, precommitted_reads

__all__ = ["CHECKS", "Anomaly", "analyse", "find_anomalies", "judge", "realtime_lag_ms"]

CHECKS: tuple[Callable[[Analysis], Iterator[Anomaly]], ...] = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    shown_then_lost,
    aborted_reads,
    precommitted_reads,
    poll_order,
    send_order,
    cycles,
    pairs,
    committed_offsets,
    unseen,
)

ANOMALIES_MAX = 10_000
"""Findings of one check at most: beyond that the run is lost anyway, and memory is not."""


def analyse(history: History | Columns) -> Analysis:
    """The version orders of a history; for several questions about one."""
    return Analysis(history if isinstance(history, Columns) else Columns.of(history))


def find_anomalies(history: History | Columns | Analysis, *, lag_max_ms: float | None = None) -> list[Anomaly]:
    """Every anomaly of the table in `history`, the legal ones too (`Anomaly.legal`).

    `lag_max_ms` bounds realtime-lag; None: it is only measured (`realtime_lag_ms`).
    """
    analysis = history if isinstance(history, Analysis) else analyse(history)
    found = [anomaly for check in CHECKS for anomaly in islice(check(analysis), ANOMALIES_MAX)]
    if lag_max_ms is not None:
        lag_ms, consumer, partition, position = realtime_lag(analysis)
        if lag_ms > lag_max_ms:
            facts = {
                "process": analysis.columns.process_name(consumer),
                "position": position,
                "lag_ms": round(lag_ms),
                "lag_max_ms": lag_max_ms,
            }
            where = analysis.columns.partitions[partition] if partition != NONE else None
            found.append(Anomaly("realtime-lag", where, facts))
    return found


def judge(history: History | Columns | Analysis, *, lag_max_ms: float | None = None) -> list[Anomaly]:
    """The anomalies that must not be."""
    return [anomaly for anomaly in find_anomalies(history, lag_max_ms=lag_max_ms) if not anomaly.legal]


def realtime_lag_ms(history: History | Columns | Analysis) -> float:
    """A lower bound on staleness, milliseconds (`order_checks.realtime_lag`)."""
    return realtime_lag(history if isinstance(history, Analysis) else analyse(history))[0]
