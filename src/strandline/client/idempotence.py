"""Sequences of the idempotent producer (KIP-98, KIP-360): each record once and in order, in spite of retries.

A broker knows the last five batches of (producer id, epoch) per partition. It answers a batch that it already has with
the old offset, takes the one that comes next, and refuses any other with OUT_OF_ORDER_SEQUENCE_NUMBER. So a retry keeps
its sequence, and nothing new is sent five batches ahead of it: the broker would forget it. Until a first batch is known
to be in the log it travels alone: a leader without a trace of a producer id takes any sequence, and of two batches on
their way during an election the second may find it first.

A batch that has failed may or may not be in the log. What is behind it is sent on under its old numbers: if the broker
takes the first in line, nothing is missing; if it refuses it, none of them was written, and all get new numbers from 0
under the next epoch. The epoch is bumped per partition, for brokers keep this state per partition; a bump fences what
is still under way under the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from strandline.client.accumulator import NO_SEQUENCE, PartitionQueue, ProducerBatch
from strandline.client.config import ProducerConfig
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

REMEMBERED_BATCHES = 5
"""How many batches of a producer a broker remembers per partition (Kafka's ProducerStateEntry)."""

EPOCH_MAX = 32_767
SEQUENCE_MASK = 0x7FFFFFFF
"""Sequences wrap to 0 after 2^31 - 1."""


class Sequencer:
    """Gives batches their numbers. Invariant: a number is given once per (producer id, epoch, partition)."""

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        wake: Callable[[], None],
        on_fatal: Callable[[StrandlineError], None],
    ) -> None:
        self.producer_id = -1
        self.last_error: StrandlineError | None = None
        self._config = config
        self._session = session
        self._wake = wake
        self._on_fatal = on_fatal
        self._fetching: asyncio.Task[None] | None = None
        self._first_epoch = 0
        """Of new queues: no log can have records of this producer id in it."""

    def retire(self, queue: PartitionQueue) -> None:
        """A queue is forgotten, and where it was in its sequences. Its log may still be there, and know them: the next
        queue of that partition must not begin at a sequence that was used (it would pass for a repetition)."""
        if queue.producer_id == self.producer_id:  # rule C1/forgotten-queue-begins-at-an-old-sequence
            self._first_epoch = max(self._first_epoch, queue.producer_epoch + 1)

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the batch at the head may go out now; bumps the epoch where that is due and possible."""
        if queue.bump_needed and (queue.on_wire or not self._bump(queue)):
            return False
        if queue.producer_id < 0:
            if self.producer_id < 0:
                self._fetch_producer_id()
                return False
            if self._first_epoch > EPOCH_MAX:
                self.producer_id = -1
                self._fetch_producer_id()
                return False
            queue.producer_id, queue.producer_epoch = self.producer_id, self._first_epoch
        head = queue.waiting[0]
        if head.base_sequence != NO_SEQUENCE:
            return queue.known or queue.numbered[0] is head
        ahead = len(queue.numbered)
        return ahead < REMEMBERED_BATCHES and (queue.known or not ahead)

    def number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Give a batch that is about to be sent its sequence, unless it has one."""
        if batch.base_sequence == NO_SEQUENCE:
            batch.give_sequence(queue.producer_id, queue.producer_epoch, queue.next_sequence)
            queue.next_sequence = (queue.next_sequence + batch.count) & SEQUENCE_MASK
            queue.numbered.append(batch)

    def resolve(self, queue: PartitionQueue, batch: ProducerBatch, *, written: bool) -> None:
        """A batch has its final answer; `written` is false unless it is known to be in the log."""
        if batch in queue.numbered and not batch.resolved:
            batch.resolved = True
            queue.known = queue.known or written
            while queue.numbered and queue.numbered[0].resolved:
                queue.numbered.pop(0)

    def refused(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        """Take note of an error about sequences; true when `code` is one (the batch is then to be sent again)."""
        if batch.base_sequence == NO_SEQUENCE:
            return False
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            if queue.numbered and queue.numbered[0] is batch:
                queue.bump_needed = True
            return True
        if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            queue.bump_needed = True
            queue.new_id_needed = True
            return True
        return False

    async def assigned(self) -> int:
        """The producer id, asked for where there is none yet.

        Raises:
            KafkaError: the cluster gives none.
        """
        while self.producer_id < 0:
            self._fetch_producer_id()
            if self._fetching is not None:
                await asyncio.wait([self._fetching])
            if self.producer_id < 0 and isinstance(self.last_error, KafkaError) and not self.last_error.retriable:
                raise self.last_error
        return self.producer_id

    async def close(self) -> None:
        """Stop asking for a producer id."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _bump(self, queue: PartitionQueue) -> bool:
        """Next epoch, or a new producer id where epochs are used up or refused; false while that id is on its way."""
        if queue.new_id_needed or queue.producer_epoch >= EPOCH_MAX:
            if self.producer_id == queue.producer_id:
                self.producer_id = -1
            if self.producer_id < 0:
                self._fetch_producer_id()
                return False
            queue.producer_id, queue.producer_epoch, queue.known = self.producer_id, 0, False
        else:
            queue.producer_epoch += 1
        sequence = 0
        queue.numbered = [batch for batch in queue.numbered if not batch.resolved]
        for batch in queue.numbered:
            batch.give_sequence(queue.producer_id, queue.producer_epoch, sequence)
            sequence += batch.count
        queue.next_sequence = sequence
        queue.bump_needed = queue.new_id_needed = False
        return True

    def _fetch_producer_id(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    async def _fetch(self) -> None:
        failures = 0
        values = {
            "transactional_id": None,
            "transaction_timeout": 0x7FFFFFFF,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        session = self._session
        try:
            while True:
                try:
                    connection = await session.network.to_any(list(session.metadata.nodes.values()))
                    answer = await connection.call(Api.INIT_PRODUCER_ID, values, self._config.request_timeout_ms)
                    if answer.error_code is not ErrorCode.NONE:
                        lacks = answered(self._config, Api.INIT_PRODUCER_ID, answer.error_code).message
                        words = _no_producer_id(answer.error_code, connection.endpoint, lacks)
                        raise KafkaError(answer.error_code, words)
                    self.producer_id, self._first_epoch = answer.producer_id, 0
                    self.last_error = None
                    self._wake()
                    return
                except KafkaError as error:
                    self.last_error = error
                    if not error.retriable:
                        self._on_fatal(error)
                        return
                except StrandlineError as error:
                    self.last_error = error
                failures += 1
                await asyncio.sleep(session.backoff_ms(failures) / 1000)
        finally:
            self._fetching = None


def _no_producer_id(code: ErrorCode, endpoint: object, lacks: str) -> str:
    """Words for the error; without a right, who lacks which."""
    words = f"{endpoint} gave no producer id"
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        words += (
            f": {lacks}; an idempotent producer needs the right to WRITE a topic, any one"
            " (or IDEMPOTENT_WRITE of the cluster); enable.idempotence=false produces without a producer id"
        )
    return words


class SequencesBefore(NamedTuple):
    """Where a producer of before stands, perhaps one of a process that was killed: its id and epoch, and the sequence
    that comes next in each partition (0 in those that are not named)."""

    producer_id: int
    producer_epoch: int
    next_sequence: Mapping[TopicPartition, int]


class ContinuedSequencer(Sequencer):
    """Goes on with the sequences of a producer of before, which may still have batches under way, or live.

    The same records sent under the same numbers are written once: of two batches that begin at one sequence
    a leader takes the first that comes. So, other than a producer's own, these numbers are never changed: a batch that
    is refused at its turn fails, and its sender has to look what is in the log.
    """

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        wake: Callable[[], None],
        on_fatal: Callable[[StrandlineError], None],
        before: SequencesBefore,
    ) -> None:
        super().__init__(config, session, wake, on_fatal)
        self.producer_id = before.producer_id
        self._before = before

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the batch at the head may go out now."""
        if queue.producer_id < 0:
            queue.producer_id, queue.producer_epoch = self._before.producer_id, self._before.producer_epoch
            queue.next_sequence = self._before.next_sequence.get(queue.partition, 0)
        return super().may_send(queue)

    def refused(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        """True when a batch came before its turn (leadership has moved) and is to be sent again."""
        return code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.numbered[:1] != [batch]
