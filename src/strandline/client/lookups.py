"""Where to read from: positions that come from the partitions' leaders, and whether what was read still stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.client import logs
from strandline.client.config import ConsumerConfig, duration_ms
from strandline.client.errors import LogTruncated, NoOffsetForPartition, OffsetOutOfRange
from strandline.client.leaders import Leaders
from strandline.client.positions import PartitionState
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.client.types import EARLIEST, LATEST, EpochEnd
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition


class Lookups:
    """Asks the leaders for a consumer. Runs on one event loop.

    Args:
        found: called when positions or errors have come.
    """

    def __init__(
        self, config: ConsumerConfig, session: Session, leaders: Leaders, tasks: Tasks, found: Callable[[], None]
    ) -> None:
        self._config = config
        self._metadata = session.metadata
        self._clock = session.clock
        self._leaders = leaders
        self._tasks = tasks
        self._found = found
        self._read_committed = config.isolation_level == "read_committed"

    def find_positions(self, states: Iterable[PartitionState]) -> None:
        """Ask the leaders for the positions that are to come from them, all in one round."""
        wanted: dict[PartitionState, int] = {}
        for state in states:
            if state.position is not None or state.error is not None or state.is_sought_for or self._is_replaced(state):
                continue
            if state.reset_to is None:
                self._reset_by_policy(state)
            if state.reset_to is not None:
                wanted[state] = state.reset_to
        if wanted:
            for state in wanted:
                state.resolving = True
            self._tasks.spawn("a look-up of positions", self._resolve(wanted))

    def out_of_range(self, state: PartitionState) -> None:
        """The leader has refused the position, and everything before it was handed out."""
        state.refused = False
        state.resolving = True
        self._tasks.spawn("a look-up of a log's bounds", self._settle_out_of_range(state, state.generation))

    def check_epoch(self, state: PartitionState, epoch: int) -> None:
        """A new leader: its log may end earlier than what we read (KIP-320)."""
        state.resolving = True
        self._tasks.spawn("a check of a leader epoch", self._settle_epoch(state, state.generation, epoch))

    def _is_replaced(self, state: PartitionState) -> bool:
        """Its topic was made anew, which its caller has to hear of first."""
        return state.is_of_another(self._metadata.topic_id(state.partition.topic))

    def _reset_by_policy(self, state: PartitionState) -> None:
        policy = self._config.auto_offset_reset
        if policy == "none":
            text = f"{state.partition} has no position and auto.offset.reset is none: seek before you poll"
            state.error = NoOffsetForPartition(text)
            self._found()
        elif policy in ("earliest", "latest"):
            state.seek_by_query(EARLIEST if policy == "earliest" else LATEST)
        else:
            state.seek_by_query(self._clock.wall_ms() - duration_ms(policy))

    async def _resolve(self, wanted: dict[PartitionState, int]) -> None:
        generations = {state: state.generation for state in wanted}
        timeout_ms = self._config.default_api_timeout_ms
        try:
            for topic in dict.fromkeys(state.partition.topic for state in wanted):
                await self._metadata.wait_for_topic(topic, timeout_ms)
            asked = {state: self._metadata.topic_id(state.partition.topic) for state in wanted}
            offsets = await self._offsets_at({state.partition: reset for state, reset in wanted.items()})
        except StrandlineError as error:
            for state, generation in generations.items():
                if state.generation == generation:
                    state.error = error
        else:
            for state, generation in generations.items():
                now = self._metadata.topic_id(state.partition.topic)
                # The question went by the name: the offset is of this topic if none was made anew meanwhile.
                if state.generation == generation and asked[state] == now and not state.is_of_another(now):
                    state.seek(*offsets[state.partition])
                    state.topic_id = now
        finally:
            for state in wanted:
                state.resolving = False
            self._found()

    async def _offsets_at(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Offset and epoch for each time; the end of the log where no record is that new."""
        timeout_ms = self._config.default_api_timeout_ms
        # The ends first: a record that comes between two questions in the other order would be passed over.
        times = {item: LATEST for item, time in wanted.items() if time >= 0}
        ends = await self._leaders.list_offsets(times, timeout_ms, read_committed=self._read_committed) if times else {}
        found = await self._leaders.list_offsets(wanted, timeout_ms, read_committed=self._read_committed)
        found |= {item: ends[item] for item, answer in found.items() if answer.offset < 0}
        return {item: (answer.offset, answer.leader_epoch) for item, answer in found.items()}

    async def _settle_out_of_range(self, state: PartitionState, generation: int) -> None:
        """The policy decides, or the error tells."""
        partition, timeout_ms = state.partition, self._config.default_api_timeout_ms
        try:
            start = await self._leaders.list_offsets({partition: EARLIEST}, timeout_ms)
            end = await self._leaders.list_offsets({partition: LATEST}, timeout_ms)
            if state.generation == generation:
                log_start, log_end = start[partition].offset, end[partition].offset
                if log_start <= state.fetch_offset <= log_end:
                    state.retry_at_ms = self._clock.monotonic_ms() + self._config.retry_backoff_ms
                elif self._config.auto_offset_reset == "none":
                    state.error = OffsetOutOfRange(*partition, state.fetch_offset, log_start, log_end)
                else:
                    logs.consumer.warning(
                        "%s: offset %s is out of range, the log holds %s to %s: it goes on by auto.offset.reset=%s",
                        partition, state.fetch_offset, log_start, log_end, self._config.auto_offset_reset,
                    )  # fmt: skip
                    self._reset_by_policy(state)
        except StrandlineError as error:
            if state.generation == generation:
                state.error = error
        finally:
            state.resolving = False
            self._found()

    async def _settle_epoch(self, state: PartitionState, generation: int, epoch: int) -> None:
        """The epoch counts as checked once it was: an error is raised, and the next poll leads to another attempt."""
        partition = state.partition
        try:
            asked = {partition: state.fetch_epoch}
            end = (await self._leaders.epoch_ends(asked, self._config.default_api_timeout_ms))[partition]
            if state.generation == generation:
                state.checked_epoch = epoch
                self.judge(state, end)
        except StrandlineError as error:
            if state.generation != generation:
                return
            if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                state.checked_epoch = epoch  # a broker that cannot be asked
            else:
                state.error = error  # schedule 68/epoch-checked-by-an-error
        finally:
            state.resolving = False
            self._found()

    def judge(self, state: PartitionState, end: EpochEnd) -> None:
        """Go on where the leader's log parts from what was read."""
        if end.is_before(state.fetch_offset):
            self._truncated(state, end.end_offset)

    def _truncated(self, state: PartitionState, diverged_at: int) -> None:
        position = state.fetch_offset
        checked = state.checked_epoch
        if self._config.auto_offset_reset == "none":
            state.error = LogTruncated(*state.partition, position, diverged_at)
        else:
            logs.consumer.warning(
                "%s: its log was cut, and records up to offset %s had been read: it goes on at offset %s, from where "
                "the log differs", state.partition, position, diverged_at,
            )  # fmt: skip
            state.seek(min(diverged_at, position if state.position is None else max(state.position, 0)))
        state.checked_epoch = checked
