"""Timing of the core. Milliseconds throughout; the precedents are Kafka's `controller.quorum.*` settings."""

from __future__ import annotations

from strandline.proto.settings import Scope, Settings, milliseconds


class RaftConfig(Settings, scope=Scope.NODE):
    """Timing and sizes of the core.

    Attributes:
        suspicion_ms: a voter whose connection to the leader broke asks for an election after one to two times this,
            plus its place in the order of succession times twice this, unless a retried fetch succeeds first.
        fetch_max_wait_ms: how long the leader parks a fetch that it has nothing new for (long poll); at most a third of
            the fetch timeout is asked for.
        fetch_max_bytes: at most this many bytes of the log in one fetch answer, save that one batch always fits.
        snapshot_chunk_bytes: at most this many bytes of a snapshot in one FetchSnapshot answer.
    """

    election_timeout_ms = milliseconds(
        "controller.quorum.election.timeout.ms",
        1000,
        "Time that a controller without a known leader, or a candidate, waits before it asks for an election; each "
        "wait is drawn at random from once to twice this.",
    )
    fetch_timeout_ms = milliseconds(
        "controller.quorum.fetch.timeout.ms",
        1500,
        "Time without a successful fetch from the leader after which a controller asks for an election; the leader "
        "resigns after 1.5 times this without fetches of a majority (Kafka: 2000; a longer time here is as much longer "
        "without acknowledgements when the active controller hangs).",
    )
    retry_backoff_ms = milliseconds(
        "controller.quorum.retry.backoff.ms",
        20,
        "Time between a failed call between quorum nodes and its repetition.",
    )
    election_backoff_max_ms = milliseconds(
        "controller.quorum.election.backoff.max.ms",
        1000,
        "Longest wait after a lost election; waits grow with each lost election and are drawn at random.",
    )
    suspicion_ms = 60
    fetch_max_wait_ms = 500
    fetch_max_bytes = 8 * 1024 * 1024
    snapshot_chunk_bytes = 1024 * 1024


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
