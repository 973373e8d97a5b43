"""Timing of the core. Milliseconds throughout; the precedents are Kafka's `controller.quorum.*` settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Settings of the quorum; `strandline.controller.quorum.api.QuorumConfig` documents each for operators."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 1500
    retry_backoff_ms: int = 20
    election_backoff_max_ms: int = 500
    suspicion_ms: int = 60
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_bytes: int = 1024 * 1024


EPOCH_MAX = 2**31 - 2
"""The last epoch that is ever adopted. Kafka's formats have 31 bits for an epoch, and the next one must fit as well."""

EPOCH_LEAD_MAX = 1_000
"""Epochs above the last proven one (see `RaftCore.proven_epoch`) to which a request may lift a node at most (rule A17:
no request lifts a node to an epoch that no elections can have reached).

An epoch rises by one in each election that a majority was willing to hold (pre-vote): a node that missed a thousand was
away for long. It learns a higher epoch by asking, for answers of voters are not bounded so. Kafka adopts any epoch: one
message with 2^31 - 1 ends its elections for good.
"""

PROOF_INTERVAL_MS = 10_000
"""Milliseconds between two proofs of an epoch, at least (rule A17: only epochs that elections can have reached count).
The answer of a lifted voter is proof to the node that asks it. Without a pause an attacker could have voters ask each
other in turns, and lift them by another bound with each answer, to the last epoch within days. With it that takes
months, and log lines show it. Elections gain nothing by more.
"""

UNPROVEN_WAIT_MS = 500.0
"""Milliseconds after an unclean stop in which a voter's vote counts as one in doubt, for nothing proves where its log
ended (rule A22). What one machine that stays dead costs an election; partitions wait as long after that (rule B30)."""

CHECK_QUORUM_FACTOR = 1.5
"""A leader gives up after this many fetch timeouts without a majority (rule A5); Kafka has the same factor."""

RETRY_BACKOFF_MAX_MS = 250
"""Ceiling of the doubling wait between calls to one peer that keeps failing: at most four useless calls a second."""

OBSERVERS_MAX = 1_000
"""Observers that are remembered, and fetches that are parked, at most; the one that fetched longest ago is forgotten
for a new one. A cluster has tens: it bounds the memory that fetches under ever new directory ids can take."""

OBSERVER_SESSION_MS = 300_000
"""An observer that has not fetched for this long is no longer described; Kafka has the same five minutes."""
