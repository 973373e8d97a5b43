"""What a broker does while its disk hangs (schedule 58)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from strandline.log.log_dir import LogDir
from strandline.proto.errors import FatalError
from strandline.replica.states import ReplicaConfig

log = structlog.get_logger("strandline.replica")

NOTICE_MS = 500.0
"""Between the word to the controller and the end of the node: a heartbeat, an election, and its news to the others. If
the controller was on this node, another one is elected meanwhile."""


class StalledHost(Protocol):
    """The broker whose disk it is."""

    config: ReplicaConfig
    log_dir: LogDir

    def fatal(self, error: BaseException) -> None:
        """The node has to stop."""


class DiskStalls:
    """Told when a sync under way is older than its bound, and when it has ended after all.

    From then on no partition of the directory can be served: heartbeats say so of each, and the leaderships move to
    brokers that have heard of it before this node ends. It ends also if the sync ends meanwhile: its replicas have left
    the ISRs by then, and blocking syncs were refused.

    Attributes:
        hung: no replica here can be served any more.
    """

    def __init__(self, host: StalledHost, on_change: Callable[[], None]) -> None:
        """`on_change`: the controller is to hear of it at once."""
        self._host = host
        self._on_change = on_change
        self.hung = False

    def stalled(self, age_ms: float) -> None:
        """No ack comes until that sync ends; under flush.policy = replicate acks wait for no sync."""
        host = self._host
        if host.config.sync_before_ack:
            self.hung = True
            self._on_change()
            error = FatalError(f"a sync of {host.log_dir.path} does not end: {age_ms / 1000:.1f} s by now")
            asyncio.get_running_loop().call_later(NOTICE_MS / 1000, host.fatal, error)

    def recovered(self) -> None:
        """The disk does its work again."""
        if not self.hung:
            log.info("acks that waited for the disk go on", path=self._host.log_dir.path)
