"""Fetches ahead for one consumer: one request out per broker, memory bounded, positions looked up and checked.

A seek does not wait for a fetch of the old position that the broker holds: what was sought is asked for over a second
connection, never held there, until its end is reached or the first connection is free.

Driven by `run`, like the producer's sender: it does what can be done now and sets one timer.

What bounds the memory: records that wait for `poll`, and what brokers were asked for, stay below `fetch.max.bytes` in
all, and below twice `max.partition.fetch.bytes` per partition; only a batch larger than what is left comes on top. Each
broker gets its share of the whole, so that one with nothing to send does not keep the room from the others. Paused
partitions keep what they hold while the others have room for one fetch; else it is dropped, and fetched again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from strandline.client.config import ConsumerConfig
from strandline.client.connection import Connection
from strandline.client.errors import PositionLost
from strandline.client.leaders import Leaders
from strandline.client.lookups import Lookups
from strandline.client.network import DATA, SEEK
from strandline.client.positions import Chunk, PartitionState
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    read_response,
    write_request,
)

_TELL_AGAIN_MS = 1_000.0
"""How long a poll waits for others' records before it raises an error that was raised before, and stays."""
_ROT_PATIENCE_MS = 5_000.0
"""A broker whose disk has rotted gives the leadership away, which takes far less. After this a poll says it, each time:
there may be no other replica that has the records."""
_SHORT_WAIT_MS = 50
"""How long a broker may hold a fetch that leaves out partitions with full buffers: they may be drained any moment."""


class Fetcher:
    """The consumer's engine. Runs on one event loop."""

    def __init__(
        self,
        config: ConsumerConfig,
        session: Session,
        leaders: Leaders,
        tasks: Tasks,
        lookups: type[Lookups] = Lookups,
    ) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.requests_sent = 0
        self.last_error: StrandlineError | None = None
        self.replaced = False
        """Some partition's topic was made anew: its position means nothing, and the next poll is to say so."""
        self._config = config
        self._network = session.network
        self._metadata = session.metadata
        self._clock = session.clock
        self._asked_bytes: dict[tuple[int, str], int] = {}
        """(broker, connection) -> bytes asked for by the request that is out there."""
        self._tasks = tasks
        self._lookups = lookups(config, session, leaders, tasks, self._found)
        self._connecting: set[tuple[int, str]] = set()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wake_pending = False
        self._turn = 0
        self._closed = False
        self._read_committed = config.isolation_level == "read_committed"
        self._metadata.subscribe(self.wake)

    # -- the consumer's side ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at everything again in this turn of the loop."""
        if not self._wake_pending and not self._closed:
            self._wake_pending = True
            asyncio.get_running_loop().call_soon(self._run)

    async def wait_for_change(self) -> None:
        """Return when records, an error or a position have come since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def notify(self) -> None:
        """Something else has come that `poll` wants to look at."""
        self._changed.set()

    def raise_error(self, *, again: bool = False) -> float:
        """Raise the error of a partition; its position stays as it was. One that says that there is no position to go
        on from stays, until a seek (schedule 68): each poll raises it, though not before it has waited a while (or,
        `again`, at its end) for records of other partitions. Returns after how many milliseconds to look again.
        """
        now, wait = self._clock.monotonic_ms(), float("inf")
        for state in self.states.values():
            if state.error is not None and not state.paused:
                left_ms = state.error_told_ms + _TELL_AGAIN_MS - now
                if again or left_ms <= 0:
                    self.raise_error_of(state)
                wait = min(wait, left_ms)
        return wait

    def raise_error_of(self, state: PartitionState) -> None:
        """Raise the error of this partition, if it has one."""
        error = state.error
        if error is not None:
            state.error_told_ms = self._clock.monotonic_ms()
            if not isinstance(error, PositionLost):  # schedule 68/lost-position-told-once
                state.error = None
            raise error.with_traceback(None)

    def _found(self) -> None:
        """A look-up has ended."""
        self._changed.set()
        self.wake()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait for `poll`."""
        return sum(state.buffered_bytes for state in self.states.values())

    def close(self) -> None:
        """Stop fetching; the tasks are their owner's to end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # -- the engine -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._wake_pending = False
        if self._closed:
            return
        now = self._clock.monotonic_ms()
        self._lookups.find_positions(self.states.values())
        wait = float("inf")
        by_node: dict[int, tuple[NodeInfo, list[PartitionState]]] = {}
        full: set[int] = set()
        leaders: set[int] = set()
        room = self._room()
        for state in self.states.values():
            if state.is_of_another(self._metadata.topic_id(state.partition.topic)):
                self.replaced = True
                self._changed.set()
                continue
            if state.position is None or state.paused or state.error is not None or state.is_sought_for:
                continue
            if state.refused:
                if not state.has_records:
                    self._lookups.out_of_range(state)
                continue
            if state.retry_at_ms > now:
                wait = min(wait, state.retry_at_ms - now)
                continue
            node = self._node_for(state)
            if node is None:
                state.error = self._metadata.absence(state.partition)
                if state.error is not None:
                    self._changed.set()
                self._metadata.request_update()
                wait = min(wait, self._config.retry_backoff_ms + 1.0)
                continue
            leaders.add(node.node_id)
            if room <= 0 or state.buffered_bytes >= self._config.max_partition_fetch_bytes:
                full.add(node.node_id)
            elif not state.fetching:
                by_node.setdefault(node.node_id, (node, []))[1].append(state)
        for node_id, (node, states) in by_node.items():
            purpose = SEEK if (node_id, DATA) in self._asked_bytes else DATA
            wanted = states if purpose is DATA else [state for state in states if state.sought]
            if room > 0 and wanted and (node_id, purpose) not in self._asked_bytes:
                share = min(room, max(self._config.fetch_max_bytes // len(leaders), 1))
                most_wait_ms = 0 if purpose is SEEK else self._held_ms(node_id in full)
                wait = min(wait, self._fetch((node, purpose), wanted, share, most_wait_ms))
                room -= self._asked_bytes.get((node_id, purpose), 0)
        self._set_timer(wait)

    def _room(self) -> int:
        """For how many bytes brokers may be asked now. Paused partitions make room where another one needs it."""
        room = self._config.fetch_max_bytes - self.buffered_bytes - sum(self._asked_bytes.values())
        needed = min(self._config.max_partition_fetch_bytes, self._config.fetch_max_bytes)
        if room < needed and any(state.lacks_records for state in self.states.values()):
            for state in self.states.values():
                if state.paused and room < needed:
                    room += state.drop_fetched()
        return room

    def _node_for(self, state: PartitionState) -> NodeInfo | None:
        """The replica to read from: the leader, or the nearer one it named (KIP-392). Checks the epoch on the way."""
        leader = self._metadata.leader_of(state.partition)
        if leader is None:
            return None
        node, epoch = leader
        if epoch > state.checked_epoch:
            if state.checked_epoch >= 0 and state.fetch_epoch >= 0:
                self._lookups.check_epoch(state, epoch)
                return None
            state.checked_epoch = epoch
        if state.preferred_replica >= 0 and self._clock.monotonic_ms() >= state.preferred_until_ms:
            state.preferred_replica = -1  # ask the leader again, which may know a better one by now
        return self._metadata.nodes.get(state.preferred_replica, node)

    def _held_ms(self, others_full: bool) -> int:
        """How long a broker may hold a fetch that it has nothing for."""
        most = self._config.fetch_max_wait_ms
        return min(most, _SHORT_WAIT_MS) if others_full else most

    def _fetch(self, lane: tuple[NodeInfo, str], states: list[PartitionState], room: int, most_wait_ms: int) -> float:
        node, purpose = lane
        connection = self._network.ready(node, purpose)
        if connection is None:
            return self._connect(node, purpose)
        if connection.throttled_ms > 0:
            return connection.throttled_ms
        states.sort(key=lambda state: state.turn)
        config = self._config
        wanted: list[FetchPartition] = []
        ids = {name: view.topic_id for name, view in self._metadata.topics.items()}
        for state in states:
            topic, partition = state.partition
            state.topic_id = state.topic_id or ids[topic]
            leader = self._metadata.leader_of(state.partition)
            epoch = -1 if leader is None else leader[1]
            size = config.max_partition_fetch_bytes
            wanted.append(FetchPartition(topic, ids.get(topic), partition, state.fetch_offset, size, epoch))
        all_named = all(one.topic_id is not None for one in wanted)
        version = connection.version(Api.FETCH, None if all_named else 12)
        request = FetchRequest(
            max_wait_ms=most_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=min(room, len(states) * config.max_partition_fetch_bytes),
            partitions=wanted,
            isolation_level=READ_COMMITTED if self._read_committed else READ_UNCOMMITTED,
            rack=config.client_rack,
        )
        timeout_ms = config.request_timeout_ms + request.max_wait_ms
        answer = connection.send(Api.FETCH, version, [write_request(version, request)], timeout_ms)
        for state in states:
            state.fetching = True
            state.sought = state.sought and purpose is SEEK
        self._asked_bytes[node.node_id, purpose] = request.max_bytes
        self.requests_sent += 1
        read = partial(_read, connection, version)
        asked = {state.partition: (state, state.generation) for state in states}
        answer.add_done_callback(partial(self._answered, lane, read, asked))
        return float("inf")

    def _connect(self, node: NodeInfo, purpose: str) -> float:
        if (node.node_id, purpose) not in self._connecting:
            wait = self._network.backoff_ms(node)
            if wait > 0:
                return wait
            self._connecting.add((node.node_id, purpose))
            self._tasks.spawn(f"the connection to broker {node}", self._open(node, purpose))
        return float("inf")

    async def _open(self, node: NodeInfo, purpose: str) -> None:
        try:
            await self._network.to_node(node, purpose)
        except StrandlineError as error:
            self.last_error = error
            self._back_to_leaders(node)
            self._metadata.request_update()
        finally:
            self._connecting.discard((node.node_id, purpose))
            self.wake()

    def _set_timer(self, wait_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_ms != float("inf"):
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.wake)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _answered(
        self,
        lane: tuple[NodeInfo, str],
        read: Callable[[memoryview], FetchResponse],
        asked: Mapping[TopicPartition, tuple[PartitionState, int]],
        answer: asyncio.Future[memoryview],
    ) -> None:
        node, purpose = lane
        self._asked_bytes.pop((node.node_id, purpose), None)
        for state, generation in asked.values():
            if state.generation == generation:
                state.fetching = False
        if answer.cancelled() or self._closed:
            return
        now = self._clock.monotonic_ms()
        try:
            response = read(answer.result())
            if response.error is not ErrorCode.NONE:
                raise KafkaError(response.error, f"broker {node} refused the fetch")
        except StrandlineError as error:
            self.last_error = error
            self._back_to_leaders(node)
            self._metadata.request_update()
            for state, _ in asked.values():
                state.retry_at_ms = now + self._config.retry_backoff_ms
            self.wake()
            return
        self.last_error = None
        for fetched in response.partitions:
            name = self._metadata.topic_name(fetched.topic)
            entry = None if name is None else asked.get(TopicPartition(name, fetched.partition))
            if (
                entry is not None
                and entry[0].generation == entry[1]
                and self.states.get(entry[0].partition) is entry[0]
            ):
                self._take(entry[0], fetched, node, now)
                if not len(fetched.records):
                    entry[0].sought = False  # nothing more to hurry for
        self._changed.set()
        self.wake()

    def _back_to_leaders(self, node: NodeInfo) -> None:
        """`node` does not answer: a reader that a leader sent there asks the leader again."""
        for state in self.states.values():
            if state.preferred_replica == node.node_id:
                state.preferred_replica = -1

    def _take(self, state: PartitionState, fetched: PartitionData, node: NodeInfo, now: float) -> None:
        code = fetched.error
        if code is ErrorCode.NONE:
            state.high_watermark = fetched.high_watermark
            state.log_start_offset = fetched.log_start_offset
            if fetched.preferred_replica >= 0:
                state.preferred_replica = fetched.preferred_replica
                state.preferred_until_ms = now + self._config.metadata_max_age_ms
            if len(fetched.records):
                self._turn += 1
                state.turn = self._turn
                try:
                    state.add(self._chunk(state, fetched))
                except KafkaError as damage:
                    state.error = damage
            return
        from_leader = state.preferred_replica < 0
        state.preferred_replica = -1
        topic, partition = state.partition.topic, str(state.partition)
        error = answered(self._config, Api.FETCH, code, of=topic, partition=partition, broker=node.node_id)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and from_leader:
            state.refused = True  # schedule 107/reset-drops-what-was-fetched
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.last_error = error  # a follower that lags, or leads no more: the leader decides
        elif code.retriable and not self._is_rotten_for_long(state, code, now):
            self.last_error = error
            moved = fetched.leader_id >= 0 and self._metadata.apply_leader(
                state.partition, fetched.leader_id, fetched.leader_epoch
            )
            if not moved:
                state.retry_at_ms = now + self._config.retry_backoff_ms
                self._metadata.request_update()
            state.error = self._metadata.absence(state.partition)
        else:
            state.error = error

    def _is_rotten_for_long(self, state: PartitionState, code: ErrorCode, now: float) -> bool:
        """The log has rotted at this position, and no other replica has taken over in the time that this takes."""
        if code is not ErrorCode.CORRUPT_MESSAGE:
            return False
        state.retry_at_ms = now + self._config.retry_backoff_ms
        if state.rotten_at != state.fetch_offset:
            state.rotten_at, state.rotten_since_ms = state.fetch_offset, now
        return now - state.rotten_since_ms >= _ROT_PATIENCE_MS

    def _chunk(self, state: PartitionState, fetched: PartitionData) -> Chunk:
        chunk = Chunk(fetched.records, fetched.aborted, self._read_committed, fetched.high_watermark)
        if not chunk.batches:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                "the next batch is larger than max.partition.fetch.bytes, and this broker cuts it off",
                partition=str(state.partition),
                offset=state.fetch_offset,
                max_partition_fetch_bytes=self._config.max_partition_fetch_bytes,
            )
        return chunk


def _read(connection: Connection, version: int, body: memoryview) -> FetchResponse:
    """An answer; what it says of quotas is obeyed. Raises ProtocolError."""
    response = connection.read(read_response, body, version)
    connection.throttle(response.throttle_ms)
    return response
