"""Sends the batches of one producer: to whom, when, how many at once, and what becomes of each answer.

Driven by `run`, which the loop calls when something may have changed (a batch is full, an answer came, a timer rang);
it does all there is to do. No task, timer or lock per partition or request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

from strandline.client import logs
from strandline.client.accumulator import Accumulator, PartitionQueue, ProducerBatch
from strandline.client.config import ProducerConfig
from strandline.client.connection import Connection
from strandline.client.errors import ClientTimeout, ClosedError, DeliveryTimeout, Disconnected
from strandline.client.idempotence import ContinuedSequencer, Sequencer, SequencesBefore
from strandline.client.metadata import TopicView
from strandline.client.network import DATA
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StrandlineError
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.produce import PartitionResult, ProduceRequest, ProduceTopic, read_response, write_request

Sent = list[tuple[PartitionQueue, ProducerBatch]]

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
"""A batch of several records is split: max.message.bytes or segment.bytes of the topic may hold one half of it."""

_SWEEP_MS_MAX = 1_000.0
"""Expired batches are looked for at least this often while any is open."""


class Sender:
    """The producer's engine. Runs on one event loop."""

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        accumulator: Accumulator,
        wake: Callable[[], None],
        before: SequencesBefore | None = None,
    ) -> None:
        self._config = config
        self._session = session
        self._network = session.network
        self._metadata = session.metadata
        self._clock = session.clock
        self._accumulator = accumulator
        self._wake = wake
        self._acks = config.acks_number
        self._sequencer: Sequencer | None = None
        if before is not None:
            self._sequencer = ContinuedSequencer(config, session, wake, self.fail_everything, before)
        elif config.idempotent:
            self._sequencer = Sequencer(config, session, wake, self.fail_everything)
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._reached: dict[int, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_ms = 0.0
        self._topics_seen: Mapping[str, TopicView] = self._metadata.topics
        self._continued = before is not None
        self._last_error: StrandlineError | None = None
        self._metadata.subscribe(wake)

    def take_sequencer(self, make: Callable[..., Sequencer]) -> None:
        """Number batches in another way, from the first one on, as other clients do. `make` takes what `Sequencer`
        takes."""
        self._sequencer = make(self._config, self._session, self._wake, self.fail_everything)

    # -- the engine -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send what is due and set the timer for what is not."""
        now = self._clock.monotonic_ms()
        self._sweep(now)
        if self._metadata.topics is not self._topics_seen:
            self._topics_seen = self._metadata.topics
            self._forget_idle_queues()
        accumulator = self._accumulator
        linger_ms = self._config.linger_ms
        wait = float("inf")
        by_leader: dict[int, list[PartitionQueue]] = {}
        nodes: dict[int, NodeInfo] = {}
        busy = accumulator.busy_queues()
        for queue in busy:
            leader = self._metadata.leader_of(queue.partition)
            if leader is not None and queue.on_wire and leader[1] > queue.wire_epoch:
                self._give_up_old_leader(queue, leader[0])
            if not queue.waiting:
                continue
            delay = accumulator.is_due(queue, linger_ms, now)
            if delay > 0:
                wait = min(wait, delay)
                continue
            if leader is None:
                self._metadata.want((queue.partition.topic,))
                self._metadata.request_update()
                wait = min(wait, self._config.retry_backoff_ms + 1.0)
                continue
            node = leader[0]
            nodes[node.node_id] = node
            by_leader.setdefault(node.node_id, []).append(queue)
        for node_id, queues in by_leader.items():
            queues.sort(key=lambda queue: queue.waiting[0].order)
            wait = min(wait, self._send_to(nodes[node_id], queues, now))
        if accumulator.memory.used:
            wait = min(wait, max(self._next_sweep_ms - now, 0.0) + 1.0)
        self._set_timer(wait)

    def _send_to(self, node: NodeInfo, queues: list[PartitionQueue], now: float) -> float:
        """Fill a broker's connection up to the requests it may have; milliseconds until another look is due."""
        connection = self._network.ready(node, DATA)
        if connection is None:
            return self._connect(node)
        if connection.throttled_ms > 0:
            return connection.throttled_ms
        limit = self._config.max_in_flight_requests_per_connection
        while connection.in_flight < limit:
            if self._acks == 0 and not connection.writable:
                connection.on_writable = self._wake
                break
            sent = self._take_due(node, queues, now)
            if not sent:
                break
            self._send(node, connection, sent)
        return float("inf")

    def _take_due(self, node: NodeInfo, queues: list[PartitionQueue], now: float) -> Sent:
        """One batch per partition (a rule of Produce), as many as fit into `max.request.size`.

        A partition with something on its way to another broker waits: the new leader could get the later batch first.
        """
        accumulator, sequencer = self._accumulator, self._sequencer
        sent: Sent = []
        size = 0
        for queue in queues:
            if queue.on_wire and queue.wire_node != node.node_id:
                continue
            if not queue.waiting or accumulator.is_due(queue, self._config.linger_ms, now) > 0:
                continue
            queue.goes_to(self._metadata.topic_id(queue.partition.topic))
            if sequencer is not None and not sequencer.may_send(queue):
                continue
            queue.waiting[0].seal()
            needed = queue.waiting[0].builder.size_bytes
            if sent and size + needed > self._config.max_request_size:
                break
            batch = accumulator.take(queue)
            if sequencer is not None:
                sequencer.number(queue, batch)
            size += needed
            sent.append((queue, batch))
        return sent

    def _send(self, node: NodeInfo, connection: Connection, sent: Sent) -> None:
        topics: dict[str, list[tuple[int, memoryview]]] = {}
        for queue, batch in sent:
            batch.attempts += 1
            queue.on_wire.append(batch)
            leader = self._metadata.leader_of(queue.partition)
            queue.wire_node, queue.wire_epoch = node.node_id, -1 if leader is None else leader[1]
            topics.setdefault(queue.partition.topic, []).append((queue.partition.partition, memoryview(batch.encode())))
        self._metadata.want(list(topics))
        ids = {name: view.topic_id for name in topics if (view := self._metadata.topics.get(name)) is not None}
        all_named = all(ids.get(name) is not None for name in topics)
        try:
            version = connection.version(Api.PRODUCE, None if all_named else 12)
        except KafkaError as error:
            self._undo(sent, error)
            return
        wanted = [ProduceTopic(name, ids.get(name), batches) for name, batches in topics.items()]
        request = ProduceRequest(self._acks, self._config.request_timeout_ms, None, wanted)
        body = write_request(version, request)
        answer = connection.send(Api.PRODUCE, version, body, self._config.request_timeout_ms, self._acks != 0)
        if self._acks == 0:
            self._finish_unanswered(sent, answer)
        else:
            read = partial(_read, connection, version)
            attempts = [batch.attempts for _, batch in sent]
            answer.add_done_callback(partial(self._answered, node, read, sent, attempts))

    def _undo(self, sent: Sent, error: KafkaError) -> None:
        for queue, batch in sent:
            queue.on_wire.remove(batch)
            self._fail(queue, batch, error)

    def _finish_unanswered(self, sent: Sent, answer: asyncio.Future[memoryview]) -> None:
        error = answer.exception()
        for queue, batch in sent:
            queue.on_wire.remove(batch)
            if isinstance(error, StrandlineError):
                self._fail(queue, batch, error)
            else:
                self._accumulator.release(batch)
                batch.finish(-1, -1, ())
                self._accumulator.complete(batch)

    def _connect(self, node: NodeInfo) -> float:
        if self._acks == 0 and node.node_id in self._reached:
            # The connection was lost, which is all that a broker can say to acks=0 when it leads no more.
            del self._reached[node.node_id]
            self._metadata.request_update()
        if node.node_id not in self._connecting:
            wait = self._network.backoff_ms(node)
            if wait > 0:
                return wait
            task = asyncio.get_running_loop().create_task(self._open(node))
            self._connecting[node.node_id] = task
        return float("inf")

    async def _open(self, node: NodeInfo) -> None:
        try:
            await self._network.to_node(node, DATA)
            self._last_error = None
            self._reached[node.node_id] = None
        except StrandlineError as error:
            self._last_error = error
            self._metadata.request_update()
        finally:
            self._connecting.pop(node.node_id, None)
            self._wake()

    def _set_timer(self, wait_ms: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_ms != float("inf"):
            self._timer = loop.call_later(wait_ms / 1000, self._wake)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _give_up_old_leader(self, queue: PartitionQueue, leader: NodeInfo) -> None:
        """Send anew, to the new leader, what the old one has not answered: it may be silent for long.

        Only sequences make that safe: the new leader answers what the old one had replicated as a duplicate.
        """
        if self._sequencer is None or queue.wire_node == leader.node_id:
            return
        given_up, queue.on_wire = queue.on_wire, []
        for batch in given_up:
            if not batch.done:
                batch.last_error = Disconnected(f"broker {queue.wire_node} no longer leads {queue.partition}")
                self._accumulator.put_back(queue, batch)

    def _answered(
        self,
        node: NodeInfo,
        read: Callable[[memoryview], list[tuple[str | UUID, list[PartitionResult]]]],
        everything: Sent,
        attempts: list[int],
        answer: asyncio.Future[memoryview],
    ) -> None:
        sent = [
            (queue, batch)
            for (queue, batch), attempt in zip(everything, attempts, strict=True)
            if batch.attempts == attempt and batch in queue.on_wire
        ]
        for queue, batch in sent:
            queue.on_wire.remove(batch)
        error = Disconnected("the producer was closed") if answer.cancelled() else answer.exception()
        told: dict[tuple[str | UUID, int], PartitionResult] = {}
        if error is None:
            try:
                topics = read(answer.result())
                told = {(topic, result.index): result for topic, results in topics for result in results}
            except ProtocolError as broken:
                error = broken
        now = self._clock.monotonic_ms()
        retries: list[tuple[PartitionQueue, ProducerBatch]] = []
        for queue, batch in sent:
            if error is not None:
                again = self._retry_or_fail(queue, batch, error, now)
            else:
                again = self._settle(queue, batch, self._find(told, queue), node, now)
            if again:
                retries.append((queue, batch))
        for queue, batch in reversed(retries):
            self._accumulator.put_back(queue, batch)
        if error is not None:
            if isinstance(error, ClientTimeout):
                self._metadata.suspect(node.node_id)
            self._metadata.request_update()
        self._wake()

    def _find(
        self, told: dict[tuple[str | UUID, int], PartitionResult], queue: PartitionQueue
    ) -> PartitionResult | None:
        name, number = queue.partition
        found = told.get((name, number))
        if found is None:
            view = self._metadata.topics.get(name)
            if view is not None and view.topic_id is not None:
                found = told.get((view.topic_id, number))
        return found

    def _settle(
        self, queue: PartitionQueue, batch: ProducerBatch, told: PartitionResult | None, node: NodeInfo, now: float
    ) -> bool:
        """Judge one partition's answer; true when the batch is to be sent again."""
        if told is None:
            lost = Disconnected(f"broker {node} did not answer for {queue.partition}")
            return self._retry_or_fail(queue, batch, lost, now)
        code = told.error
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            replicas = told.synced_replicas
            if replicas is None and self._acks == 1:
                replicas = (node.node_id,)
            self._finish(queue, batch, told.base_offset if code is ErrorCode.NONE else -1, told, replicas)
            return False
        topic, partition = queue.partition.topic, str(queue.partition)
        error = answered(
            self._config, Api.PRODUCE, code, told.message, of=topic, partition=partition, broker=node.node_id
        )
        if batch.done:
            return False
        if code in _TOO_LARGE and batch.count > 1:
            queue.may_grow = False
            self._accumulator.replace_by_halves(queue, batch, batch.split(self._accumulator.codec))
            return False
        if self._sequencer is not None and self._sequencer.refused(queue, batch, code):
            return self._retry_or_fail(queue, batch, error, now)
        if not code.retriable:
            self._fail(queue, batch, error)
            return False
        moved = told.leader_id >= 0 and self._metadata.apply_leader(queue.partition, told.leader_id, told.leader_epoch)
        if code is ErrorCode.REQUEST_TIMED_OUT:
            self._metadata.suspect(node.node_id)
            self._metadata.request_update()
        elif code.refresh_metadata and not moved:
            self._metadata.request_update()
        return self._retry_or_fail(queue, batch, error, now, at_once=moved)

    def _finish(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        base_offset: int,
        told: PartitionResult,
        replicas: tuple[int, ...] | None,
    ) -> None:
        if self._sequencer is not None:
            self._sequencer.resolve(queue, batch, written=True)
        if not batch.done:
            self._accumulator.release(batch)
            # rule B37/a-flush-returns-before-the-futures-are-done
            batch.finish(base_offset, told.log_append_time_ms, replicas)
            self._accumulator.complete(batch)  # rule B37/a-flush-returns-before-the-futures-are-done/2

    def _retry_or_fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: BaseException, now: float, *, at_once: bool = False
    ) -> bool:
        if batch.done:
            return False
        failure = error if isinstance(error, StrandlineError) else Disconnected(str(error))
        batch.last_error = failure
        if batch.attempts > self._config.retries:
            self._fail(queue, batch, failure)
            return False
        level = logging.INFO if batch.attempts == 1 else logging.DEBUG
        told = logs.records_of(queue.partition, batch.count)
        logs.producer.log(level, "%s not acknowledged, and sent again: %s", told, failure)
        batch.retry_at_ms = now + (0.0 if at_once else self._session.backoff_ms(batch.attempts))
        return True

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        if self._sequencer is not None:
            self._sequencer.resolve(queue, batch, written=False)
        self._accumulator.drop(queue, batch)
        self._accumulator.release(batch)
        logs.producer.error("%s not written: %s", logs.records_of(queue.partition, batch.count), error)
        batch.fail(error)
        self._accumulator.complete(batch)

    # -- ends -------------------------------------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        """Fail batches that are older than `delivery.timeout.ms`, and those of topics that are gone."""
        if now < self._next_sweep_ms:
            return
        timeout_ms = self._config.delivery_timeout_ms
        next_ms = now + _SWEEP_MS_MAX
        for queue, batch in self._accumulator.all_batches():
            if now - batch.created_ms >= timeout_ms:
                text = (
                    f"{batch.count} records of {queue.partition} had no acknowledgement within "
                    f"delivery.timeout.ms={timeout_ms}; whether they are in the log is unknown"
                )
                if not batch.attempts:
                    text = (
                        f"{batch.count} records of {queue.partition} could not be sent within "
                        f"delivery.timeout.ms={timeout_ms}; they are not in the log"
                    )
                self._fail(queue, batch, DeliveryTimeout(text, batch.last_error or self.current_trouble()))
            elif batch not in queue.on_wire and (gone := self._metadata.absence(queue.partition)) is not None:
                self._fail(queue, batch, gone)
            else:
                next_ms = min(next_ms, batch.created_ms + timeout_ms)
        self._next_sweep_ms = next_ms

    def _forget_idle_queues(self) -> None:
        """Those of topics that are deleted, or were not sent to for `metadata.max.idle.ms`: a producer may see many."""
        if self._continued:
            return  # where it stands in its sequences is somebody's who comes after it
        for queue in self._accumulator.forget_idle(lambda item: self._metadata.is_forgotten(item.topic)):
            if self._sequencer is not None:
                self._sequencer.retire(queue)

    async def producer_id(self) -> int:
        """The producer id, asked for where there is none yet; -1 without idempotence."""
        return -1 if self._sequencer is None else await self._sequencer.assigned()

    def current_trouble(self) -> StrandlineError | None:
        """The last failure on the way to the brokers, if the trouble lasts."""
        waiting_for_id = None if self._sequencer is None else self._sequencer.last_error
        return self._last_error or self._metadata.last_error or waiting_for_id

    def fail_everything(self, error: StrandlineError) -> None:
        """End every record with `error` and take no more."""
        self._accumulator.close(error)
        for queue, batch in self._accumulator.all_batches():
            self._fail(queue, batch, error)

    async def close(self) -> None:
        """Stop sending; what has no answer yet fails with ClosedError."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._sequencer is not None:
            await self._sequencer.close()
        self.fail_everything(ClosedError("the producer was closed before the record was acknowledged"))


def _read(connection: Connection, version: int, body: memoryview) -> list[tuple[str | UUID, list[PartitionResult]]]:
    """The results of an answer; what it says of quotas is obeyed. Raises ProtocolError."""
    response = connection.read(read_response, body, version)
    connection.throttle(response.throttle_ms)
    return response.topics
