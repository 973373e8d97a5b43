"""Commands of groups of the consumer protocol, and their answers. Errors come as KafkaError."""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.kafka.consumer_group_records import Assignment


class ConsumerHeartbeat(NamedTuple):
    """A member joins (epoch 0), lives, or leaves (-1; a static one that will be back: -2). None: as before.

    Attributes:
        member_id: the client's own; "" to be given one (version 0 of the request alone).
        rebalance_timeout_ms: -1 as before.
        topics: subscribed names.
        regex: pattern of further ones, "" for none any more.
        owned: the partitions that it has at this moment.
    """

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None


class ConsumerAnswer(NamedTuple):
    """`assigned` None: as in the answer before."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assigned: Assignment | None = None


class DescribeConsumerGroup(NamedTuple):
    """Answered with a `ConsumerGroupDescription`; GROUP_ID_NOT_FOUND, for classic groups too."""

    group_id: str


class DescribedConsumer(NamedTuple):
    """`assigned` is what it may read, `target` what it shall have; `classic`: it has the classic protocol."""

    member_id: str
    instance_id: str | None
    rack: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    assigned: Assignment
    target: Assignment
    classic: bool


class ConsumerGroupDescription(NamedTuple):
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


class TopicsChanged(NamedTuple):
    """Topics came, went, or have more partitions. Answered with None."""
