"""What all partitions of one broker use together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from strandline.proto.believed import BelievedClock
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, NodeId
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report
from strandline.replica.beginnings import Beginnings
from strandline.replica.directories import Directories
from strandline.replica.isr_changes import IsrChanges
from strandline.replica.naps import Naps
from strandline.replica.refusals import EarlyRefusals
from strandline.replica.rot import RotWatch
from strandline.replica.states import ReplicaConfig, ReplicaCounters
from strandline.replica.throttle import Throttle


class Delayed:
    """Calls that are made together, each once, a while after the first of them was asked for. One timer for all."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_ms = delay_ms
        self._calls: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Make this call soon. Cheap."""
        self._calls[call] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_ms / 1000, self.run)

    def run(self) -> None:
        """Make the calls now."""
        self._timer = None
        calls, self._calls = self._calls, {}
        for call in calls:
            call()

    def stop(self) -> None:
        """Make no more calls."""
        if self._timer is not None:
            self._timer.cancel()


@dataclass(slots=True, eq=False)
class Shared:
    """What all partitions of one broker use together. Nothing in it knows the partitions.

    Attributes:
        believed: wall time for whatever expires, and for stamps.
        broker_epoch: names this process's registration, once it has one.
        config: replaced, before the first partition is hosted, when the metadata say what the flush policy is; and
            when settings of the upkeep change.
        naps: sleeps that go by `config`, woken when it was replaced.
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
    naps: Naps
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
