"""A trial of what a leader sent, before it is appended: what this node cannot replay it does not acknowledge (rule
A16)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from strandline.controller.quorum.api import CommittedBatch, Rehearsal
from strandline.controller.quorum.metadata_log import MetadataLog, decode_batches
from strandline.controller.raft.messages import FetchRequest, FetchResponse, OffsetAndEpoch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.marks import mark
from strandline.proto.steps import Steps

_GAP_BYTES_MAX = 1024 * 1024
"""Bytes of records in this node's log that the listeners do not have yet, replayed at most to judge those that follow.
"""

_UNREPLAYABLE = (FatalError, KafkaError, ValueError, TypeError)


class Fetched:
    """Judges the records of fetch answers on a rehearsal of the replay.

    Refused is only what is not committed yet: with a majority of such nodes it never will be, and the next leader
    truncates it. What is committed must be replayed; there the listener's word is final. A node that has not caught up
    with what is committed cannot judge, and refuses nothing.

    Invariants:
    - the rehearsal holds the records of a log that ends at `_end`, as any log with that end does (Raft's log matching).
    """

    def __init__(self, log: MetadataLog, rehearsal: Rehearsal) -> None:
        self._log = log
        self._rehearsal = rehearsal
        self._end: OffsetAndEpoch | None = None

    def judged(self, request: FetchRequest, response: FetchResponse, handed_over: int) -> tuple[FetchResponse, str]:
        """The answer without what cannot be replayed, an error if nothing is left, and the reason; `handed_over` is up
        to where the listeners have the log."""
        # rule A16/followers-append-what-they-cannot-replay
        if not response.batches or request.fetch_offset != self._log.end_offset:
            return response, ""
        if not self._stands_at(OffsetAndEpoch(request.fetch_offset, request.last_fetched_epoch), handed_over):
            return response, ""
        for place, fetched in enumerate(response.batches):
            try:
                for batch in decode_batches(cast("bytes", fetched.data)):  # off the wire
                    self._replay(batch)
            except _UNREPLAYABLE as error:
                self._end = None
                if fetched.next_offset <= response.high_watermark:  # rule A16/committed-record-is-refused-for-ever
                    break  # committed: whether it can be replayed is for the listener to say
                mark("unreplayable-not-appended")
                why = f"not appended: this node could not replay the leader's records at {fetched.base_offset}: {error}"
                if place > 0:
                    return replace(response, batches=response.batches[:place]), why
                return replace(response, error=ErrorCode.INVALID_RECORD, leader_id=None, batches=()), why
        return response, ""

    def snapshot(self, end_offset: int, epoch: int, records: list[bytes]) -> Steps[None]:
        """Try a snapshot before it takes the place of the log, or of its beginning. Raises FatalError if it cannot be
        loaded."""
        self._end = None
        try:
            yield from self._rehearsal.load(end_offset, epoch, records)
        except _UNREPLAYABLE as error:
            raise FatalError(f"The metadata snapshot {end_offset}-{epoch} cannot be loaded: {error}") from error

    def _stands_at(self, end: OffsetAndEpoch, handed_over: int) -> bool:
        """Bring the rehearsal to the end of this node's log; False if it has not caught up so far."""
        if self._end == end:  # rule A16/rehearsal-of-another-log
            return True
        self._end = None
        gap: list[CommittedBatch] = []
        if handed_over < self._log.start_offset:
            return False
        if handed_over < end.offset:
            read = self._log.committed(handed_over, end.offset, _GAP_BYTES_MAX)
            if read is None or not read[0] or read[0][-1].last_offset + 1 != end.offset:
                return False
            gap = read[0]
        self._rehearsal.restart()
        try:
            for batch in gap:
                self._replay(batch)
        except _UNREPLAYABLE:
            self._end = None
            return False
        self._end = end
        return True

    def _replay(self, batch: CommittedBatch) -> None:
        if batch.records:
            self._rehearsal.replay(batch)
        self._end = OffsetAndEpoch(batch.last_offset + 1, batch.epoch)
