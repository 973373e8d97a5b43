"""The scrub: a slow pass over all logs of this broker, which finds rot in data that nobody reads (rule B19).

Its progress is not stored: a pass begins an hour after each start, and then once an interval. A broker that is
restarted more often begins anew each time; its reads stay below the allowed rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import structlog

from strandline.log.disk import DiskError
from strandline.log.rot import Gone, SegmentScrub
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import spawn
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

FIRST_SCRUB_MS = 3_600_000
"""Time from the start to the first pass, unless the interval is shorter: a start has other data to read."""


class Scrub:
    """Scrubs every segment every `log.scrub.interval.ms`, one at a time, at `log.scrub.max.bytes.per.second`."""

    def __init__(self, shared: Shared, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._shared = shared
        self._partitions = partitions
        self._task: asyncio.Task[None] | None = None
        self._started = False

    def start(self) -> None:
        """Scrub from now on, unless the interval is 0."""
        self._started = True
        if self._shared.config.scrub_interval_ms:  # rule B19/no-scrub
            self._task = spawn(self._run(), self._shared.on_fatal, endless=True)

    def reconfigured(self) -> None:
        """Begin or end scrubbing if the interval changed from or to 0. Pauses under way take up other changes by
        themselves."""
        if not self._started:
            return
        if not self._shared.config.scrub_interval_ms:
            self._end()
        elif self._task is None:
            self.start()

    def stop(self) -> None:
        """End scrubbing."""
        self._started = False
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        shared = self._shared
        started_ms = shared.clock.monotonic_ms()
        await shared.pauses.until(lambda: started_ms + min(shared.config.scrub_interval_ms, FIRST_SCRUB_MS))
        while True:
            began_ms = shared.clock.monotonic_ms()
            for partition in list(self._partitions.values()):
                await self._scrub(partition)
            ended_ms = shared.clock.monotonic_ms()
            mark("scrubbed")
            seconds = int((ended_ms - began_ms) / 1000)
            log.info("the logs were scrubbed", partitions=len(self._partitions), seconds=seconds)
            await shared.pauses.until(partial(self._next_ms, began_ms, ended_ms))

    def _next_ms(self, began_ms: float, ended_ms: float) -> float:
        return max(began_ms + self._shared.config.scrub_interval_ms, ended_ms + 1_000)

    async def _scrub(self, partition: Partition) -> None:
        plog = partition.log
        for segment in [] if plog is None else list(plog.segments):
            if plog is None or plog.failure is not None:
                return
            try:
                holes = await SegmentScrub(plog, segment, self._pace).holes()
            except (Gone, FileNotFoundError):
                continue
            except (DiskError, KafkaError) as error:
                name = str(partition.topic_partition)
                log.warning("a log cannot be scrubbed", partition=name, file=segment.file.path, error=str(error))
                continue
            self._shared.rot.scrubbed(partition, plog, segment, holes)

    async def _pace(self, size: int) -> None:
        shared = self._shared
        shared.counters.scrubbed_bytes += size
        now_ms = shared.clock.monotonic_ms()
        await shared.pauses.until(lambda: now_ms + size * 1_000 / shared.config.scrub_bytes_per_second)
