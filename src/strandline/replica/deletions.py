"""Deletions from the front of partitions: as leader at a client's word, as follower at the leader's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from strandline.log.disk import Disk
from strandline.log.log_dir import LogDir
from strandline.log.log_starts import LogStarts
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import StorageError
from strandline.proto.ids import TopicPartition
from strandline.replica import reads
from strandline.replica.partition import Partition
from strandline.replica.publisher import Publisher
from strandline.replica.streams import Streams
from strandline.replica.trims import TO_HIGH_WATERMARK, PendingTrim, TrimDone


class DeletionHost(Protocol):
    """The broker whose partitions these are."""

    def log_failed(self, partition: Partition, reason: str) -> None:
        """The partition's log can no longer be used."""

    def fatal(self, error: BaseException) -> None:
        """Something broke that must not."""


class Deletions:
    """Raises log starts, and tells who waits once they are durable."""

    def __init__(
        self,
        host: DeletionHost,
        partitions: Mapping[TopicPartition, Partition],
        log_dir: LogDir,
        disk: Disk,
        *,
        publisher: Publisher,
        streams: Streams,
    ) -> None:
        self._host = host
        self._partitions = partitions
        self._publisher = publisher
        self._streams = streams
        self._raised: dict[Partition, None] = {}
        self._log_starts = LogStarts(log_dir, disk, self._durable, host.fatal)

    def stop(self) -> asyncio.Task[None] | None:
        """Write nothing more down; returns the task that ends with it, if any."""
        return self._log_starts.stop()

    def delete(self, tp: TopicPartition, offset: int, done: TrimDone) -> PendingTrim | None:
        """See `ReplicaManager.delete_records`."""
        partition = self._partitions.get(tp)
        error, message = reads.refusal(partition)
        if partition is None or error is not ErrorCode.NONE:
            done(error, message, -1)
            return None
        core, plog = partition.leader, partition.log
        assert core is not None
        assert plog is not None
        wanted = core.high_watermark if offset == TO_HIGH_WATERMARK else offset
        if not 0 <= wanted <= core.high_watermark:
            done(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}: the high watermark is {core.high_watermark}", -1)
            return None
        try:
            plog.delete_records_before(wanted)
        except StorageError as failure:
            self._host.log_failed(partition, str(failure))
            done(ErrorCode.KAFKA_STORAGE_ERROR, str(failure), -1)
            return None
        pending = PendingTrim(wanted, done)
        partition.trims.append(pending)
        self._publisher.trimmed(partition)
        self.raised(partition)
        partition.release_trims()
        return None if pending.ended else pending

    def raised(self, partition: Partition) -> None:
        """Its log start was raised, and shall become durable; unless it is hosted here no longer."""
        plog = partition.log
        if plog is None or self._partitions.get(partition.topic_partition) is not partition:
            return
        if plog.durable_log_start_offset < plog.log_start_offset:
            self._raised[partition] = None
            self._log_starts.raised()

    def _durable(self) -> None:
        """More log starts are: answer who waited, or tell the leader."""
        raised, self._raised = self._raised, {}
        for partition in raised:
            partition.release_trims()
            self._streams.trimmed(partition)
            self.raised(partition)  # again, if it was raised once more in between
