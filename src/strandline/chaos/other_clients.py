"""Clients that do what librdkafka does: our own is more careful, and could not show that a broker's answers suffice."""

from __future__ import annotations

from strandline.client.aio import Consumer, Producer
from strandline.client.aio.producer import ProducerCore
from strandline.client.errors import TransactionAbortable
from strandline.client.fetcher import Lookups, PartitionState
from strandline.client.transactions import Transactions
from strandline.client.types import EpochEnd


class ValidatingLookups(Lookups):
    """Look-ups that believe what a new leader says of a position, as librdkafka does (2.x, `rd_kafka_offset_validate`
    and `rd_kafka_toppar_handle_OffsetForLeaderEpoch`) and Apache Kafka's client.

    A leader that knows no end of the epoch asked for has lost what was read, in their eyes: they go on by
    `auto.offset.reset`, with `latest` past everything that was written since. Our own client stays where it is then.
    """

    def judge(self, state: PartitionState, end: EpochEnd) -> None:
        """Judge as our own client does, but that an end that is not known is no end."""
        if end.end_offset >= 0 and end.leader_epoch >= 0:
            super().judge(state, end)
            return
        checked = state.checked_epoch
        self._reset_by_policy(state)
        state.checked_epoch = checked


class ValidatingConsumer(Consumer):
    """The asynchronous consumer with these look-ups."""

    _lookups = ValidatingLookups


class _FirstProtocol(Transactions):
    async def _choose_protocol(self) -> None:
        self.protocol, self._protocol_by = 1, await self._coordinator.connection()

    async def _end_at_coordinator(self, *, committed: bool) -> None:
        due = self._bump_due
        await super()._end_at_coordinator(committed=committed)
        self._bump_due = due

    async def _abort(self) -> None:
        self._bump_due = True
        for queue, batch in self._accumulator.all_batches():  # librdkafka purges what is under way as well
            self._sender._fail(queue, batch, TransactionAbortable("the transaction was aborted meanwhile"))
        await self._end_at_coordinator(committed=False)


class FirstProtocolProducer(Producer):
    """A producer that speaks the first protocol of transactions as librdkafka does (2.x), whatever the cluster offers.

    Its epoch lasts over many transactions. An end without an answer is sent again, by another connection, and the next
    transaction goes on under the same epoch (KAFKA-17754). An abort waits for no batch that is under way, and is
    followed by the next epoch (KIP-360). Our own client waits, and asks for another epoch behind an end without an
    answer: by itself it could not show that a broker keeps late ends and late batches from what comes after them.
    """

    def _started(self) -> ProducerCore:
        begins = self._core is None
        core = super()._started()
        if begins:
            core._transactions = _FirstProtocol(core.config, core._session, core.accumulator, core.sender, core._wake)
        return core
