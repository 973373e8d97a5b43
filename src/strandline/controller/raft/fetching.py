"""The fetch loop of followers and observers: one request in flight, records or a snapshot."""

from __future__ import annotations

import math
from enum import Enum

from strandline.controller.raft.config import RETRY_BACKOFF_MAX_MS
from strandline.controller.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    OffsetAndEpoch,
    Request,
    Response,
    SendRequest,
)
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import InstallSnapshot, StoreSnapshotChunk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark


class Outcome(Enum):
    """Effect of the answer to a fetch."""

    PROGRESS = "the leader of this epoch served us"
    REFUSED = "an error: not the leader, or it cannot serve this"
    STALE = "not the answer to what is wanted now"


class FetchLoop:
    """Fetches from `target` as soon as the gate opens, and applies the answers to the node's log.

    Invariants:
    - one request in flight at most;
    - with `after_flush` (voters) none is sent while the log has unflushed records: a fetch is an acknowledgement
      (rule A8);
    - a snapshot is installed only when every byte of it has been stored.
    """

    def __init__(self, node: QuorumNode, epoch: int, *, after_flush: bool) -> None:
        self._node = node
        self._epoch = epoch
        self._after_flush = after_flush
        self._in_flight: int | None = None
        self._retry_at_ms = -math.inf
        self._failures = 0
        self._snapshot: OffsetAndEpoch | None = None
        self._position = 0
        self._installing = False

    def deadline_ms(self) -> float:
        """Time when a backoff ends."""
        return math.inf if self._in_flight is not None or not self._gate_open() else self._retry_at_ms

    def pump(self, target: NodeId, now_ms: float) -> None:
        """Send the next fetch if none is in flight and nothing holds it back."""
        if self._in_flight is None and now_ms >= self._retry_at_ms and self._gate_open():
            self._in_flight = self._node.send(target, self._next_request())

    def is_current(self, sent: SendRequest) -> bool:
        """Whether this is the request in flight, and not one that was given up before it."""
        return sent.request_id == self._in_flight

    def failed(self, now_ms: float) -> None:
        """Wait after a request in flight that came to nothing, doubling with each failure in a row."""
        self._in_flight = None
        # rule A10/snapshot-fetch-starts-over
        wait_ms = min(self._node.config.retry_backoff_ms * 2**self._failures, RETRY_BACKOFF_MAX_MS)
        self._failures = min(self._failures + 1, 10)
        self._retry_at_ms = now_ms + wait_ms

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Outcome:
        """Apply an answer."""
        self._in_flight = None
        outcome = Outcome.STALE
        if isinstance(response, FetchSnapshotResponse):
            outcome = self._on_snapshot_bytes(response)
        elif isinstance(response, FetchResponse) and isinstance(sent.request, FetchRequest):
            outcome = self._on_records(sent.request, response)
        if outcome is Outcome.PROGRESS:
            self._failures = 0
        elif outcome is Outcome.REFUSED:
            self.failed(now_ms)
        return outcome

    def snapshot_installed(self) -> None:
        """Go on with records: the log now begins at the snapshot's end."""
        self._snapshot = None
        self._installing = False

    def snapshot_refused(self, now_ms: float) -> None:
        """Fetch the snapshot anew after a backoff: what was stored is damaged."""
        self._snapshot = None
        self._installing = False
        self.failed(now_ms)

    def _gate_open(self) -> bool:
        if self._installing:
            return False
        log = self._node.log
        return not self._after_flush or log.durable_offset == log.end_offset  # rule A8/fetch-before-flush

    def _next_request(self) -> Request:
        node = self._node
        if self._snapshot is not None:
            return FetchSnapshotRequest(
                node.cluster_id,
                node.key,
                self._epoch,
                self._snapshot,
                self._position,
                node.config.snapshot_chunk_bytes,
                node.voteless,
            )
        # After a failure it is a probe, too: a leader that lives answers at once, and is not given up for being late.
        # schedule 60/leader-given-up-for-being-late
        max_wait_ms = 0 if self._failures else min(node.config.fetch_max_wait_ms, node.config.fetch_timeout_ms // 3)
        return FetchRequest(
            node.cluster_id,
            node.key,
            self._epoch,
            node.log.end_offset,
            node.log.last_epoch,
            node.high_watermark,
            max_wait_ms,
            node.config.fetch_max_bytes,
            node.voteless,
            node.life,
            node.standing.listens_at if node.standing.may_vote else None,
            node.standing.wants_vote,
        )

    def _on_records(self, request: FetchRequest, response: FetchResponse) -> Outcome:
        node = self._node
        if response.error is not ErrorCode.NONE:
            return Outcome.REFUSED
        # rule A8/answer-given-up-is-taken/2
        if request.fetch_offset != node.log.end_offset or request.last_fetched_epoch != node.log.last_epoch:
            return Outcome.STALE
        if response.diverging is not None:
            point = node.log.truncation_point(response.diverging)
            if point < node.high_watermark:  # rule A8/truncate-below-the-high-watermark
                mark("committed-stays")
                node.notice(
                    f"not truncated: the leader of epoch {self._epoch} would cut this node's log to {point}, below the "
                    f"high watermark {node.high_watermark}. That leader lacks committed records (KAFKA-12460)"
                )
                return Outcome.REFUSED
            if point == node.log.end_offset:
                return Outcome.REFUSED
            mark("quorum-truncated")
            node.truncate_to(point)  # rule A8/truncation-is-skipped
            return Outcome.PROGRESS
        if response.snapshot is not None:
            if response.snapshot.offset < node.high_watermark or response.snapshot.epoch > self._epoch:
                return Outcome.REFUSED
            self._snapshot, self._position = response.snapshot, 0
            return Outcome.PROGRESS
        for batch in response.batches:
            fits = node.log.last_epoch <= batch.epoch <= self._epoch
            # rule A8/records-that-do-not-fit-are-appended
            if batch.base_offset != node.log.end_offset or batch.next_offset <= batch.base_offset or not fits:
                return Outcome.REFUSED
            node.append(batch)
        if response.high_watermark >= 0:
            # rule A8/leaders-high-watermark-taken-whole
            node.advance_high_watermark(min(node.log.end_offset, response.high_watermark))
            if node.log.end_offset >= response.high_watermark:
                node.caught_up_to(response.high_watermark)
        return Outcome.PROGRESS

    def _on_snapshot_bytes(self, response: FetchSnapshotResponse) -> Outcome:
        if response.snapshot != self._snapshot:
            return Outcome.STALE
        if response.error is ErrorCode.SNAPSHOT_NOT_FOUND:
            self._snapshot = None  # rule A10/snapshot-not-found-is-asked-for-again
            return Outcome.REFUSED
        if response.error is not ErrorCode.NONE or response.position != self._position:
            self._snapshot = None
            return Outcome.REFUSED
        end = self._position + len(response.data)
        if end > response.size or (not response.data and end < response.size):
            return Outcome.REFUSED
        self._node.order(StoreSnapshotChunk(response.snapshot, self._position, response.data))
        self._position = end
        if end == response.size:  # rule A10/snapshot-installed-before-it-is-whole
            self._installing = True
            self._node.order(InstallSnapshot(response.snapshot))
        return Outcome.PROGRESS
