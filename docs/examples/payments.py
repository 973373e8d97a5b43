"""A consumer that must not handle a payment twice, nor leave one out, whenever it dies.

It keeps its position where it keeps its effects, and changes both in one transaction.
"""

from __future__ import annotations

import sqlite3

from aiokafka import AIOKafkaConsumer, TopicPartition

TOPIC = "payments"


class Ledger:
    """The database: what was paid, and how far the log has been handled."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE TABLE paid (payer TEXT, cents INTEGER)")
        self._database.execute("CREATE TABLE positions (partition INTEGER PRIMARY KEY, next_offset INTEGER)")

    def pay(self, payer: str, cents: int, partition: int, offset: int) -> None:
        """One payment, and that everything up to it has been handled."""
        with self._database:  # one transaction
            self._database.execute("INSERT INTO paid VALUES (?, ?)", (payer, cents))
            self._database.execute("REPLACE INTO positions VALUES (?, ?)", (partition, offset + 1))

    def next_offset(self, partition: int) -> int:
        """Where to go on."""
        query = "SELECT next_offset FROM positions WHERE partition = ?"
        found = self._database.execute(query, (partition,)).fetchone()
        return found[0] if found else 0

    def total(self) -> int:
        """Everything that was paid."""
        return self._database.execute("SELECT COALESCE(SUM(cents), 0) FROM paid").fetchone()[0]


async def handle_payments(bootstrap: str, ledger: Ledger, partitions: int) -> None:
    """Handle what comes, until somebody stops it."""
    mine = [TopicPartition(TOPIC, number) for number in range(partitions)]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(mine)
        for partition in mine:
            consumer.seek(partition, ledger.next_offset(partition.partition))
        async for record in consumer:
            ledger.pay(record.key.decode(), int(record.value), record.partition, record.offset)
    finally:
        await consumer.stop()
