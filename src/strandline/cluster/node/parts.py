"""Parts of a node that every role stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from strandline.cluster.broker.log_levels import LogLevels
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.tls import NodeTls
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.quorum.quorum import Quorum
from strandline.log.log_dirs import LogDirs
from strandline.log.object_store import ObjectStore
from strandline.log.watched_disk import WatchedDisk
from strandline.proto.believed import BelievedClock
from strandline.proto.ports import Clock, Rng, Rpc
from strandline.replica.tier_config import TierConfig


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a node that every role has, and its ends.

    Attributes:
        incarnation_id: of this process, drawn when it began.
        believed: wall time for whatever expires, and for stamps.
        hurried: set: a stop under way waits for no other node any more; what is here is still synced and closed.
        open_store: opens the object store of tiered storage.
        fatal: the node must stop, for going on could lose data.
        log_levels: of the loggers of the process.
    """

    config: NodeConfig
    cluster_id: str
    incarnation_id: UUID
    disk: WatchedDisk
    log_dirs: LogDirs
    quorum: Quorum
    publisher: ImagePublisher
    clock: Clock
    believed: BelievedClock
    rng: Rng
    rpc: Rpc
    hurried: asyncio.Event
    tls: NodeTls
    open_store: Callable[[TierConfig], ObjectStore]
    fatal: Callable[[BaseException], None]
    log_levels: LogLevels
