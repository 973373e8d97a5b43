"""The trail of a node's audit: its files and its topic, by the settings `audit.*`.

Files contain lines of JSON and are rotated by size; the oldest is deleted. Changes have files of their own. Logins,
denials and failed changes are in other files beside them, so that none of these, however many, removes a line of a
change (rule A28).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Any, cast

import structlog

from strandline.cluster.groups.coordinator import CREATE_TIMEOUT_MS
from strandline.cluster.groups.internal_topic import InternalTopic, InternalTopicConfig
from strandline.cluster.node.audit_partitions import AuditPartitions
from strandline.cluster.node.audit_topic import AuditTopic
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.parts import NodeParts
from strandline.controller.channel import ControllerChannel
from strandline.proto.audit import ATTEMPTS_SUFFIX, AUDIT_TOPIC, audit_line, may_be_made
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import ConfigError
from strandline.proto.ports import Clock
from strandline.replica.manager import ReplicaManager

log = structlog.get_logger("strandline.audit")

TELL_MS = 10_000.0
"""Minimum milliseconds between two reports of lines that could not be written."""


class AuditFile(RotatingFileHandler):
    """File of the audit. The line of a change is written before the response to its request is sent.

    Attributes:
        dropped: number of lines that could not be written.
    """

    def __init__(self, path: str, *, max_bytes: int, files: int, clock: Clock) -> None:
        """Open the file to append. Raises ConfigError."""
        self._clock = clock
        self._untold = 0
        self._told_ms = -TELL_MS
        self.dropped = 0
        try:
            super().__init__(path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8")
        except BlockingIOError as error:
            raise ConfigError("audit.log.path", path, "a file of this node alone; another process writes it") from error
        except OSError as error:
            raise ConfigError("audit.log.path", path, f"a file that can be written ({error.strerror})") from error

    def _open(self) -> TextIOWrapper:
        """Open the file, readable only for the node's user, as it names topics, groups and principals; and lock it, as
        the rotation by one node would remove lines of another. Raises OSError."""
        file = open(self.baseFilename, self.mode, encoding=self.encoding, opener=_for_the_user)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return cast("TextIOWrapper", file)

    def add(self, line: str) -> None:
        """Write one line. Raises nothing; a failed write is counted and logged."""
        self.emit(logging.LogRecord("strandline.audit", logging.INFO, "", 0, line, None, None))

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a line that could not be written; `emit` calls this."""
        self.dropped += 1
        self._untold += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS:
            self._told_ms = now_ms
            log.exception("audit lines could not be written", path=self.baseFilename, lines=self._untold)
            self._untold = 0


def _for_the_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


RETENTION_MS = 7 * 24 * 3600 * 1000
"""Retention in ms of the topic when it is created here. To use another, an operator alters it or creates the topic
first."""

SEGMENT_MS = 24 * 3600 * 1000
"""Milliseconds after which a segment of the topic is closed. Only whole segments expire, so a line is kept for up to
`RETENTION_MS` plus this time."""

FLUSH_MS = 2_000.0
"""Maximum milliseconds that a stopping broker waits for the topic, before leaderships are handed over and again after
the last client has disconnected."""

LOOK_MS = 10.0
"""Milliseconds between two checks during that wait."""


class AuditTrail:
    """The `Sink` of a node. With neither file nor topic, only the log has the lines.

    Args:
        changes, attempts: the file of changes, and that of all other lines; both or none.
    """

    def __init__(
        self, believed: BelievedClock, changes: AuditFile | None, attempts: AuditFile | None, topic: AuditTopic | None
    ) -> None:
        self._clock = believed
        self._changes = changes
        self._attempts = attempts
        self.topic = topic

    @property
    def files(self) -> list[AuditFile]:
        """The audit's files; none without `audit.log.path`."""
        return [file for file in (self._changes, self._attempts) if file is not None]

    def write(self, event: str, figures: Mapping[str, Any]) -> None:
        """Implement `Sink.write`: the file has the line when this returns, the topic soon after."""
        is_change = event == "change" and may_be_made(str(figures["result"]))
        file = self._changes if is_change else self._attempts  # rule A28/logins-turn-over-the-files-of-changes
        if file is None and self.topic is None:
            return
        moment_ms = self._clock.latest_ms()
        line = audit_line(moment_ms, event, figures)
        if file is not None:
            file.add(line)
        if self.topic is not None:
            self.topic.add(moment_ms, str(figures["principal"]), line, is_change=is_change)

    def start(self, fatal: Callable[[BaseException], None]) -> None:
        """Begin to write to the topic."""
        if self.topic is not None:
            self.topic.start(fatal)

    async def flush(self, hurried: asyncio.Event) -> None:
        """Wait until the topic has every line, for `FLUSH_MS` at most, or until `hurried` is set."""
        if self.topic is None:
            return
        deadline_ms = self._clock.monotonic_ms() + FLUSH_MS
        while self.topic.waiting and not hurried.is_set() and self._clock.monotonic_ms() < deadline_ms:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_MS / 1000):
                    await hurried.wait()

    def close(self) -> None:
        """Close topic and files; the number of lines that the topic does not have is logged."""
        if self.topic is not None:
            self.topic.close()
        for file in self.files:
            file.close()


def audit_trail_of(
    config: NodeConfig, partitions: AuditPartitions, clock: Clock, believed: BelievedClock
) -> AuditTrail | None:
    """Return the trail; None if there is no authorizer, no file and no topic. Raises ConfigError."""
    if not config.authorizer and not config.audit_log_path and not config.audit_topic_enable:
        return None
    changes = attempts = None
    if config.audit_log_path:
        limits = {"max_bytes": config.audit_log_max_bytes, "files": config.audit_log_files}
        changes = AuditFile(config.audit_log_path, **limits, clock=clock)
        attempts = AuditFile(config.audit_log_path + ATTEMPTS_SUFFIX, **limits, clock=clock)
    topic = AuditTopic(config.node, partitions, believed) if config.audit_topic_enable else None
    return AuditTrail(believed, changes, attempts, topic)


def audit_partitions_of(node: NodeParts, replicas: ReplicaManager, controller: ControllerChannel) -> AuditPartitions:
    """Make the destination of this broker's lines, and of those of brokers that lead no partition of the topic."""
    config = node.config
    topic = InternalTopic(
        InternalTopicConfig(
            AUDIT_TOPIC,
            partitions=0,
            replication_factor=config.groups.topic_replication_factor,
            configs={
                "cleanup.policy": "delete",
                "retention.ms": str(RETENTION_MS),
                "segment.ms": str(SEGMENT_MS),
            },
        ),
        image=lambda: node.publisher.image,
        controller=controller,
        clock=node.clock,
        timeout_ms=CREATE_TIMEOUT_MS,
    )
    return AuditPartitions(
        config.node, topic=topic, image=lambda: node.publisher.image, replicas=replicas, rpc=node.rpc
    )
