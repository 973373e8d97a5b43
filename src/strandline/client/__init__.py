"""The client: `Producer`, `Consumer` and `Admin` over Kafka's wire protocol; async twins in `strandline.client.aio`.

Importing this package costs next to nothing: each class is loaded when first named.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client.admin import Admin
    from strandline.client.consumer import Consumer
    from strandline.client.errors import (
        BrokerUnreachable,
        BufferExhausted,
        ClientError,
        ClientTimeout,
        ClosedError,
        CommitFailed,
        DeliveryTimeout,
        DeserializationFailed,
        Disconnected,
        LogTruncated,
        ManyErrors,
        MembershipLost,
        NoOffsetForPartition,
        OffsetOutOfRange,
        OutcomeUnknown,
        PositionLost,
        ProducerFenced,
        TokenUnavailable,
        TopicReplaced,
        TransactionAbortable,
        TransactionFatal,
        UnknownTopic,
    )
    from strandline.client.processing import Processed, Send, process
    from strandline.client.producer import Producer
    from strandline.client.settings import AdminSettings, ConsumerSettings, ProducerSettings
    from strandline.client.types import (
        EARLIEST,
        EARLIEST_LOCAL,
        LATEST,
        LATEST_TIERED,
        MAX_TIMESTAMP,
        Ack,
        ConfigChange,
        ConfigResource,
        ConsumerRecord,
        GroupMetadata,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
    )
    from strandline.proto.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
    from strandline.proto.error_codes import ErrorCode
    from strandline.proto.errors import ConfigError, KafkaError, MissingExtra, StrandlineError
    from strandline.proto.ids import TopicPartition
    from strandline.proto.quotas import QuotaEntity

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is shown, and where, is the program's to say

_HOMES = {
    "Admin": "strandline.client.admin",
    "Consumer": "strandline.client.consumer",
    "Producer": "strandline.client.producer",
    "Processed": "strandline.client.processing",
    "Send": "strandline.client.processing",
    "process": "strandline.client.processing",
    "Ack": "strandline.client.types",
    "ConfigChange": "strandline.client.types",
    "ConfigResource": "strandline.client.types",
    "ConsumerRecord": "strandline.client.types",
    "EARLIEST": "strandline.client.types",
    "EARLIEST_LOCAL": "strandline.client.types",
    "LATEST": "strandline.client.types",
    "LATEST_TIERED": "strandline.client.types",
    "MAX_TIMESTAMP": "strandline.client.types",
    "GroupMetadata": "strandline.client.types",
    "NewTopic": "strandline.client.types",
    "OffsetAndMetadata": "strandline.client.types",
    "OffsetAndTimestamp": "strandline.client.types",
    "ScramChange": "strandline.client.types",
    "ScramDescription": "strandline.client.types",
    "TopicPartition": "strandline.proto.ids",
    "AdminSettings": "strandline.client.settings",
    "ConsumerSettings": "strandline.client.settings",
    "ProducerSettings": "strandline.client.settings",
    "AclBinding": "strandline.proto.acls",
    "AclFilter": "strandline.proto.acls",
    "Operation": "strandline.proto.acls",
    "PatternType": "strandline.proto.acls",
    "Permission": "strandline.proto.acls",
    "ResourceKind": "strandline.proto.acls",
    "QuotaEntity": "strandline.proto.quotas",
    "ErrorCode": "strandline.proto.error_codes",
    "ConfigError": "strandline.proto.errors",
    "KafkaError": "strandline.proto.errors",
    "StrandlineError": "strandline.proto.errors",
    "AuthenticationFailed": "strandline.client.errors",
    "BrokerUnreachable": "strandline.client.errors",
    "BufferExhausted": "strandline.client.errors",
    "ClientError": "strandline.client.errors",
    "ClientTimeout": "strandline.client.errors",
    "ClosedError": "strandline.client.errors",
    "CommitFailed": "strandline.client.errors",
    "DeliveryTimeout": "strandline.client.errors",
    "DeserializationFailed": "strandline.client.errors",
    "Disconnected": "strandline.client.errors",
    "LogTruncated": "strandline.client.errors",
    "ManyErrors": "strandline.client.errors",
    "MembershipLost": "strandline.client.errors",
    "MissingExtra": "strandline.proto.errors",
    "NoOffsetForPartition": "strandline.client.errors",
    "OffsetOutOfRange": "strandline.client.errors",
    "OutcomeUnknown": "strandline.client.errors",
    "PositionLost": "strandline.client.errors",
    "ProducerFenced": "strandline.client.errors",
    "TokenUnavailable": "strandline.client.errors",
    "TopicReplaced": "strandline.client.errors",
    "TransactionAbortable": "strandline.client.errors",
    "TransactionFatal": "strandline.client.errors",
    "UnknownTopic": "strandline.client.errors",
}

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "LATEST_TIERED",
    "MAX_TIMESTAMP",
    "Ack",
    "AclBinding",
    "AclFilter",
    "Admin",
    "AdminSettings",
    "AuthenticationFailed",
    "BrokerUnreachable",
    "BufferExhausted",
    "ClientError",
    "ClientTimeout",
    "ClosedError",
    "CommitFailed",
    "ConfigChange",
    "ConfigError",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "ConsumerSettings",
    "DeliveryTimeout",
    "DeserializationFailed",
    "Disconnected",
    "ErrorCode",
    "GroupMetadata",
    "KafkaError",
    "LogTruncated",
    "ManyErrors",
    "MembershipLost",
    "MissingExtra",
    "NewTopic",
    "NoOffsetForPartition",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "Operation",
    "OutcomeUnknown",
    "PatternType",
    "Permission",
    "PositionLost",
    "Processed",
    "Producer",
    "ProducerFenced",
    "ProducerSettings",
    "QuotaEntity",
    "ResourceKind",
    "ScramChange",
    "ScramDescription",
    "Send",
    "StrandlineError",
    "TokenUnavailable",
    "TopicPartition",
    "TopicReplaced",
    "TransactionAbortable",
    "TransactionFatal",
    "UnknownTopic",
    "process",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """All names, loaded or not, for dir() and TAB."""
    return sorted({*globals(), *__all__})
