"""The current price of each item: written to the log and to an audit trail, and kept in memory."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer


class Prices:
    """`now` says what the log says last."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.now: dict[bytes, bytes] = {}
        self._offsets: dict[bytes, int] = {}
        self._producer = producer

    async def set(self, item: bytes, price: bytes) -> None:
        """Change a price."""
        written = await self._producer.send_and_wait("prices", price, key=item)
        await self._producer.send_and_wait("audit", item + b" costs " + price)
        if written.offset > self._offsets.get(item, -1):  # the log's order counts, not who gets here last
            self._offsets[item] = written.offset
            self.now[item] = price
