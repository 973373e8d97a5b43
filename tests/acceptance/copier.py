"""A copier that works as Kafka's TransactionalMessageCopier does, of librdkafka: it speaks the first protocol of
transactions, which Java's clients no longer do. Arguments: what `main` takes, as JSON."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition


def committed(consumer: Consumer, where: TopicPartition) -> int:
    """Where the last transaction that was committed ends; asked again while the coordinator moves."""
    for _ in range(60):
        try:
            [place] = consumer.committed([where], 30)
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            time.sleep(0.5)
        else:
            return max(place.offset, 0)
    raise SystemExit("no coordinator within 30 s")


def main(bootstrap: str, source: str, partition: int, target: str, group: str, identity: str, size: int) -> None:
    """Copy from where the group stands to the end of the partition; a third of the transactions is aborted."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    where = TopicPartition(source, partition)
    reading: dict[str, Any] = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({**common, **reading})
    producer = Producer({**common, "transactional.id": identity, "transaction.timeout.ms": 10_000})
    producer.init_transactions(60)
    copied = committed(consumer, where)
    consumer.assign([TopicPartition(source, partition, copied)])
    _, end = consumer.get_watermark_offsets(where, 30)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    while copied < end and not ended:
        print(json.dumps({"remaining": end - copied}), flush=True)
        messages = [each for each in consumer.consume(size, 0.2) if each.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for each in messages:
                producer.produce(target, each.value())
            position = TopicPartition(source, partition, messages[-1].offset() + 1)
            producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)
            if random.randrange(3) == 0:
                producer.abort_transaction(30)
                consumer.seek(TopicPartition(source, partition, copied))
                continue
            producer.commit_transaction(30)
            copied = position.offset
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            consumer.seek(TopicPartition(source, partition, copied))
    print(json.dumps({"remaining": end - copied}), flush=True)
    consumer.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
