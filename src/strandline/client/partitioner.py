"""Partition that a record goes to: Kafka's own rule, so that every client agrees on the place of a key.

With a key: murmur2 of its bytes, as in Kafka's Java client and librdkafka's ``murmur2_random``. Without one: batches
stick to a partition for `batch.size` bytes and then move on (KIP-480, KIP-794). Kafka draws the next partition at
random; we walk a shuffled round, so that even a few batches are spread evenly.
"""

from __future__ import annotations

from strandline.client.metadata import TopicView
from strandline.client.open_batches import OpenBatches, murmur2
from strandline.proto.ports import Rng


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Partitions for one topic's records without a key; the topic's open batches count the bytes.

    Invariant: a partition is left once it got `batch_size` bytes since it was entered, and none with a leader is
    entered twice before every other one was entered once.
    """

    __slots__ = ("_batch_size", "_rng", "_round")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self._batch_size = max(batch_size, 1)
        self._rng = rng
        self._round: list[int] = []

    def choose(self, topic: TopicView, open_batches: OpenBatches) -> int:
        """The partition of the next record without a key."""
        if open_batches.sticky_left <= 0:
            open_batches.stick(self._next(topic, open_batches.partitions), self._batch_size)
        return open_batches.sticky

    def _next(self, topic: TopicView, count: int) -> int:
        # A broker that leaves numbers out gets nothing for those beyond the count.
        views = {number: view for number, view in topic.partitions.items() if number < count}
        while self._round:
            candidate = self._round.pop()
            view = views.get(candidate)
            if view is not None and view.leader is not None:
                return candidate
        led = [number for number, view in views.items() if view.leader is not None]
        anew = led or list(views) or [0]
        self._rng.shuffle(anew)
        chosen = anew.pop()
        self._round = anew
        return chosen
