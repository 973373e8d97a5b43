"""Batches of idempotent producers that were refused for a reason that may pass, and are to come again (schedule 52).

What its producer has sent behind such a batch is refused for the same reason until then. If the answer to it were
OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka would number everything without an answer anew, under the next epoch, and
among that may be batches that are stored. And where nothing is known of the producer, what is behind would be taken:
librdkafka takes the ack of a later batch for the ack of the ones before it, so that the refused one would be lost.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from strandline.proto.error_codes import ErrorCode

SEQUENCE_MAX = 0x7FFFFFFF
"""The sequence after which 0 comes."""

REFUSAL_KEPT_MS = 10_000
"""So long a refused batch is waited for. Its producer sends it again within a second or so (`retry.backoff.max.ms` is
1 s in the Java client and in librdkafka), and one that has given it up learns after this time that it is missing."""

REFUSALS_MAX = 1_000
"""Producers whose refused batches one table remembers, the latest: about 200 KB."""

K = TypeVar("K", bound=Hashable)


class Refusal(NamedTuple):
    """The first batch of a producer that was refused; `refused_ms` is of a monotonic clock."""

    epoch: int
    sequence: int
    code: ErrorCode
    refused_ms: float


class Refusals(Generic[K]):
    """The first refused batch by producer, in the memory of this process alone.

    Invariants: at most REFUSALS_MAX; of each producer the first batch of its latest epoch that was refused.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[K, Refusal] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, producer: K, refusal: Refusal) -> None:
        """A batch was refused, and not written."""
        self.expire(refusal.refused_ms)
        known = self._refused.pop(producer, None)
        if known is not None and (
            known.epoch > refusal.epoch
            or (known.epoch == refusal.epoch and is_behind(refusal.sequence, known.sequence))
        ):
            refusal = known
        self._refused[producer] = refusal
        if len(self._refused) > REFUSALS_MAX:
            del self._refused[next(iter(self._refused))]

    def before(self, producer: K, epoch: int, sequence: int, now_ms: float) -> Refusal | None:
        """The refused batch that has to come again before one with this sequence is taken."""
        refusal = self._refused.get(producer)
        if refusal is None or refusal.epoch != epoch or not is_behind(sequence, refusal.sequence):
            return None
        if now_ms - refusal.refused_ms >= REFUSAL_KEPT_MS:
            del self._refused[producer]
            return None
        return refusal

    def written(self, producer: K, epoch: int, last_sequence: int) -> None:
        """A batch was written: the refused one, perhaps by another leader, or one of another epoch."""
        refusal = self._refused.get(producer)
        if refusal is not None and (refusal.epoch != epoch or not is_behind(refusal.sequence, last_sequence)):
            del self._refused[producer]

    def take(self, producer: K) -> Refusal | None:
        """Forget a producer's refused batch, and return it."""
        return self._refused.pop(producer, None)

    def expire(self, now_ms: float) -> None:
        """Forget the oldest ones that are waited for no more."""
        while self._refused:
            producer = next(iter(self._refused))
            if now_ms - self._refused[producer].refused_ms < REFUSAL_KEPT_MS:
                return
            del self._refused[producer]

    def clear(self) -> None:
        """Forget everything."""
        self._refused.clear()


def is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes later than `other`, over the wrap at SEQUENCE_MAX."""
    return 0 < ((sequence - other) & SEQUENCE_MAX) <= SEQUENCE_MAX // 2
