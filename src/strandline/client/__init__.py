"""The client: `Producer`, `Consumer` and `Admin` over Kafka's wire protocol; async twins in `strandline.client.aio`.

Importing this package costs next to nothing: each class is loaded when first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client.admin import Admin
    from strandline.client.consumer import Consumer
    from strandline.client.copying.topic_copy import copy_topic
    from strandline.client.producer import Producer
    from strandline.client.types import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        Ack,
        ConfigChange,
        ConfigResource,
        ConsumerRecord,
        NewTopic,
        OffsetAndTimestamp,
    )
    from strandline.proto.ids import TopicPartition

_HOMES = {
    "Admin": "strandline.client.admin",
    "Consumer": "strandline.client.consumer",
    "Producer": "strandline.client.producer",
    "Ack": "strandline.client.types",
    "ConfigChange": "strandline.client.types",
    "ConfigResource": "strandline.client.types",
    "ConsumerRecord": "strandline.client.types",
    "EARLIEST": "strandline.client.types",
    "LATEST": "strandline.client.types",
    "MAX_TIMESTAMP": "strandline.client.types",
    "NewTopic": "strandline.client.types",
    "OffsetAndTimestamp": "strandline.client.types",
    "TopicPartition": "strandline.proto.ids",
    "copy_topic": "strandline.client.copying.topic_copy",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Ack",
    "Admin",
    "ConfigChange",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "NewTopic",
    "OffsetAndTimestamp",
    "Producer",
    "TopicPartition",
    "copy_topic",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
