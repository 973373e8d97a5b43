"""The partition of its internal topic that a key belongs to: Kafka's own choice, so that tools agree."""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, as a signed integer of 32 bits."""
    raw = text.encode("utf-16-be")
    value = 0
    for index in range(0, len(raw), 2):
        value = (31 * value + (raw[index] << 8) + raw[index + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(key: str, partitions: int) -> int:
    """The partition whose leader coordinates `key`."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
