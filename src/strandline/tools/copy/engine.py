"""One run of a copy: round after round, from where the group says that it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from strandline.client.aio.admin import Admin
from strandline.client.batch_sender import BatchSender, SequencesBefore
from strandline.client.config import CommonConfig, ProducerConfig
from strandline.client.errors import ClientTimeout, TopicReplaced
from strandline.client.producer_batch import SEQUENCE_MASK
from strandline.client.range_reader import AsyncRangeReader
from strandline.client.types import EARLIEST, LATEST, ConsumerRecord, NewTopic, TopicDescription
from strandline.log.compression import Codec
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock, Rng
from strandline.proto.system import SystemClock, system_rng
from strandline.tools.copy.errors import (
    CopyChanged,
    CopyError,
    CopyRefused,
    CopyTakenOver,
    ForeignRecords,
    SourceCut,
    anew_words,
)
from strandline.tools.copy.lease import Lease, LeaseLost
from strandline.tools.copy.plan import Round, from_notes, next_ranges, round_offsets, to_notes
from strandline.tools.copy.source import CopyCounts, Source, Transform
from strandline.tools.copy.target import Target, TargetSpec, bounds, find_target, listed, prepare_target
from strandline.tools.copy.writer import SequenceMismatch, Writer, Written, partition_for

FETCH_BYTES = 4 << 20
"""Bytes of one answer of the source; two are in memory at most."""

ANSWER_MS_MAX = 60_000
"""Milliseconds without an answer after which a question ends the copy, or `delivery.timeout.ms` where that is
shorter."""

FOLLOW_S = 0.5
"""Seconds between two looks for more records, of a copy that has caught up."""

AGAIN_S = 0.3
PATIENCE_S = 60.0
"""Seconds that a copy which is refused looks again for what is there, without getting further: a new leader may not
know yet that records are committed which it has (replica.lag.time.max.ms, 30 s)."""

SETTLE_S = 5.0
"""Seconds to wait where the source has lost records of a half-done round: the requests of a process that was killed
have arrived by then, or never will. Only there time counts: elsewhere whoever is late brings the very records that are
there already."""

LAG_GRACE_S = 45.0
"""Seconds that acknowledged records may seem to be missing, for the same reason as in `PATIENCE_S`."""


class Engine:
    """Runs on one event loop, once.

    Args:
        on_progress: called with the offsets done in this run, and how many there are to do.
        clock, rng: the world; the machine's own when left out.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        source: str,
        target: str,
        *,
        group: str,
        wish: TargetSpec,
        transform: Transform | None,
        follow: bool,
        accept_deleted: bool,
        settings: Mapping[str, object],
        on_progress: Callable[[int, int], None],
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        if source == target:
            raise CopyRefused(f"source and target are one topic, {source}: a copy goes into another one")
        self.tally = CopyCounts()
        self.starts: dict[int, int] = {}
        """Start offset of this run, by source partition."""
        self.positions: dict[int, int] = {}
        """Next offset to copy, by source partition."""
        self.ends: list[int] = []
        """End offset of each target partition."""
        self._target = target
        self._group = group
        self._wish = wish
        self._follow = follow
        self._on_progress = on_progress
        self._clock = clock or SystemClock()
        self._world: dict[str, Any] = {"clock": self._clock, "rng": rng or system_rng()}
        self._goals: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        """Leader epoch in which the goal was reported, by source partition, where known."""
        producer = ProducerConfig(settings)
        if producer.partitioner is not None:
            raise ConfigError("partitioner", producer.partitioner, "a copy goes by the key, as clients do without one")
        given = {name.replace(".", "_"): value for name, value in settings.items()}
        self._codec = Codec[producer.compression_type.upper()] if "compression_type" in given else None
        self._sending = {"max_block_ms": producer.delivery_timeout_ms, **given}
        self._bootstrap = bootstrap
        common = {name: value for name, value in given.items() if name in CommonConfig.attributes}
        common["default_api_timeout_ms"] = min(producer.delivery_timeout_ms, ANSWER_MS_MAX)
        reading = {**common, "isolation_level": "read_committed", "max_partition_fetch_bytes": FETCH_BYTES}
        make_admin: Callable[..., Admin] = Admin
        make_reader: Callable[..., AsyncRangeReader] = AsyncRangeReader
        self._admin = make_admin(bootstrap, **self._world, **common)
        self._reader = make_reader(bootstrap, **self._world, **reading)
        self._lease = Lease(bootstrap, group, (source, target), common, **self._world)
        self._source = Source(self._reader, source, transform=transform, accept_deleted=accept_deleted)
        self._described = TopicDescription(source, None, False, ())

    async def run(self) -> None:
        """Copy until the source's ends of this moment, or (`follow`) until cancelled.

        Raises:
            CopyError: see `errors`.
            UnknownTopic, KafkaError, ClientTimeout: what the cluster refuses.
        """
        try:
            [self._described] = await self._admin.describe_topics([self._source.topic])
            await self._set_goals()
            await self._lease.take()
            await self._see_it_through()
        finally:
            await self._close()

    async def preview(self) -> NewTopic | None:
        """Find what `run` would do, and change nothing: `starts` and the goals are set, as are the offsets that were
        deleted. Returns the target that would be made, checked by the brokers; None where it is there.

        Raises as `run`, as far as that shows before anything is written.
        """
        try:
            [self._described] = await self._admin.describe_topics([self._source.topic])
            await self._set_goals()
            noted = from_notes(self._group, self._source.topic, self._target, await self._lease.notes())
            target = await find_target(self._admin, self._described, self._target, self._wish, begun=noted is not None)
            if isinstance(target, NewTopic):
                await self._admin.create_topics([target], validate_only=True)
                self.ends = [0] * target.partitions
            else:
                self.ends = await self._target_bounds(LATEST, target.partitions)
            positions = await self._source_bounds(EARLIEST)
            if noted is not None and isinstance(target, Target):
                self._check_topics(target, noted)
                await self._check_cut(noted)
                positions = dict.fromkeys(positions, 0) | {number: start for number, (start, _) in noted.ranges.items()}
                await self._step_over_deleted(positions)
            self.starts = positions
            self.positions = {number: max(self._goals.get(number, 0), start) for number, start in positions.items()}
            return target if isinstance(target, NewTopic) else None
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._lease.close()
        await self._reader.close()
        await self._admin.close()

    async def _see_it_through(self) -> None:
        """Run the copy; begin from the notes as often as a leader, or the coordinator, proves that they must be read
        again."""
        clock = self._clock
        seen, since_ms = -1, 0.0
        while True:
            try:
                await self._attempt()
                return
            except (SequenceMismatch, LeaseLost) as error:
                if sum(self.ends) > seen:  # since the last refusal somebody has written
                    seen, since_ms = sum(self.ends), clock.monotonic_ms()
                if clock.monotonic_ms() - since_ms > PATIENCE_S * 1000:
                    raise
                await asyncio.sleep(AGAIN_S)
                if isinstance(error, LeaseLost):
                    await self._lease.take()

    async def _attempt(self) -> None:
        """Make one attempt. An error means nothing if another copy had the lease by then: this one has seen the other's
        work."""
        try:
            await self._go_on()
        except CopyTakenOver:
            raise
        except CopyError:
            await self._lease.confirm()
            raise
        except TopicReplaced as error:
            raise self._replaced(error.topic) from error

    async def _go_on(self) -> None:
        """Copy the round that is noted, then the next ones."""
        self._lease.check()
        noted = from_notes(self._group, self._source.topic, self._target, await self._lease.notes())
        target = await prepare_target(self._admin, self._described, self._target, self._wish, begun=noted is not None)
        planned = noted or await self._begin(target)
        self._check_topics(target, planned)
        await self._check_cut(planned)
        for number, (start, _) in planned.ranges.items():
            self.starts.setdefault(number, start)
            self.positions.setdefault(number, start)
        written = await self._written(planned)
        places = [TopicPartition(self._target, number) for number in range(target.partitions)]
        sequences = {
            place: (sequence + end - start) & SEQUENCE_MASK
            for place, sequence, start, end in zip(places, planned.sequences, planned.ends, self.ends, strict=True)
        }
        before = SequencesBefore(planned.producer_id, planned.producer_epoch, sequences)
        try:
            async with BatchSender(
                self._bootstrap, target.memory_bytes, self._sending, before, **self._world
            ) as sender:
                await sender.know(self._target, planned.target_id)
                following: Round | None = planned
                while following is not None:
                    writer = Writer(
                        sender, self._target, self._group,
                        ends=self.ends, batch_bytes=target.batch_bytes, codec=self._codec,
                    )  # fmt: skip
                    await self._round(following, writer, written)
                    written, self.ends = {}, writer.ends
                    following = await self._next(following)
        finally:
            for one in written.values():
                await one.close()

    # -- what is next -----------------------------------------------------------------------------------------------

    async def _begin(self, target: Target) -> Round:
        """Note the first round, from where the logs begin."""
        async with BatchSender(self._bootstrap, target.memory_bytes, self._sending, **self._world) as sender:
            producer_id = await sender.producer_id()
        ends = await self._target_bounds(LATEST, target.partitions)
        planned = Round(
            1,
            next_ranges(await self._source_bounds(EARLIEST), self._goals, round_offsets(0, 0)),
            tuple(ends),
            (0,) * target.partitions,
            producer_id,
            0,
            str(self._described.topic_id or ""),
            target.topic_id,
            self._epochs,
        )
        await self._lease.commit(to_notes(self._source.topic, self._target, planned))
        return planned

    def _check_topics(self, target: Target, planned: Round) -> None:
        """Check that the topics are those of the notes. Raises CopyRefused."""
        name, anew = self._target, anew_words(self._target, self._group)
        self._check_source(planned)
        if target.topic_id != planned.target_id:  # schedule 63/copy-follows-into-another-topic/2
            raise self._replaced(name)
        for topic, topic_id in ((self._source.topic, planned.source_id), (name, planned.target_id)):
            if topic_id:  # schedule 63/copy-follows-into-another-topic/3
                self._reader.expect(topic, topic_id)
        if target.partitions != len(planned.ends):
            raise CopyRefused(
                f"topic {name} has {target.partitions} partitions, and had {len(planned.ends)} when the copy was "
                f"begun: keys go to other partitions now. {anew}"
            )

    async def _check_cut(self, planned: Round) -> None:
        """Ask leaders that are new since a round was noted whether they have its records. Raises SourceCut."""
        asked = {
            TopicPartition(self._source.topic, number): epoch
            for number, epoch in planned.epochs.items()
            if epoch < self._epochs.get(number, -1)
        }
        for place, end in (await self._admin.epoch_ends(asked) if asked else {}).items():
            position = planned.ranges[place.partition][1]
            if end.is_before(position):  # rule B39/copies-pass-over-a-cut
                raise SourceCut(place, position, end.end_offset, self._target, self._group)

    def _check_source(self, planned: Round) -> None:
        if str(self._described.topic_id or "") != planned.source_id:  # schedule 63/copy-follows-into-another-topic
            raise self._replaced(self._source.topic)

    def _replaced(self, topic: str) -> CopyRefused:
        """Refusal: the notes count records of a topic that is gone, and where to go on in another one, nobody can
        say."""
        which = "the copy has written into" if topic == self._target else "when the copy was begun"
        return CopyRefused(
            f"topic {topic} was deleted and made anew: it is another one than {which}. Nothing of it was "
            f"{'written' if topic == self._target else 'copied'}. {anew_words(self._target, self._group)}"
        )

    async def _next(self, done: Round) -> Round | None:
        """Note the next round; None: the goal is reached."""
        while True:
            if self._follow:
                [self._described] = await self._admin.describe_topics([self._source.topic])
                self._check_source(done)
                await self._set_goals()
                await self._check_cut(done)
            positions = {part.partition: 0 for part in self._described.partitions}  # 0: it was added since
            positions |= {number: end for number, (_, end) in done.ranges.items()}
            await self._step_over_deleted(positions)
            for number, start in positions.items():
                self.starts.setdefault(number, start)
                self.positions[number] = start
            read_offsets = sum(self.positions.values()) - sum(self.starts.values())
            ranges = next_ranges(positions, self._goals, round_offsets(self.tally.size_bytes, read_offsets))
            planned = done.after(tuple(self.ends), ranges, self._epochs)
            if not planned.is_empty or not done.is_empty:
                await self._lease.commit(to_notes(self._source.topic, self._target, planned))
                done = planned
            if not planned.is_empty:
                return planned
            if not self._follow:
                await self._check_ends()
                return None
            self._lease.check()
            await asyncio.sleep(FOLLOW_S)

    async def _step_over_deleted(self, positions: dict[int, int]) -> None:
        """Move positions that the source has deleted. Raises RecordsDeleted unless that is accepted."""
        for number, first in (await self._source_bounds(EARLIEST)).items():
            start, goal = positions[number], self._goals.get(number, 0)
            if start < min(first, goal):
                positions[number] = min(first, goal)
                self.tally.deleted += self._source.deleted(number, start, positions[number])

    async def _check_ends(self) -> None:
        """Check that the target ends where the copy has brought it. Raises ForeignRecords."""
        for _ in range(int(LAG_GRACE_S / FOLLOW_S)):
            found = await self._target_bounds(LATEST, len(self.ends))
            for number, end in enumerate(self.ends):
                if found[number] > end:
                    raise ForeignRecords(TopicPartition(self._target, number), end, self._group)
            if found == self.ends:
                return
            await asyncio.sleep(FOLLOW_S)
        raise ClientTimeout(f"{self._target} seems to end at {found}, and all up to {self.ends} was acknowledged")

    async def _set_goals(self) -> None:
        """Set the goals to the source's ends of now, with the leader epochs that reported them."""
        found = await listed(self._admin, self._source.topic, self._source_partitions(), LATEST)
        self._goals = {number: told.offset for number, told in found.items()}
        self._epochs = {number: told.leader_epoch for number, told in found.items() if told.leader_epoch >= 0}

    def _source_partitions(self) -> list[int]:
        return [part.partition for part in self._described.partitions]

    async def _source_bounds(self, when: int) -> dict[int, int]:
        return await bounds(self._admin, self._source.topic, self._source_partitions(), when)

    async def _target_bounds(self, when: int, count: int) -> list[int]:
        found = await bounds(self._admin, self._target, list(range(count)), when)
        return [found[number] for number in range(count)]

    # -- one round --------------------------------------------------------------------------------------------------

    async def _written(self, planned: Round) -> dict[int, Written]:
        """Records of a round that earlier runs have written; sets `ends` accordingly."""
        firsts = await self._source_bounds(EARLIEST)
        lost = False
        for number, (start, end) in planned.ranges.items():
            if start < min(firsts[number], end):
                self._source.deleted(number, start, min(firsts[number], end))
                lost = True
        if lost:  # other records than the predecessor's will have its sequences: what it had under way must be there
            await asyncio.sleep(SETTLE_S)
        count = len(planned.ends)
        ends, starts = await self._target_bounds(LATEST, count), await self._target_bounds(EARLIEST, count)
        # A leader that is new may not know yet how much is committed: what it has will be out of turn, and looked at.
        self.ends = [max(pair) for pair in zip(ends, planned.ends, strict=True)]
        return {
            number: Written(
                self._reader, TopicPartition(self._target, number), self._group, planned,
                end=end, log_start=starts[number], lenient=lost,
            )
            for number, end in enumerate(self.ends)
            if end > planned.ends[number]
        }  # fmt: skip

    async def _round(self, planned: Round, writer: Writer, written: dict[int, Written]) -> None:
        """Read the round's ranges, write what is not there yet; returns once everything is acknowledged."""
        tally = CopyCounts()
        for number, (start, end) in sorted(planned.ranges.items()):
            if start == end:
                continue
            async with aclosing(self._source.slices(number, start, end, tally)) as slices:
                async for records, codec, next_offset in slices:
                    self._lease.check()
                    if written:
                        records = [one for one in records if not await _is_there(one, written, len(writer.ends))]  # noqa: PLW2901
                    await writer.write(records, codec)
                    self.positions[number] = max(self.positions[number], next_offset)
                    self._tell()
                    await asyncio.sleep(0)
            self.positions[number] = max(self.positions[number], end)
        for one in written.values():
            offset = await one.rest()
            if offset is not None:
                raise CopyChanged(one.place, offset, self._group)
            tally.already += one.records
            await one.close()
        await writer.finish()
        tally.written = writer.records
        self.tally.add(tally)
        self._tell()

    def _tell(self) -> None:
        done = sum(self.positions.values()) - sum(self.starts.values())
        left = sum(max(self._goals.get(number, 0) - position, 0) for number, position in self.positions.items())
        self._on_progress(done, done + left)


async def _is_there(record: ConsumerRecord, written: Mapping[int, Written], partitions: int) -> bool:
    there = written.get(partition_for(record, partitions))
    return there is not None and await there.has(record)
