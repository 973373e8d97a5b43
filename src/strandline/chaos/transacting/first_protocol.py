"""A producer that speaks the first protocol of transactions as librdkafka does (2.x), whatever the cluster offers.

Its epoch lasts over many transactions. An end without an answer is sent again, by another connection, and the next
transaction goes on under the same epoch (KAFKA-17754). An abort waits for no batch that is under way, and is followed
by the next epoch (KIP-360). Our own client waits, and asks for another epoch behind an end without an answer, so that
by itself it could not show that a broker keeps late ends and late batches from what comes after them.
"""

from __future__ import annotations

from strandline.client.aio import Producer
from strandline.client.aio.producer import ProducerCore
from strandline.client.errors import TransactionAbortable
from strandline.client.transactions import Transactions


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
    """The asynchronous producer with that protocol."""

    def _started(self) -> ProducerCore:
        begins = self._core is None
        core = super()._started()
        if begins:
            core._transactions = _FirstProtocol(core.config, core._session, core.accumulator, core.sender, core._wake)
        return core
