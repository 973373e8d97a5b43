"""Commands to groups of the consumer protocol (KIP-848), and their answers. Errors are raised as KafkaError."""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.kafka.consumer_group_records import Assignment


class ConsumerHeartbeat(NamedTuple):
    """Heartbeat of a member. A field of None has not changed since the last heartbeat. Answered with ConsumerAnswer.

    Attributes:
        member_id: id chosen by the client; "" to get one (only in version 0 of the request).
        epoch: member epoch; 0 to join, -1 to leave, -2 if a static member leaves for a short time.
        rebalance_timeout_ms: milliseconds to give up revoked partitions; -1 if unchanged.
        topics: names of subscribed topics.
        regex: pattern of further subscribed topics; "" ends its subscription.
        owned: partitions that the member reads at this moment.
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
    """Answer to ConsumerHeartbeat. `assigned` is None if the assignment has not changed since the last answer."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assigned: Assignment | None = None


class DescribeConsumerGroup(NamedTuple):
    """Describe a group. Answered with `ConsumerGroupDescription`. Error: GROUP_ID_NOT_FOUND, also for a classic one."""

    group_id: str


class DescribedConsumer(NamedTuple):
    """Description of one member. `assigned`: partitions that it may read now; `target`: partitions that it will have
    after the rebalance; `classic`: True if it uses the classic protocol."""

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
    """Report that topics were created or deleted, or got more partitions. Answered with None."""
