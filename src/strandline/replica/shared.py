"""Parts that all partitions of one broker use together."""

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
    """Parts of a broker that all its partitions use. None of them knows the partitions.

    Attributes:
        believed: wall time without false jumps (`BelievedClock`), for expiry and for timestamps.
        broker_epoch: broker epoch of this process's registration; NO_BROKER_EPOCH before it.
        config: settings of the replicas. A new object replaces it when metadata set the flush policy, which is before
            the first partition is hosted, and when a setting of the upkeep changes.
        pauses: pauses whose length depends on `config`; they end early when it is replaced.
        isr_changes: sends ISR proposals to the controller.
        directories: the log directories. Each syncs its logs (`Partition.synced` is called through the manager),
            writes its checkpoints and knows its free space.
        watermarks: sends a risen high watermark to followers to which no data is sent meanwhile.
        leader_throttle, follower_throttle: quotas for data sent to, and fetched by, throttled replicas.
        beginnings: loads the producer states of logs that begin behind their tiered part.
        rot: takes reports of batches that are not as they were written.
        on_change: called when the controller must hear of something at once, with a heartbeat.
        on_fatal: called with the error after which the node has to stop.
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
