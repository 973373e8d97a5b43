"""Answers to EndTxn by the state of the transactional id: two tables that the code uses.

The protocol is the client's, by the version of its request: older clients work as before with brokers that know
KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from strandline.proto.kafka.transaction_records import TransactionState

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT


class Ending(Enum):
    """Outcome of a request to end a transaction."""

    GO = "it is decided so"
    DONE = "it was decided so before: the same answer again"
    CONCURRENT = "CONCURRENT_TRANSACTIONS"
    FENCED = "PRODUCER_FENCED"
    INVALID = "INVALID_TXN_STATE"


GO, DONE = Ending.GO, Ending.DONE
CONCURRENT, FENCED, INVALID = Ending.CONCURRENT, Ending.FENCED, Ending.INVALID


class ByEpoch(NamedTuple):
    """Row of the table of KIP-890. A retry has the previous epoch, whose transaction it ended; a fresh request has the
    current epoch."""

    abort_retry: Ending
    abort_fresh: Ending
    commit_retry: Ending
    commit_fresh: Ending

    def of(self, *, commit: bool, retry: bool) -> Ending:
        """Return the answer to one request."""
        if commit:
            return self.commit_retry if retry else self.commit_fresh
        return self.abort_retry if retry else self.abort_fresh


# While markers are being written, a fresh request belongs to the next transaction: the client got its producer with the
# answer. (Kafka answers CONCURRENT_TRANSACTIONS too: its completion is a pending transition, seen before the table.)
# CompleteAbort, commit, retry: a commit that races with a time-out is fenced, not fatal (KAFKA-20785).
BY_EPOCH: Mapping[TransactionState, ByEpoch] = {
    #                        abort_retry  abort_fresh  commit_retry  commit_fresh
    EMPTY: ByEpoch(          FENCED,      GO,          FENCED,       INVALID),
    ONGOING: ByEpoch(        FENCED,      GO,          FENCED,       GO),
    PREPARE_ABORT: ByEpoch(  CONCURRENT,  CONCURRENT,  INVALID,      CONCURRENT),
    PREPARE_COMMIT: ByEpoch( INVALID,     CONCURRENT,  CONCURRENT,   CONCURRENT),
    COMPLETE_ABORT: ByEpoch( DONE,        GO,          FENCED,       INVALID),
    COMPLETE_COMMIT: ByEpoch(INVALID,     GO,          DONE,         INVALID),
}  # fmt: skip
"""Answers under protocol 2, in which each end raises the epoch."""


class ByState(NamedTuple):
    """Row of the table of the first protocol: an epoch lasts over many transactions, so only the state identifies a
    retry."""

    abort: Ending
    commit: Ending


BY_STATE: Mapping[TransactionState, ByState] = {
    #                        abort       commit
    EMPTY: ByState(          INVALID,    INVALID),
    ONGOING: ByState(        GO,         GO),
    PREPARE_ABORT: ByState(  CONCURRENT, INVALID),
    PREPARE_COMMIT: ByState( INVALID,    CONCURRENT),
    COMPLETE_ABORT: ByState( DONE,       INVALID),
    COMPLETE_COMMIT: ByState(INVALID,    DONE),
}  # fmt: skip
"""Answers under protocol 1."""
