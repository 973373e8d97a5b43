"""The public interface: a copy as a function, and as an object that shows its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from strandline.client.loop_thread import LoopThread, end_unless
from strandline.client.settings import ProducerSettings
from strandline.proto.system import SystemClock
from strandline.tools.copy.engine import Engine
from strandline.tools.copy.source import Transform
from strandline.tools.copy.target import TargetSpec

_FAREWELL_S = 5.0


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """Work of a run on one partition of the source: it read `records`, from offset `start` to before `end`."""

    partition: int
    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Work of a run: `records` were read, and each was left out by the transform, found in the target (`already`: an
    earlier run had written it), or written. Counted are whole rounds.

    `size_bytes` is that of the batches that were read, as they lie in the log; `deleted` counts offsets whose records
    the source had deleted, which was accepted; `target_ends` are the offsets where the target's partitions end.
    """

    source: str
    target: str
    group: str
    records: int
    written: int
    already: int
    left_out: int
    deleted: int
    size_bytes: int
    seconds: float
    partitions: tuple[SourcePartition, ...]
    target_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyPreview:
    """Work that a copy would do now: `records` counts offsets, of which a compacted or transactional log has fewer
    records; `creates` says that the target would be made, with `target_partitions` and `target_configs`."""

    source: str
    target: str
    group: str
    creates: bool
    target_partitions: int
    target_configs: Mapping[str, str]
    records: int
    deleted: int
    partitions: tuple[SourcePartition, ...]


def default_group(source: str, target: str) -> str:
    """The group that notes how far a copy is."""
    return f"strandline-copy.{source}.{target}"


class TopicCopy:
    """One run of a copy; see `copy_topic` for its arguments.

    Args:
        on_progress: called now and then, in another thread, with the offsets done and how many there are to do.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        source: str,
        target: str,
        *,
        transform: Transform | None = None,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        group: str | None = None,
        follow: bool = False,
        append: bool = False,
        accept_deleted: bool = False,
        settings: Mapping[str, object],
        on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._source = source
        self._target = target
        self._group = group or default_group(source, target)
        self._clock = SystemClock()
        self._start_ms = self._clock.monotonic_ms()
        self._task: asyncio.Task[None] | None = None
        made: list[LoopThread] = []
        try:
            self._thread = LoopThread("strandline-copy", made)
            self._engine = self._thread.call(
                lambda: Engine(
                    bootstrap, source, target, group=self._group,
                    wish=TargetSpec(partitions, replication_factor, configs or {}, append),
                    transform=transform, follow=follow, accept_deleted=accept_deleted, settings=settings,
                    on_progress=on_progress,
                )
            )  # fmt: skip
        except BaseException:
            end_unless(made, None)
            raise

    def run(self) -> CopyResult:
        """Copy; once. An interrupt (Ctrl-C) leaves a round unfinished, which the next run finishes. Raises as
        `copy_topic`."""
        try:
            self._thread.wait(self._run)
        finally:
            self._thread.stop(self._ended)
        return self.result()

    def preview(self) -> CopyPreview:
        """Work that `run` would do; nothing is changed, and `run` is not called then. Raises as `copy_topic`."""
        try:
            made = self._thread.wait(self._engine.preview)
        finally:
            self._thread.stop(self._ended)
        engine = self._engine
        partitions = tuple(
            SourcePartition(number, start, engine.positions[number], engine.positions[number] - start)
            for number, start in sorted(engine.starts.items())
        )
        return CopyPreview(
            self._source,
            self._target,
            self._group,
            made is not None,
            len(engine.ends),
            {} if made is None else made.configs,
            sum(part.records for part in partitions),
            engine.tally.deleted,
            partitions,
        )

    async def _run(self) -> None:
        self._task = asyncio.create_task(self._engine.run())
        await self._task

    async def _ended(self) -> None:
        """A run that was interrupted leaves its group."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_FAREWELL_S)

    def result(self) -> CopyResult:
        """Work done so far."""
        engine, tally = self._engine, self._engine.tally
        return CopyResult(
            self._source,
            self._target,
            self._group,
            sum(tally.read.values()),
            tally.written,
            tally.already,
            tally.left_out,
            tally.deleted,
            tally.size_bytes,
            (self._clock.monotonic_ms() - self._start_ms) / 1000,
            tuple(
                SourcePartition(number, start, engine.positions[number], tally.read.get(number, 0))
                for number, start in sorted(engine.starts.items())
            ),
            tuple(engine.ends),
        )


def copy_topic(
    bootstrap: str | Sequence[str],
    source: str,
    target: str,
    *,
    transform: Transform | None = None,
    partitions: int | None = None,
    replication_factor: int | None = None,
    configs: Mapping[str, str] | None = None,
    group: str | None = None,
    follow: bool = False,
    append: bool = False,
    accept_deleted: bool = False,
    **settings: Unpack[ProducerSettings],
) -> CopyResult:
    """Copy every committed record of a topic into another one of the same cluster, by its key as the clients' default
    partitioner does it, with key, value, headers and timestamp: each once, and those of one source partition in their
    order within each target partition. Returns when the source's ends of the moment of the call are reached.

    Whatever is killed meanwhile, the same call goes on where it ended: nothing is lost or written twice. Progress
    stands in the group, in which a call takes the place of one that still runs (that one ends with CopyTakenOver).

    Args:
        transform: gives the record to send instead (`record._replace(value=...)`: key, value, headers and timestamp_ms
            count), or None to leave it out. Called in another thread, in order within a source partition. It must be
            deterministic, the same for every run of one copy: after an interruption the unfinished round is computed
            again, and compared with what is there.
        partitions, replication_factor, configs: of the target, if it is made; by default those of the source. One that
            is there must be like that.
        group: where the progress is noted; by default "strandline-copy.<source>.<target>".
        follow: go on with what comes, until interrupted.
        append: write into a target that has records, behind them.
        accept_deleted: go on without records that the source has deleted before they were copied.
        settings: a producer's; `compression.type` recompresses, else each batch keeps the codec of the source. What no
            broker answers for `delivery.timeout.ms`, 60 s at most, ends the copy with ClientTimeout.

    Raises:
        CopyRefused: it cannot be done as asked: nothing was written.
        RecordsDeleted, ForeignRecords, CopyChanged, CopyTakenOver: see `strandline.tools.copy.errors`.
        UnknownTopic: there is no such source.
        KafkaError, ClientTimeout, ConfigError: as everywhere.
    """
    return TopicCopy(
        bootstrap, source, target, transform=transform, partitions=partitions, replication_factor=replication_factor,
        configs=configs, group=group, follow=follow, append=append, accept_deleted=accept_deleted, settings=settings,
    ).run()  # fmt: skip
