"""The scrub: a slow pass over all logs of this broker, which finds the rot that nobody reads (rule B19).

Where it got to is written down nowhere: a pass begins an hour after each start, and then once an interval. A broker
that is restarted more often begins anew each time, and its reads stay below the rate that is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from strandline.log.disk import DiskError
from strandline.log.survey import Gone, Survey
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import spawn
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

FIRST_SCRUB_MS = 3_600_000
"""The first pass, after the start, unless passes are more frequent than that: a start has other things to read."""


class Scrub:
    """Surveys every segment every `log.scrub.interval.ms`, one at a time, at `log.scrub.max.bytes.per.second`."""

    def __init__(self, shared: Shared, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._shared = shared
        self._partitions = partitions
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Scrub from now on, unless the interval is 0."""
        if self._shared.config.scrub_interval_ms:
            self._task = spawn(self._run(), self._shared.on_fatal, endless=True)

    def stop(self) -> None:
        """Scrub no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        interval_ms = self._shared.config.scrub_interval_ms
        await asyncio.sleep(min(interval_ms, FIRST_SCRUB_MS) / 1000)
        while True:
            began_ms = self._shared.clock.monotonic_ms()
            for partition in list(self._partitions.values()):
                await self._scrub(partition)
            took_ms = self._shared.clock.monotonic_ms() - began_ms
            mark("scrubbed")
            log.info("the logs were scrubbed", partitions=len(self._partitions), seconds=int(took_ms / 1000))
            await asyncio.sleep(max(interval_ms - took_ms, 1_000) / 1000)

    async def _scrub(self, partition: Partition) -> None:
        plog = partition.log
        for segment in [] if plog is None else list(plog.segments):
            if plog is None or plog.failure is not None:
                return
            try:
                holes = await Survey(plog, segment, self._pace).holes()
            except (Gone, FileNotFoundError):
                continue
            except (DiskError, KafkaError) as error:
                name = str(partition.topic_partition)
                log.warning("a log cannot be scrubbed", partition=name, file=segment.file.path, error=str(error))
                continue
            self._shared.rot.surveyed(partition, plog, segment, holes)

    async def _pace(self, size: int) -> None:
        self._shared.counters.scrubbed_bytes += size
        await asyncio.sleep(size / self._shared.config.scrub_bytes_per_second)
