"""The clients: what each is, and how it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.fetched import need

from interop import install
from interop.connect import ConnectWorker
from interop.driver import Driver, ProcessDriver
from interop.features import CONNECT, FEATURES, REPLICAS, Feature
from interop.kcat import KcatDriver
from interop.tools import KafkaTools

Starter = Callable[[str], Driver]
"""From bootstrap addresses to a running client."""


def program(command: list[str]) -> Starter:
    return lambda bootstrap: ProcessDriver([*command, bootstrap], {"GOMAXPROCS": "2"})


@dataclass(frozen=True)
class Client:
    """One column of the table.

    `get` installs it and returns how to start it; it raises Unavailable with the reason.
    """

    name: str
    get: Callable[[], Starter]
    features: tuple[Feature, ...] = FEATURES


def kcat() -> Starter:
    need("kcat", what_for="this client")
    return KcatDriver


def java_tools() -> Starter:
    command = [*install.java(), "Tools"]
    return lambda bootstrap: KafkaTools(bootstrap, command)


def connect_worker() -> Starter:
    jars = install.kafka_jars("connect-runtime", "connect-file")
    return lambda bootstrap: ConnectWorker(bootstrap, jars)


CLIENTS = (
    Client("confluent", lambda: program(install.python("confluent", ["confluent-kafka==2.16.1"]))),
    Client("kcat", kcat),
    Client("java", lambda: program([*install.java(), "Driver"])),
    Client("java-tools", java_tools, (*FEATURES, REPLICAS)),
    Client("aiokafka", lambda: program(install.python("aiokafka_driver", ["aiokafka[snappy,lz4,zstd]==0.14.0"]))),
    Client(
        "kafka-python",
        lambda: program(install.python("kafka_python", ["kafka-python==3.0.12", "lz4", "python-snappy", "zstandard"])),
    ),
    Client("franz-go", lambda: program(install.go("franz"))),
    Client("sarama", lambda: program(install.go("sarama"))),
    Client("kafkajs", lambda: program(install.node("kafkajs"))),
    Client("rskafka", lambda: program(install.rust("rskafka"))),
    Client("connect", connect_worker, (CONNECT,)),
)
