"""Wait after failures in a row."""

from __future__ import annotations

from strandline.proto.ports import Rng


def backoff_ms(failures: int, first_ms: float, most_ms: float, rng: Rng) -> float:
    """Exponential with a fifth of jitter, as Kafka's clients have it (KIP-580)."""
    wait = min(first_ms * 2.0 ** min(failures - 1, 30), most_ms)
    return wait * rng.uniform(0.8, 1.2)
