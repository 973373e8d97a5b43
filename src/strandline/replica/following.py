"""One partition that is followed on a stream, and what its stream needs of the broker."""

from __future__ import annotations

from typing import Protocol

from strandline.log.partition_log import PartitionLog
from strandline.proto.ids import BrokerEpoch, NodeId
from strandline.proto.ports import Clock, Rng, Rpc
from strandline.replica.core.follower import FollowerCore
from strandline.replica.disk_room import DiskRoom
from strandline.replica.partition import Partition
from strandline.replica.states import ReplicaConfig


class FollowerHost(Protocol):
    """What the fetchers need of the broker that they run on."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def broker_epoch(self) -> BrokerEpoch: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def rpc(self) -> Rpc: ...
    @property
    def config(self) -> ReplicaConfig: ...
    @property
    def disk_room(self) -> DiskRoom: ...

    def connected(self, leader: NodeId) -> None:
        """A leader has accepted this broker's stream."""

    def replicated(self, partition: Partition, size: int) -> None:
        """`size` bytes were appended to a follower's log (0: it was cut, or its epochs changed)."""

    def truncated_below_high_watermark(self, partition: Partition, offset: int) -> None:
        """Records known to be committed were given up, as an unclean election allows."""

    def log_start_raised(self, partition: Partition) -> None:
        """Records were deleted as the leader had them deleted: make that durable, then tell it (`Fetcher.trimmed`)."""

    def log_failed(self, partition: Partition, reason: str) -> None:
        """The partition's log can no longer be used."""


class Following:
    """One partition's subscription to its leader, in one leader epoch.

    Attributes:
        id: of the latest FETCH; -1 while none is out (it waits for a connection, or to be asked for again).
        channel: on which data come; -1 until the fetch was accepted.
        fetch_offset, last_epoch: what the latest FETCH said.
        attempts: refusals in a row.
        cuts: truncations since the leader last accepted a fetch.
        retry_ms: when to fetch again after a refusal.
        without_room: what came last, or a cut, found the disk full.
    """

    __slots__ = (
        "attempts",
        "channel",
        "core",
        "cuts",
        "fetch_offset",
        "id",
        "last_epoch",
        "log",
        "partition",
        "retry_ms",
        "without_room",
    )

    def __init__(self, partition: Partition, core: FollowerCore, plog: PartitionLog) -> None:
        self.partition = partition
        self.core = core
        self.log = plog
        self.id = -1
        self.channel = -1
        self.fetch_offset = -1
        self.last_epoch = -1
        self.attempts = 0
        self.cuts = 0
        self.retry_ms = 0.0
        self.without_room = False
