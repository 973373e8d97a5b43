"""librdkafka as part of the load: an idempotent producer and a consumer with partitions of its own."""

from __future__ import annotations

import random
import sys
import time
from functools import partial
from typing import Any

import confluent_kafka

from strandline.chaos.checkers.history import Partition, Poll, Send, Status
from strandline.chaos.live.clients.options import ClientOptions, InputEnd
from strandline.chaos.live.journal import Journal
from strandline.chaos.live.waiting import pause

SWEEP_S = 0.2
FLUSH_S = 90.0
FINAL_S = 120.0
DECIDE_MS = 60_000
"""How long a record is tried; beyond, nobody knows."""


def _now_ms() -> float:
    return time.monotonic() * 1000


class _Client:
    """One producer and one consumer, turned by one loop."""

    def __init__(self, options: ClientOptions, journal: Journal) -> None:
        self.errors: dict[str, int] = {}
        self._options = options
        self._journal = journal
        self._rng = random.Random(options.seed)
        self._values = 0
        self._lives = 0
        self._fatal = False
        self._producer = self._new_producer()
        self._consumer = self._new_consumer()

    def _new_producer(self) -> Any:
        self._lives += 1
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self._options.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": DECIDE_MS,
                "request.timeout.ms": 3000,
                "socket.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 1000,
                "retry.backoff.ms": 50,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )

    def _new_consumer(self) -> Any:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._options.bootstrap,
                "group.id": f"chaos-{self._options.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 1000,
                "socket.timeout.ms": 6000,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )
        places = [confluent_kafka.TopicPartition(topic, number, 0) for topic, number in self._options.partitions]
        consumer.assign(places)
        return consumer

    def _failed(self, error: Any) -> None:
        self._fatal = self._fatal or error.fatal()
        self.errors[error.name()] = self.errors.get(error.name(), 0) + 1

    def send(self) -> None:
        """One to three records, each to any partition."""
        for _ in range(self._rng.randint(1, 3)):
            where = self._rng.choice(self._options.partitions)
            self._values += 1
            value = f"{self._options.name}-{self._values}"
            process = f"{self._options.name}-{self._lives}"
            send = self._journal.send(Send(process, where, value, invoked_ms=_now_ms()))
            try:
                told = partial(self._settled, send)
                self._producer.produce(where.topic, value.encode(), partition=where.number, on_delivery=told)
            except (confluent_kafka.KafkaException, BufferError):
                send.status, send.completed_ms = Status.FAIL, _now_ms()  # it was not queued

    def _settled(self, send: Send, error: Any, message: Any) -> None:
        send.completed_ms = _now_ms()
        if error is None:
            send.status, send.offset = Status.OK, message.offset()
            return
        self._failed(error)
        send.status = Status.INFO

    def serve(self) -> None:
        """Callbacks; another producer after an error that ends one."""
        self._producer.poll(0)
        if self._fatal:
            self._fatal = False
            self._producer = self._new_producer()

    def read(self, timeout_s: float, *, final: bool = False) -> list[Any]:
        """One poll; the messages that came."""
        invoked_ms = _now_ms()
        messages = self._consumer.consume(500, timeout_s)
        for message in messages:
            if message.error() is not None:
                self._failed(message.error())
        good = [message for message in messages if message.error() is None]
        if good:
            found = [(Partition(one.topic(), one.partition()), one.offset(), one.value().decode()) for one in good]
            name = f"{self._options.name}-reader"
            self._journal.poll(Poll(name, found, invoked_ms=invoked_ms, completed_ms=_now_ms(), final=final))
        return good

    def run(self) -> None:
        """Send and read until standard input ends; then flush."""
        over = InputEnd()
        swept = send_at = time.monotonic()
        while not over():
            now = time.monotonic()
            if now >= send_at:
                self.send()
                send_at = now + self._rng.uniform(0, 2 * self._options.gap_ms) / 1000
            self.serve()
            self.read(max(0.001, min(0.1, send_at - time.monotonic())))
            if now - swept > SWEEP_S:
                self._journal.sweep()
                swept = now
        self._producer.flush(FLUSH_S)
        self._journal.errors(self.errors)
        self._consumer.close()

    def _end_of(self, place: Any, deadline: float) -> int:
        """Its high watermark; a leader that has just been replaced is no reason to give up."""
        while True:
            try:
                end: int = self._consumer.get_watermark_offsets(place, timeout=5)[1]
            except confluent_kafka.KafkaException as error:
                self._failed(error.args[0])
                if time.monotonic() > deadline:
                    raise
                pause(0.2)
            else:
                return end

    def run_final(self) -> int:
        """Read everything up to the ends that there are. Returns the exit code."""
        deadline = time.monotonic() + FINAL_S
        behind: dict[tuple[str, int], int] = {}
        for topic, number in self._options.partitions:
            end = self._end_of(confluent_kafka.TopicPartition(topic, number), deadline)
            if end > 0:
                behind[topic, number] = end
        while behind and time.monotonic() < deadline:
            for one in self.read(0.5, final=True):
                place = one.topic(), one.partition()
                if one.offset() + 1 >= behind.get(place, one.offset() + 2):
                    del behind[place]
        self._consumer.close()
        return 1 if behind else 0


def main(options: ClientOptions) -> int:
    """The process. Returns its exit code."""
    with options.open_journal() as journal:
        client = _Client(options, journal)
        if options.final:
            return client.run_final()
        client.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(ClientOptions.decode(sys.argv[1])))
