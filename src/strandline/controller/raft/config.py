"""Timing of the core. Milliseconds throughout; the precedents are Kafka's `controller.quorum.*` settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """See `strandline.controller.quorum.api.QuorumConfig`, which documents each for operators."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 1500
    retry_backoff_ms: int = 20
    election_backoff_max_ms: int = 500
    suspicion_ms: int = 60
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_bytes: int = 1024 * 1024


CHECK_QUORUM_FACTOR = 1.5
"""A leader gives up after this many fetch timeouts without a majority (rule A5); Kafka has the same factor."""

RETRY_BACKOFF_MAX_MS = 250
"""Ceiling of the doubling wait between calls to one peer that keeps failing: at most four useless calls a second."""

OBSERVER_SESSION_MS = 300_000
"""An observer that has not fetched for this long is no longer described; Kafka has the same five minutes."""
