"""Limits and times of transactions, under Kafka's names."""

from __future__ import annotations

from strandline.proto.settings import INT32_MAX, ConfigType, Scope, Settings, milliseconds, size, whole


class TransactionConfig(Settings, scope=Scope.NODE):
    """Settings of transactions in a node's file: timeouts, expiration, the internal topic."""

    max_timeout_ms = milliseconds(
        "transaction.max.timeout.ms",
        900_000,
        "Longest transaction.timeout.ms that a producer may ask for; a longer one is refused with "
        "INVALID_TRANSACTION_TIMEOUT. It bounds how long one transaction can delay readers with read_committed.",
    )
    abort_interval_ms = milliseconds(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "Interval between checks for transactions that have lasted longer than their producer's "
        "transaction.timeout.ms; these are aborted.",
    )
    expiration_ms = milliseconds(
        "transactional.id.expiration.ms",
        604_800_000,
        "Time without use after which a transactional id is deleted. The default is a week. A producer that uses the "
        "id later starts anew.",
    )
    expiry_interval_ms = milliseconds(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "Interval between checks for transactional ids that may be deleted.",
    )
    topic_partitions = whole(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state when it is created, at the first use of a transactional id. It must not be "
        "changed later.",
        low=1,
        high=10_000,
    )
    topic_replication_factor = whole(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of each partition of __transaction_state when it is created. If fewer brokers are registered, there "
        "are as many replicas as brokers, and the log has a warning.",
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
