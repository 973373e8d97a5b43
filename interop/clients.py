"""The clients: what each is, and how it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.fetched import Unavailable, need

from interop import access, install
from interop.connect import ConnectWorker
from interop.driver import Driver, ProcessDriver
from interop.features import CONNECT, FEATURES, GROUP_KEYS, MOVES, QUORUM, REPLICAS, STREAMS, TRANSACTIONS, Feature
from interop.kcat import KcatDriver
from interop.logins import Login
from interop.streams import StreamsApplication
from interop.tools import KafkaTools

Starter = Callable[[str, Login], Driver]
"""From bootstrap addresses, and what the client shows there, to a running client."""


def program(command: list[str]) -> Starter:
    return lambda bootstrap, login: ProcessDriver([*command, bootstrap], {"GOMAXPROCS": "2", **login.environment()})


@dataclass(frozen=True)
class Client:
    """One column of the table.

    `get` installs it and returns how to start it; it raises Unavailable with the reason. `open_alone`: why it is not
    measured where clusters ask who comes in.
    """

    name: str
    get: Callable[[], Starter]
    features: tuple[Feature, ...] = FEATURES
    open_alone: str = ""

    def at(self, level: str) -> Client:
        """The same at this level of security (`security.LEVELS`): with the features of access, if it is a client
        of which these can be asked."""
        if level == "none":
            return self
        more = (
            ()
            if self.features in (CONNECT, STREAMS)
            else tuple(Feature(f"access: {name}", check, GROUP_KEYS) for name, check in access.checks(level).items())
        )
        get = self._unmeasured if self.open_alone else self.get
        return replace(self, features=(*self.features, *more), get=get)

    def _unmeasured(self) -> Starter:
        raise Unavailable(f"not measured: {self.open_alone}")


def kcat() -> Starter:
    need("kcat", what_for="this client")
    return KcatDriver


def java_tools() -> Starter:
    command = [*install.java(), "Tools"]
    return lambda bootstrap, login: KafkaTools(bootstrap, command, login)


def connect_worker() -> Starter:
    jars = install.kafka_jars("connect-runtime", "connect-file", logger=install.CONSOLE)
    return lambda bootstrap, login: ConnectWorker(bootstrap, jars, login)


def streams_application() -> Starter:
    command = install.streams()
    return lambda bootstrap, login: StreamsApplication(bootstrap, command, login)


CLIENTS = (
    Client("confluent", lambda: program(install.python("confluent", ["confluent-kafka==2.16.1"]))),
    Client("kcat", kcat),
    Client("java", lambda: program([*install.java(), "Driver"])),
    Client("java-tools", java_tools, (*FEATURES, REPLICAS, MOVES, QUORUM, *TRANSACTIONS)),
    Client("aiokafka", lambda: program(install.python("aiokafka_driver", ["aiokafka[snappy,lz4,zstd]==0.14.0"]))),
    Client(
        "kafka-python",
        lambda: program(install.python("kafka_python", ["kafka-python==3.0.12", "lz4", "python-snappy", "zstandard"])),
    ),
    Client("franz-go", lambda: program(install.go("franz"))),
    Client("sarama", lambda: program(install.go("sarama"))),
    Client("kafka-go", lambda: program(install.go("kafkago"))),
    Client("kafkajs", lambda: program(install.node("kafkajs"))),
    Client("rskafka", lambda: program(install.rust("rskafka")), open_alone="its driver speaks plaintext"),
    Client("connect", connect_worker, CONNECT),
    Client("streams", streams_application, STREAMS),
)
