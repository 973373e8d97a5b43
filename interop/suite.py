"""What the features share: topics of their own, records, waiting, and the words for what went wrong."""

from __future__ import annotations

import base64
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.clusters import admin_client

from interop.driver import ClientError, Driver
from interop.logins import OPEN, Login
from interop.security import Authority

Record = dict[str, Any]

UNKNOWN_TOPIC = 3
OWN_CHECK = -1
ERROR_NAMES = {
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    40: "INVALID_CONFIG",
    47: "INVALID_PRODUCER_EPOCH",
    58: "SASL_AUTHENTICATION_FAILED",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
    90: "PRODUCER_FENCED",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
}

_serial = itertools.count(1)


class Nodes(Protocol):
    """Whoever can kill the cluster's brokers."""

    def kill(self, node_id: int) -> None:
        """SIGKILL."""

    def start_node(self, node_id: int) -> None:
        """Start a killed one again."""


@dataclass
class World:
    """One client against one cluster."""

    bootstrap: str
    served: frozenset[int]
    """The API keys that the cluster advertises."""
    new_driver: Callable[[Login], Driver]
    authority: Authority | None = None
    """Gives out what clients show; None: the cluster asks nobody."""
    nodes: Nodes | None = None
    """None: brokers are not killed."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _first: Driver | None = None

    @property
    def client(self) -> Driver:
        """The client, started when it is first needed."""
        if self._first is None:
            self._first = self.another()
        return self._first

    def another(self, login: Login | None = None) -> Driver:
        """One more process of the same client, which comes in by `login`, or as the first one does."""
        if login is None:
            login = OPEN if self.authority is None else self.authority.main()
        driver = self.new_driver(login)
        self._stack.callback(driver.stop)
        return driver

    def close(self) -> None:
        self._stack.close()
        self._first = None

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """A new topic, made by librdkafka, so that a client without an admin part can be tried too."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]

        name = self.name("topic")
        admin = admin_client(self.bootstrap)
        named = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 3, config=named)])[name].result(30)
        eventually(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == partitions)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = {TopicPartition(name, number): latest for number in range(partitions)}

        def led() -> bool:
            """The leaders themselves answer: what is sent with acks=0 before they lead is lost."""
            with contextlib.suppress(KafkaException):
                return all(end.result(10).offset == 0 for end in admin.list_offsets(ends).values())
            return False

        eventually(led)
        return name

    def topics(self) -> set[str]:
        """The topics there are, as librdkafka is told."""
        return set(admin_client(self.bootstrap).list_topics(timeout=10).topics)

    def name(self, what: str) -> str:
        """A name nobody has used."""
        return f"{what}-{next(_serial)}"

    def produce(
        self, topic: str, records: Sequence[Record], *, acks: str = "all", codec: str = "none", idempotent: bool = False
    ) -> list[dict[str, int]]:
        """Send with the client; where each record went."""
        return send(self.client, topic, records, acks=acks, codec=codec, idempotent=idempotent)

    def fetch(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        """Read with the client from one partition, from a position on."""
        told = self.client.call(
            "fetch", topic=topic, partition=partition, offset=offset, count=count, timeout_ms=15_000
        )
        records: list[Record] = told["records"]
        assert len(records) >= count, f"{len(records)} of {count} records within 15 s"
        return records


def send(
    driver: Driver,
    topic: str,
    records: Sequence[Record],
    *,
    acks: str = "all",
    codec: str = "none",
    idempotent: bool = False,
    kept: bool = False,
) -> list[dict[str, int]]:
    """Send with this process; where each record went. `kept`: by the producer of the last call that said so, which a
    tool that ends with each command does not have."""
    given = {"topic": topic, "records": list(records), "acks": acks, "codec": codec, "idempotent": idempotent}
    if kept:
        driver.begin("produce", **given, kept=True)
        told = driver.finish()
    else:
        told = driver.call("produce", **given)
    sent: list[dict[str, int]] = told["sent"]
    return sent


def b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def values(count: int, tag: str = "value") -> list[Record]:
    """Records for partition 0."""
    return [{"value": b64(f"{tag}-{number}".encode()), "partition": 0} for number in range(count)]


def same(found: object, expected: object, what: str) -> None:
    assert found == expected, f"{what}: {shortened(found)} instead of {shortened(expected)}"


def shortened(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 160 else text[:160] + "..."


def eventually(check: Callable[[], bool], timeout_s: float = 20.0, pause_s: float = 0.05) -> None:
    """Call `check` until it is true; an AssertionError after the time."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(pause_s)


@contextmanager
def refused(*codes: int) -> Iterator[None]:
    """The block must end in one of these errors of Kafka's (OWN_CHECK: or in the client's own refusal to ask)."""
    names = " or ".join(ERROR_NAMES[code] for code in codes if code != OWN_CHECK)
    try:
        yield
    except ClientError as error:
        assert error.code in codes, f"{error} instead of {names}"
        return
    raise AssertionError(f"no error instead of {names}")
