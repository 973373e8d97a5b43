"""One follower's subscription to one leadership of one partition, as its leader sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.log.partition_log import PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.replica.core.leader import LeaderCore
from strandline.replica.core.progress import FollowerProgress
from strandline.replica.partition import Partition

if TYPE_CHECKING:
    from strandline.replica.leader_stream import FollowerLink


class Subscription:
    """One follower's subscription to one leadership of one partition.

    Invariants:
    - everything below `next_offset` was queued or sent to the follower; of what is beyond, `sent_bytes` of the batch
      that begins there, which goes in pieces;
    - unless `lagging`, `next_offset` is the log's end.
    """

    __slots__ = (
        "channel",
        "core",
        "follower",
        "id",
        "lagging",
        "link",
        "log",
        "next_offset",
        "partition",
        "sent_bytes",
        "sent_high_watermark",
    )

    def __init__(self, link: FollowerLink, identity: int, partition: Partition, core: LeaderCore, log: PartitionLog):
        self.link = link
        self.id = identity
        self.partition = partition
        self.core = core
        self.log = log
        self.channel = partition.channel
        self.follower: FollowerProgress = core.followers[link.node_id]
        self.next_offset = 0
        self.sent_bytes = 0
        self.sent_high_watermark = -1
        self.lagging = False

    @property
    def live(self) -> bool:
        """The leadership still stands and the follower has not fetched anew."""
        return self.partition.subscriptions.get(self.link.node_id) is self

    def end(self, code: ErrorCode) -> None:
        """The leadership is over: tell the follower."""
        self.link.ended(self, code)
