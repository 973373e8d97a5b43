"""Periodic work of a broker's replicas: one timer for every partition and stream."""

from __future__ import annotations

import asyncio

from strandline.proto.errors import FatalError
from strandline.proto.ids import TopicPartition
from strandline.proto.tasks import spawn
from strandline.replica.partition_set import PartitionSet
from strandline.replica.retention import Retention
from strandline.replica.shared import Shared
from strandline.replica.streams import Streams
from strandline.replica.tiering import Tiering

SWEEP_INTERVAL_MS = 1_000
"""Interval of the sweep for lagging followers, silent streams and cancelled appends, whose limits are seconds."""


class Upkeep:
    """Finds lagging followers and silent streams, checks free space, applies retention, hands segments to the object
    store, checkpoints high watermarks, and removes strays."""

    def __init__(
        self,
        shared: Shared,
        hosted: PartitionSet,
        *,
        streams: Streams,
        retention: Retention,
        tiering: Tiering | None,
    ) -> None:
        self._shared = shared
        self._hosted = hosted
        self._partitions = hosted.partitions
        self._directories = shared.directories
        self._streams = streams
        self._retention = retention
        self._tiering = tiering
        self._removal: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._checkpointed_ms = shared.clock.monotonic_ms()

    def start(self) -> None:
        """Begin the periodic work."""
        self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_MS / 1000, self._sweep)

    def stop(self) -> None:
        """End the periodic work."""
        if self._timer is not None:
            self._timer.cancel()
        self._retention.stop()
        if self._removal is not None:
            self._removal.cancel()

    def _sweep(self) -> None:
        self.start()
        now_ms = self._shared.clock.monotonic_ms()
        try:
            for partition in list(self._partitions.values()):
                partition.sweep(now_ms)
        except FatalError as error:
            self._shared.on_fatal(error)
            raise
        self._streams.keep_alive(now_ms)
        self._directories.look_for_room()
        self._retention.look(now_ms)
        if self._tiering is not None:
            self._tiering.look(now_ms)
        if self._removal is None and any(directory.strays.waiting for directory in self._directories.usable):
            self._removal = spawn(self._remove_strays(), self._shared.on_fatal)
        due = now_ms - self._checkpointed_ms >= self._shared.config.high_watermark_checkpoint_interval_ms
        if due:
            self._checkpointed_ms = now_ms
            self._directories.write_checkpoints(self._high_watermarks())  # rule B18/checkpoints-block-the-loop
            if not self._shared.config.sync_before_ack:
                self._sync_all()

    async def _remove_strays(self) -> None:
        try:
            for directory in self._directories.usable:
                await directory.strays.remove_due(self._hosted.is_assigned)
        finally:
            self._removal = None

    def checkpoint(self) -> None:
        """Write the checkpoints for the last time, blocking. Raises DiskError."""
        self._directories.write_last_checkpoints(self._high_watermarks())

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermarks to checkpoint, by partition. One that is too low after a crash only delays reads
        briefly after an election. Those of logs that are not hosted (yet) are kept."""
        known: dict[TopicPartition, int] = {}
        for directory in self._directories.usable:
            known.update(directory.log_dir.high_watermarks)
        known.update((tp, partition.high_watermark) for tp, partition in self._partitions.items())
        return known

    def _sync_all(self) -> None:
        """Sync all logs. Under flush.policy = replicate no ack waits for it, but it saves a restart from scanning
        all."""
        for partition in self._partitions.values():
            if partition.log is not None and partition.log.needs_sync:
                self._directories.of(partition.log.home).syncer.mark(partition.log)
