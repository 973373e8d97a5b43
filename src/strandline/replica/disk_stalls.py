"""What a broker does while its disk hangs (schedule 58)."""

from __future__ import annotations

from typing import Protocol

import structlog

from strandline.log.log_dir import LogDir
from strandline.proto.errors import FatalError
from strandline.replica.states import ReplicaConfig

log = structlog.get_logger("strandline.replica")


class StalledHost(Protocol):
    """The broker whose disk it is."""

    config: ReplicaConfig
    log_dir: LogDir

    def fatal(self, error: BaseException) -> None:
        """The node has to stop."""


class DiskStalls:
    """Told when a sync under way is older than its bound, and when it has ended after all.

    Meanwhile no partition of the directory can be served: the leadership of each has to move. Nothing moves it but the
    end of the whole node.
    """

    def __init__(self, host: StalledHost) -> None:
        self._host = host

    def stalled(self, age_ms: float) -> None:
        """No ack comes until that sync ends; under flush.policy = replicate acks wait for no sync."""
        host = self._host
        if host.config.sync_before_ack:
            host.fatal(FatalError(f"a sync of {host.log_dir.path} does not end: {age_ms / 1000:.1f} s by now"))

    def recovered(self) -> None:
        """The disk does its work again."""
        log.info("acks that waited for the disk go on", path=self._host.log_dir.path)
