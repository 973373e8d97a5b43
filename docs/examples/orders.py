"""A service that takes orders: one is placed once the log has it."""

from __future__ import annotations

from strandline.client import Consumer, Producer

TOPIC = "orders"


class OrderService:
    """Places orders."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(bootstrap, acks="all", linger_ms=0, delivery_timeout_ms=30_000)

    def place(self, order: str) -> str:
        """Return once the order cannot be lost any more."""
        self._producer.send(TOPIC, order.encode()).result()
        return order

    def close(self) -> None:
        """Nothing more will be placed."""
        self._producer.close()


def orders_placed(bootstrap: str) -> list[str]:
    """Every order in the log, in its order."""
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        end = consumer.end_offsets([(TOPIC, 0)])[TOPIC, 0]
        orders: list[str] = []
        while len(orders) < end:
            orders += [record.value.decode() for record in consumer.poll(timeout_s=1.0)]
        return orders
