"""What the replicas of one broker count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicaCounters:
    """Running totals since the start."""

    messages_in_bytes: int = 0
    appends: int = 0
    duplicates: int = 0
    replicated_in_bytes: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    truncations_below_high_watermark: int = 0
    offline_logs: int = 0
    connections: int = 0
