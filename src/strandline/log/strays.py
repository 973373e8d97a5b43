"""Stray partitions: directories of topics that were deleted, or of replicas that moved, while this node was down.

As in Kafka, a stray is renamed aside (`<topic>-<partition>.<unique>-stray`) once the metadata that show it are known.
Kafka keeps it for ever. Here it is removed after a delay, to free its space, and not before: if the metadata were
wrong, the data are still there (schedule 31: never delete at once what only metadata call an orphan).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from strandline.log.checkpoints import PARTITION_METADATA, decode_partition_metadata
from strandline.log.disk import Disk, DiskError, read_file
from strandline.log.loading import KEPT_STRAY, STRAY, aside_name
from strandline.log.log_dir import LogDir
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import TopicId, TopicIdPartition, TopicPartition
from strandline.proto.marks import mark

log = structlog.get_logger("strandline.log")

KEEP = -1
"""Delay for strays that are never removed, as in Kafka."""


class Stray(NamedTuple):
    """A directory that was renamed aside."""

    name: str
    set_aside_ms: int
    """Wall time at which it was renamed, from its name."""


class Strays:
    """The strays of one log directory."""

    def __init__(self, log_dir: LogDir, disk: Disk, believed: BelievedClock, delay_ms: int) -> None:
        """`delay_ms`: time that a stray stays before it is removed; KEEP: for ever."""
        self._log_dir = log_dir
        self._disk = disk
        self._believed = believed
        self._delay_ms = delay_ms
        self._knows_topics = False
        self._waiting = self._found()
        for stray in self._waiting:
            log.warning("a stray partition is still on the disk", **self._figures(stray.name))

    def _found(self) -> list[Stray]:
        names = [name for name in self._disk.listdir(self._log_dir.path) if name.endswith(STRAY)]
        return [stray for name in names if (stray := _parse(name)) is not None]

    def set_aside(self, assigned: Mapping[TopicPartition, TopicId], *, knows_topics: bool) -> None:
        """Rename the directories of all partitions that are not `assigned` to this node, sound and damaged ones.

        `knows_topics`: True if the cluster has users' topics. A cluster without any may have been created by mistake,
        in the place of the one whose data these are: its strays stay until an operator removes them (schedule 95).

        Call this with committed metadata that include this process's own registration, as older ones may lack a topic
        created since. A damaged directory whose topic id cannot be read stays as long as a partition of its name is
        assigned.
        """
        self._knows_topics = knows_topics
        try:
            # rule B29/a-cluster-without-topics-deletes
            moved = [tp for tp in self._strays(assigned) if self._move(tp, kept=not knows_topics)]
            if moved:
                self._disk.sync_dir(self._log_dir.path)
                self._log_dir.write_forgotten()
        except DiskError as error:
            log.error("stray partitions could not be renamed aside", error=str(error))

    def _strays(self, assigned: Mapping[TopicPartition, TopicId]) -> Iterable[TopicPartition]:
        log_dir = self._log_dir
        for tp in [*log_dir.logs, *(tp for tp in log_dir.offline if tp not in log_dir.logs)]:
            known = assigned.get(tp)
            plog = log_dir.logs.get(tp)
            topic_id = plog.topic_id if plog is not None else self._topic_id(str(tp))
            # rule B17/strays-by-name-alone, rule B17/strays-on-doubt
            if known is None or topic_id not in (None, known):
                yield tp

    def _move(self, tp: TopicPartition, *, kept: bool) -> bool:
        if not self._disk.exists(f"{self._log_dir.path}/{tp}"):
            return False
        now_ms = self._believed.latest_ms()
        name = aside_name(tp, f"{now_ms:032x}", KEPT_STRAY if kept else STRAY)
        self._log_dir.take_out(tp, name)
        mark("stray-set-aside")
        if kept:
            log.error(
                "a partition is renamed aside, for this cluster knows no topic at all. It is never removed by itself: "
                "if this is not a new cluster, look for its metadata before you go on",
                partition=str(tp),
                **self._figures(name),
            )
            return True
        self._waiting.append(Stray(name, now_ms))
        log.warning(
            "a stray partition is renamed aside: its topic was deleted, or its replica moved, while this node was down",
            partition=str(tp),
            removed_in_ms=self._delay_ms if self._delay_ms != KEEP else "never",
            **self._figures(name),
        )
        return True

    def _figures(self, name: str) -> dict[str, object]:
        directory = f"{self._log_dir.path}/{name}"
        size = 0
        for entry in self._disk.listdir(directory):
            file = self._disk.open(f"{directory}/{entry}")
            size += file.size()
            file.close()
        return {"directory": directory, "size_bytes": size}

    def _topic_id(self, name: str) -> TopicId | None:
        path = f"{self._log_dir.path}/{name}/{PARTITION_METADATA}"
        try:
            return decode_partition_metadata(path, read_file(self._disk, path)) if self._disk.exists(path) else None
        except CorruptLogError:
            return None

    async def remove_due(self, is_assigned: Callable[[TopicIdPartition], bool]) -> None:
        """Remove the strays whose delay is over. Those that the present metadata assign to this node stay, and so do
        all strays if the metadata at this process's registration knew no topic."""
        if not self.waiting:
            return
        now_ms = self._believed.earliest_ms()  # rule B32/strays-go-by-the-wall-clock
        # rule B17/strays-are-removed-at-once
        due = [stray for stray in self._waiting if now_ms - stray.set_aside_ms >= self._delay_ms]
        for stray in due:
            self._waiting.remove(stray)
            try:
                await self._remove(stray, is_assigned)
            except DiskError as error:
                log.error("a stray partition could not be removed", directory=stray.name, error=str(error))

    async def _remove(self, stray: Stray, is_assigned: Callable[[TopicIdPartition], bool]) -> None:
        topic_id, number = self._topic_id(stray.name), _partition_of(stray.name)
        figures = self._figures(stray.name)
        # rule B17/strays-are-removed-though-assigned
        if topic_id is not None and is_assigned(TopicIdPartition(topic_id, number)):
            log.error("a stray partition is assigned here after all, and is kept; look at both directories", **figures)
            return
        directory = f"{self._log_dir.path}/{stray.name}"
        entries = self._disk.listdir(directory)
        # The file that names the topic goes last: after a crash in between, the stray can still be identified.
        for entry in sorted(entries, key=lambda entry: entry == PARTITION_METADATA):
            await self._disk.unlink_slowly(f"{directory}/{entry}")
        self._disk.rmdir(directory)
        log.info("a stray partition was removed", **figures)

    @property
    def waiting(self) -> bool:
        """True if any stray will become due."""
        # rule B29/a-cluster-without-topics-deletes-earlier-strays
        return bool(self._waiting) and self._delay_ms != KEEP and self._knows_topics


def _parse(name: str) -> Stray | None:
    """Return the stray of that name; None for one that is kept, or renamed by other software at an unknown time."""
    unique = name[: -len(STRAY)].rpartition(".")[2]
    try:
        return Stray(name, int(unique, 16)) if len(unique) == 32 else None
    except ValueError:
        return None


def _partition_of(name: str) -> int:
    return int(name[: -len(STRAY)].rpartition(".")[0].rpartition("-")[2])
