"""librdkafka as part of the load: an idempotent producer and a consumer with partitions of its own."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import confluent_kafka

from strandline.chaos.checkers.history import Partition, Send, Status
from strandline.chaos.checkers.journal import Recorder
from strandline.chaos.live.clients.foreign import ForeignClient, login_of, now_ms, run_process
from strandline.chaos.live.clients.options import FINAL_S, FLUSH_S, SWEEP_S, ClientOptions, InputEnd
from strandline.chaos.live.target import pause

DECIDE_MS = 60_000
"""Milliseconds for which a record is retried. After that it is unknown whether it was stored."""


def login_settings(options: ClientOptions) -> dict[str, str]:
    """librdkafka's names of what a secure cluster wants; nothing for another."""
    login = login_of(options)
    if login is None:
        return {}
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": login.ca,
        "sasl.mechanism": login.mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
    }


class ConfluentClient(ForeignClient):
    """Producer and consumer are turned by one loop."""

    def __init__(self, options: ClientOptions, recorder: Recorder) -> None:
        super().__init__(options, recorder)
        self._fatal = False
        self._producer = self._new_producer()
        self._consumer = self._new_consumer()

    def _new_producer(self) -> Any:
        self._begin_life()
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self.options.bootstrap,
                **login_settings(self.options),
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": DECIDE_MS,
                "request.timeout.ms": 3000,
                "socket.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 1000,
                "retry.backoff.ms": 50,
                "error_cb": self._met,
                "log_level": 0,
            }
        )

    def _new_consumer(self) -> Any:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.options.bootstrap,
                **login_settings(self.options),
                "group.id": f"chaos-{self.options.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 1000,
                "socket.timeout.ms": 6000,
                "error_cb": self._met,
                "log_level": 0,
            }
        )
        places = [confluent_kafka.TopicPartition(topic, number, 0) for topic, number in self.options.partitions]
        consumer.assign(places)
        return consumer

    def _met(self, error: Any) -> None:
        self._fatal = self._fatal or error.fatal()
        self._failed(error.name())

    def send(self) -> None:
        """Send one to three records, each to any partition."""
        for _ in range(self._rng.randint(1, 3)):
            send, value = self._invoke()
            topic, number = send.partition
            try:
                self._producer.produce(topic, value, partition=number, on_delivery=partial(self._settled, send))
            except (confluent_kafka.KafkaException, BufferError):
                self._end(send, Status.FAIL)  # it was not queued

    def _settled(self, send: Send, error: Any, message: Any) -> None:
        if error is None:
            self._end(send, Status.OK, message.offset())
            return
        self._met(error)
        self._end(send, Status.INFO)

    def serve(self) -> None:
        """Callbacks; another producer after an error that ends one."""
        self._producer.poll(0)
        if self._fatal:
            self._fatal = False
            self._producer = self._new_producer()

    def read(self, timeout_s: float, *, final: bool = False) -> list[Any]:
        """One poll; the messages that came."""
        invoked_ms = now_ms()
        messages = self._consumer.consume(500, timeout_s)
        for message in messages:
            if message.error() is not None:
                self._met(message.error())
        good = [message for message in messages if message.error() is None]
        found = [(Partition(one.topic(), one.partition()), one.offset(), one.value()) for one in good]
        self._saw(found, invoked_ms, final=final)
        return good

    def run(self) -> None:
        """Send and read until standard input ends; then flush."""
        over = InputEnd()
        swept = send_at = time.monotonic()
        while not over():
            now = time.monotonic()
            if now >= send_at:
                self.send()
                send_at = now + self._gap_s()
            self.serve()
            self.read(max(0.001, min(0.1, send_at - time.monotonic())))
            if now - swept > SWEEP_S:
                self._recorder.sweep()
                swept = now
        self._producer.flush(FLUSH_S)
        self._recorder.errors(self.errors)
        self._consumer.close()

    def _end_of(self, place: Any, deadline: float) -> int:
        """High watermark of a partition; a leader that has just been replaced is no reason to give up."""
        while True:
            try:
                end: int = self._consumer.get_watermark_offsets(place, timeout=5)[1]
            except confluent_kafka.KafkaException as error:
                self._met(error.args[0])
                if time.monotonic() > deadline:
                    raise
                pause(0.2)
            else:
                return end

    def run_final(self) -> int:
        """Read everything up to the ends that there are. Returns the exit code."""
        deadline = time.monotonic() + FINAL_S
        behind: dict[tuple[str, int], int] = {}
        for topic, number in self.options.partitions:
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


if __name__ == "__main__":
    sys.exit(run_process(ConfluentClient))
