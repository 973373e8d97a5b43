"""Parts of a node that every role uses."""

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
    """The parts of a node that every role uses.

    Attributes:
        incarnation_id: random id of this process, chosen at its start.
        believed: wall clock for expiry and timestamps.
        hurried: set to hurry a stop: it no longer waits for other nodes, but still syncs and closes all local files.
        open_store: opens the object store of tiered storage.
        fatal: called with an error for which the node must stop, as going on could lose data.
        log_levels: levels of the process's loggers.
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
