"""What all partitions of one broker use together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.proto.believed import BelievedClock
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, NodeId
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report
from strandline.proto.timers import Delayed, Pauses
from strandline.replica.beginnings import Beginnings
from strandline.replica.directories import Directories
from strandline.replica.isr_changes import IsrChanges
from strandline.replica.refusals import EarlyRefusals
from strandline.replica.rot import RotWatch
from strandline.replica.states import ReplicaConfig, ReplicaCounters
from strandline.replica.throttle import Throttle


@dataclass(slots=True, eq=False)
class Shared:
    """Parts of a broker that all its partitions use. Nothing in it knows the partitions.

    Attributes:
        believed: wall time for whatever expires, and for stamps.
        broker_epoch: names this process's registration, once it has one.
        config: replaced, before the first partition is hosted, when the metadata say what the flush policy is; and
            when settings of the upkeep change.
        pauses: pauses whose length goes by `config`, woken when it was replaced.
        isr_changes: takes proposals to the controller.
        directories: make logs durable, each those in it (`Partition.synced` is called by way of the manager), and
            checkpoints; they know where room is.
        watermarks: tells followers of a risen high watermark, if no data went along meanwhile.
        leader_throttle, follower_throttle: what throttled replicas are sent, and fetch.
        beginnings: bring logs that begin behind the tier the producers of what is there.
        rot: hears of batches on the disk that are not what was written.
        on_change: the controller is to hear at once of something that heartbeats say.
        on_fatal: the node has to stop.
    """

    node_id: NodeId
    cluster_id: str
    clock: Clock
    believed: BelievedClock
    config: ReplicaConfig
    pauses: Pauses
    counters: ReplicaCounters
    early_refusals: EarlyRefusals
    directories: Directories
    isr_changes: IsrChanges
    watermarks: Delayed
    leader_throttle: Throttle
    follower_throttle: Throttle
    beginnings: Beginnings
    rot: RotWatch
    on_change: Callable[[], None]
    on_fatal: Report
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
