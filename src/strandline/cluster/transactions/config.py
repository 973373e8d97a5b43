"""Limits and times of transactions, under Kafka's names."""

from __future__ import annotations

from strandline.proto.settings import INT32_MAX, ConfigType, Scope, Settings, milliseconds, size, whole


class TransactionConfig(Settings, scope=Scope.NODE):
    """Settings of transactions in a node's file."""

    max_timeout_ms = milliseconds(
        "transaction.max.timeout.ms",
        900_000,
        "The longest transaction.timeout.ms that a producer may ask for; a longer one is refused with "
        "INVALID_TRANSACTION_TIMEOUT. Readers of committed records alone wait at most so long for one transaction.",
    )
    abort_interval_ms = milliseconds(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often is looked for transactions that have lasted longer than their producers' transaction.timeout.ms, to "
        "abort them.",
    )
    expiration_ms = milliseconds(
        "transactional.id.expiration.ms",
        604_800_000,
        "A transactional id that nobody has used for so long is forgotten (a week). A producer that comes back later "
        "begins anew.",
    )
    expiry_interval_ms = milliseconds(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often is looked for transactional ids that may be forgotten.",
    )
    topic_partitions = whole(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state when it is created, at the first use of a transactional id. Not to be "
        "changed after.",
        low=1,
        high=10_000,
    )
    topic_replication_factor = whole(
        "transaction.state.log.replication.factor",
        3,
        "Copies of each partition of __transaction_state when it is created; where fewer brokers are registered, as "
        "many as there are, with a warning in the log.",
        low=1,
        high=32_767,
        type=ConfigType.SHORT,
    )
    topic_min_isr = whole(
        "transaction.state.log.min.isr",
        2,
        "Value of min.insync.replicas that __transaction_state has when it is created.",
        low=1,
        high=INT32_MAX,
    )
    topic_segment_bytes = size(
        "transaction.state.log.segment.bytes",
        100 * 1024**2,
        "Value of segment.bytes that __transaction_state has when it is created.",
        low=1024,
        high=INT32_MAX,
    )
