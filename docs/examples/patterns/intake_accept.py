"""Order intake, the decision: a user may have five orders. Any number of these processes share the work.

python intake_accept.py 127.0.0.1:9092
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from intake_front import ORDERED

from strandline.client import LATEST, Admin, Consumer, ConsumerRecord, Send, TopicPartition, process

DECIDED = "orders.decided"
"""As many partitions as `orders.placed`: a user's decisions lie in the partition with the number of his orders'."""

LIMIT = 5


class Limits:
    """The accepted orders of each user. What `orders.decided` holds is the state, here it is only remembered."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._accepted: dict[int, dict[str, set[str]]] = {}

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Others may have decided in these partitions meanwhile."""
        for item in partitions:
            self._accepted.pop(item.partition, None)

    def decide(self, record: ConsumerRecord) -> Send:
        """The decision on an order. The same order again gets the same answer, and counts once."""
        if record.partition not in self._accepted:
            self._accepted[record.partition] = self._read(record.partition)
        order = json.loads(record.value)
        accepted = self._accepted[record.partition][order["user"]]
        if len(accepted) < LIMIT:
            accepted.add(order["id"])
        order["accepted"] = order["id"] in accepted
        return Send(DECIDED, json.dumps(order).encode(), key=record.key, partition=record.partition)

    def _read(self, partition: int) -> dict[str, set[str]]:
        """Orders accepted before: up to the end of the log, so that it waits for transactions that are still open."""
        accepted: dict[str, set[str]] = defaultdict(set)
        part = TopicPartition(DECIDED, partition)
        with Admin(self._bootstrap) as admin:
            end = admin.list_offsets({part: LATEST})[part].offset
        with Consumer(self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([part])
            while consumer.position(part) < end:
                for record in consumer.poll(1.0):
                    order = json.loads(record.value)
                    if order["accepted"]:
                        accepted[order["user"]].add(order["id"])
        return accepted


if __name__ == "__main__":
    limits = Limits(sys.argv[1])
    process(sys.argv[1], ORDERED, limits.decide, group_id="orders.accept", on_assigned=limits.forget)
