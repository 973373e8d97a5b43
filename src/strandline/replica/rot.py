"""Rot: batches on this broker's disk that are not what was written (rule B19)."""

from __future__ import annotations

import structlog

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.replica.states import ReplicaCounters

log = structlog.get_logger("strandline.replica")


class RotWatch:
    """Counts what rotted and says so, each place once."""

    def __init__(self, counters: ReplicaCounters) -> None:
        self._counters = counters
        self._places: set[tuple[str, int]] = set()

    def found(self, tp: TopicPartition, error: KafkaError) -> None:
        """A read of the log of `tp` ended so; nothing is done about another error than CORRUPT_MESSAGE."""
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            return
        place = str(error.figures.get("file", "")), int(error.figures.get("position", -1))
        if place in self._places:
            return
        self._places.add(place)
        self._counters.corrupt_batches += 1
        log.error(
            "a batch on the disk is not what was written; nobody gets it",
            partition=str(tp),
            offset=error.figures.get("offset"),
            file=place[0],
            position=place[1],
            found=error.message,
        )
