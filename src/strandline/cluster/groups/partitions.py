"""Mapping of a key, e.g. a group id, to a partition of its internal topic. It is Kafka's, so that tools agree."""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"


def java_hash(text: str) -> int:
    """Java's `String.hashCode` of a text: computed over its UTF-16 units, a signed 32-bit integer."""
    raw = text.encode("utf-16-be")
    value = 0
    for index in range(0, len(raw), 2):
        value = (31 * value + (raw[index] << 8) + raw[index + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(key: str, partitions: int) -> int:
    """Number of the partition whose leader is the coordinator of `key`; `partitions` is their number."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
