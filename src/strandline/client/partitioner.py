"""Which partition a record goes to: Kafka's own rule, so that every client agrees on the place of a key.

With a key: murmur2 of its bytes, as in Kafka's Java client and librdkafka's ``murmur2_random``. Without one: batches
stick to a partition for `batch.size` bytes and then move on (KIP-480, KIP-794). Kafka draws the next partition at
random; we walk a shuffled round, so that even a few batches are spread evenly.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from strandline.client.metadata import TopicView
from strandline.proto.ports import Rng

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`), as an unsigned number."""
    size = len(data)
    digest = _SEED ^ size
    for word in struct.unpack_from(f"<{size >> 2}I", data):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        digest = digest * _M & _MASK ^ mixed
    tail = size & 3
    if tail:
        digest ^= int.from_bytes(data[size - tail :], "little")
        digest = digest * _M & _MASK
    digest = (digest ^ digest >> 13) * _M & _MASK
    return digest ^ digest >> 15


_CACHED_KEY_BYTES_MAX = 64
_cached_murmur2 = lru_cache(maxsize=8192)(murmur2)
"""Keys repeat, and the hash in Python costs 0.1 us a byte; long keys are not worth their memory."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's partition of a key."""
    digest = _cached_murmur2(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)
    return (digest & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Partitions for one topic's records without a key.

    Invariant: a partition is left once it got `batch_size` bytes since it was entered, and none with a leader is
    entered twice before every other one was entered once.
    """

    __slots__ = ("_batch_size", "_bytes", "_current", "_rng", "_round")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self._batch_size = max(batch_size, 1)
        self._rng = rng
        self._round: list[int] = []
        self._current = -1
        self._bytes = 0

    def choose(self, topic: TopicView, size: int) -> int:
        """The partition of a record of `size` bytes."""
        if self._current < 0 or self._bytes >= self._batch_size:
            self._advance(topic)
        self._bytes += size
        return self._current

    def _advance(self, topic: TopicView) -> None:
        views = topic.partitions
        while self._round:
            candidate = self._round.pop()
            view = views.get(candidate)
            if view is not None and view.leader is not None:
                break
        else:
            led = [number for number, view in views.items() if view.leader is not None]
            self._round = led or list(views)
            self._rng.shuffle(self._round)
            candidate = self._round.pop()
        self._current = candidate
        self._bytes = 0
