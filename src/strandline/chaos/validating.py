"""A consumer that believes what a new leader says of its position, as librdkafka does (2.x, `rd_kafka_offset_validate`
and `rd_kafka_toppar_handle_OffsetForLeaderEpoch`) and Apache Kafka's client.

A leader that knows no end of the epoch asked for has lost what was read, in their eyes: they go on by
`auto.offset.reset`, with `latest` past everything that was written since. Our own client stays where it is then, so
that by itself it could not show that a broker's answers are enough.
"""

from __future__ import annotations

from strandline.client.aio import Consumer
from strandline.client.fetcher import Lookups, PartitionState
from strandline.client.types import EpochEnd


class ValidatingLookups(Lookups):
    """Look-ups of a client that validates, as the head of this module says."""

    def judge(self, state: PartitionState, end: EpochEnd) -> None:
        """Judge as our own client does, but that an end that is not known is no end."""
        if end.end_offset >= 0 and end.leader_epoch >= 0:
            super().judge(state, end)
            return
        checked = state.checked_epoch
        self._reset_by_policy(state)
        state.checked_epoch = checked


class ValidatingConsumer(Consumer):
    """The asynchronous consumer with these look-ups."""

    _lookups = ValidatingLookups
