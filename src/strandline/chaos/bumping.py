"""A producer that does with sequences what librdkafka does (2.x, `rd_kafka_handle_idempotent_Produce_error` and
`..._success`).

Up to five batches travel at once, from the first one on. OUT_OF_ORDER_SEQUENCE_NUMBER to a batch behind an unanswered
one makes it number everything without an answer anew, under the next epoch, *whatever became of that*: among it may be
batches that are stored. To the first without an answer it is the end of the producer. And the ack of a batch acks the
ones before it that wait to be sent again: a broker that took it must have them. Our own client is more careful, so that
by itself it could not show that a broker's answers are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strandline.client.aio import Producer
from strandline.client.aio.producer import ProducerCore
from strandline.client.config import ProducerConfig
from strandline.client.producer_batch import ProducerBatch
from strandline.client.sender import Accumulator, PartitionQueue, Sequencer
from strandline.client.session import Session
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError

BUMPING_SETTINGS: dict[str, Any] = {"delivery_timeout_ms": 600_000}
"""A message that times out is another reason for it to bump the epoch, and no answer of a broker can help that."""


class BumpingSequencer(Sequencer):
    """Sequencer of a producer that bumps its epoch, as the head of this module says."""

    def __init__(
        self,
        accumulator: Accumulator,
        config: ProducerConfig,
        session: Session,
        wake: Callable[[], None],
        on_fatal: Callable[[StrandlineError], None],
    ) -> None:
        super().__init__(config, session, wake, on_fatal)
        self._accumulator = accumulator

    def may_send(self, queue: PartitionQueue) -> bool:
        """Decide as our own sequencer does, but that the first batch of a producer id does not travel alone."""
        queue.known = True
        return super().may_send(queue)

    def resolve(self, queue: PartitionQueue, batch: ProducerBatch, *, written: bool) -> None:
        """Settle as our own sequencer does, but that an ack holds for the batches before it that wait for another
        attempt."""
        if written and batch in queue.numbered:
            for earlier in queue.numbered[: queue.numbered.index(batch)]:
                if earlier in queue.waiting:
                    self._accumulator.drop(queue, earlier)
                    self._accumulator.release(earlier)
                    earlier.finish(-1, -1, None)
                    self._accumulator.complete(earlier)
                    super().resolve(queue, earlier, written=True)
        super().resolve(queue, batch, written=written)

    def refused(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        """True when the batch is to be sent again; out of order means a new epoch for all that has no answer."""
        if code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or batch.numbers is None:
            return super().refused(queue, batch, code)
        if queue.numbered and queue.numbered[0] is batch:
            self._on_fatal(KafkaError(code, f"sequence desynchronization in {queue.partition}"))
            return False
        queue.bump_needed = True
        return True


class BumpingProducer(Producer):
    """The asynchronous producer with that sequencer."""

    def _started(self) -> ProducerCore:
        begins = self._core is None
        core = super()._started()
        if begins:
            core.sender.take_sequencer(partial(BumpingSequencer, core.accumulator))
        return core
