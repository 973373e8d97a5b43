"""What stands between a partition and the streams: its followers' subscriptions, and the source of its own data."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from strandline.log.partition_log import PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.replica.core.leader import FollowerProgress, LeaderCore


class Link(Protocol):
    """The stream of a follower's broker."""

    @property
    def node_id(self) -> NodeId: ...

    def offer(self, subscription: Subscription, base_offset: int, next_offset: int, size: int) -> deque[bytes] | None:
        """The queue for an entry with these just appended batches, or None: it shall get none."""

    def push(self, piece: bytes) -> None:
        """Queue one entry."""

    def ended(self, subscription: Subscription, code: ErrorCode) -> None:
        """The leadership under a subscription is over."""


class Subscription:
    """One follower's subscription to one leadership of one partition.

    Invariants:
    - everything below `next_offset` was queued or sent to the follower; of what is beyond, `sent_bytes` of the batch
      that begins there, which goes in pieces, and whose CRC-32C is `sent_crc` so far;
    - unless `lagging`, `next_offset` is the log's end;
    - it is `live` while it is among the partition's subscriptions: the leadership stands, and the follower has not
      fetched anew.
    """

    __slots__ = (
        "channel",
        "core",
        "follower",
        "id",
        "lagging",
        "link",
        "live",
        "log",
        "next_offset",
        "sent_bytes",
        "sent_crc",
        "sent_high_watermark",
    )

    def __init__(self, link: Link, identity: int, channel: int, core: LeaderCore, log: PartitionLog) -> None:
        self.link = link
        self.id = identity
        self.channel = channel
        self.core = core
        self.log = log
        self.follower: FollowerProgress = core.followers[link.node_id]
        self.next_offset = 0
        self.sent_bytes = 0
        self.sent_crc = 0
        self.sent_high_watermark = -1
        self.lagging = False
        self.live = True

    def end(self, code: ErrorCode) -> None:
        """The leadership is over: tell the follower."""
        self.live = False
        self.link.ended(self, code)


class Source(Protocol):
    """The stream on which a followed partition gets its data."""

    def synced(self) -> None:
        """More of the log is durable here: acknowledge it."""

    def deleted(self) -> None:
        """The log start is durable here: the leader may wait for that."""

    def heal(self) -> None:
        """Get from the leader what has rotted in the log, if it is time to."""

    def end(self) -> None:
        """Follow no longer."""
