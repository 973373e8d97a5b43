"""Interface of a node for the pages of its HTTP listener."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from strandline.cluster.node.blocked_loop import LoopLag
from strandline.cluster.node.broker_role import BrokerRole
from strandline.cluster.node.faults.injection import FaultInjection
from strandline.cluster.node.tls import NodeTls
from strandline.controller.controller import Controller
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.quorum.quorum import Quorum
from strandline.log.log_dirs import LogDirs
from strandline.log.watched_disk import WatchedDisk
from strandline.proto.believed import BelievedClock
from strandline.proto.ports import Clock


class ObservedNode(Protocol):
    """A node (`strandline.cluster.node.node.Node`) as its HTTP pages read it; only injected faults change it.

    Attributes:
        controller: None on a node that is only a broker.
        broker: None on a node that is only a controller.
        faults: None unless fault injection is on.
        failed: gets the error for which the node must stop.
    """

    clock: Clock
    believed: BelievedClock
    disk: WatchedDisk
    log_dirs: LogDirs
    quorum: Quorum
    publisher: ImagePublisher
    loop_lag: LoopLag
    tls: NodeTls
    controller: Controller | None
    broker: BrokerRole | None
    faults: FaultInjection | None
    failed: asyncio.Future[None]

    @property
    def ready(self) -> bool:
        """True if the node is ready."""

    def describe(self) -> Mapping[str, str | int]:
        """Return node id, cluster id and listeners."""
