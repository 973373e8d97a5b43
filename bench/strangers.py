"""An honest client's acks beside an attack, by somebody without an account or with one that may do nothing:

    \b
    python -m bench.strangers                  # every attack
    python -m bench.strangers before-login

Three nodes whose clients log in, an authorizer, two users. The honest one sends a 1 KB record every 5 ms to the node
that leads the quorum, acks=all, on one connection, and notes how long each ack took: alone, and beside each attack on
that node; and then how long it takes to log in anew, beside the attack. The attacker is a process of its own. Both
share the machine with the nodes: it needs four cores for figures that are the nodes' alone.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table

from bench.paced import percentile_ms
from strandline.client import Admin, NewTopic
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.dev_layout import CERTIFICATES
from strandline.cluster.security.dev_certificates import CA_FILE
from strandline.log.batch import Record, build_batch
from strandline.proto.acls import AclBinding, Operation, PatternType, Permission, ResourceKind
from strandline.proto.kafka import fetch, produce
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import request_head
from strandline.proto.quotas import QuotaEntity, QuotaKey

HONEST, ATTACKER, ADMIN = "honest", "mallory", "admin"
TOPIC = "honest"
EVERY_S = 0.005
CONNECTIONS = 100
AGAIN_CONNECTIONS = 500
LOGINS = 10
RATIO_MAX = 3.0

LARGE_BYTES = 100 << 20
FILL_BYTES = 60 << 20
"""Sent of a large request at once, before it begins to drip."""

PERCENT = 10.0

SESSION_PARTITIONS = 19_000
"""A request may have 20,000 elements."""
SESSIONS = 60


def _password(user: str) -> str:
    return f"{user}-knows"


@dataclass
class Figures:
    """Figures of one attack: milliseconds, and MB of the attacked node."""

    alone_p50_ms: float
    alone_p99_ms: float
    beside_p50_ms: float
    beside_p99_ms: float
    beside_worst_ms: float
    beside_loop_p99_ms: float
    login_worst_ms: float
    grown_mb: float
    leader_stayed: bool

    @property
    def ratio(self) -> float:
        return self.beside_p99_ms / self.alone_p99_ms


# One connection


def frame(api: Api, version: int, body: bytes, client_id: str = "") -> bytes:
    """A whole request."""
    return request_head(api, version, 1, client_id, len(body)) + body


API_VERSIONS = frame(Api.API_VERSIONS, 0, b"")
METADATA = frame(Api.METADATA, 4, struct.pack(">iB", -1, 0))
"""Of all topics."""
PLAIN_HANDSHAKE = frame(Api.SASL_HANDSHAKE, 1, struct.pack(">h5s", 5, b"PLAIN"))


def receive(connection: socket.socket) -> bytes:
    """One answer. Raises ConnectionError."""
    size = struct.unpack(">i", _exactly(connection, 4))[0]
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the node has closed the connection")
        parts += part
    return bytes(parts)


def authenticate(user: str, password: str) -> bytes:
    """SaslAuthenticate, by PLAIN."""
    token = f"\0{user}\0{password}".encode()
    return frame(Api.SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)


def connect(address: tuple[str, int], user: str | None, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection, logged in unless `user` is None."""
    connection = socket.create_connection(address, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname=address[0])
    if user is not None:
        connection.sendall(PLAIN_HANDSHAKE)
        receive(connection)
        connection.sendall(authenticate(user, _password(user)))
        answer = receive(connection)
        if answer[4:6] != b"\0\0":
            raise ConnectionError(f"{user} cannot log in: error {answer[4:6].hex()}")
    return connection


# The attacks: each runs until it is killed


def _before_login(address: tuple[str, int]) -> None:
    _pipeline(address, None, API_VERSIONS)


def _after_login(address: tuple[str, int]) -> None:
    _pipeline(address, ATTACKER, API_VERSIONS)


def _above_its_quota(address: tuple[str, int]) -> None:
    _pipeline(address, ATTACKER, METADATA)


def _pipeline(address: tuple[str, int], user: str | None, request: bytes) -> None:
    """Connections that each always have requests waiting at the node, and take their answers."""
    many = request * (64 * 1024 // len(request))
    with selectors.DefaultSelector() as selector:

        def open_one() -> None:
            with suppress(OSError):
                connection = connect(address, user)
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(many))

        for _ in range(CONNECTIONS):
            open_one()
        while True:
            for key, events in selector.select(0.1):
                connection = key.fileobj
                try:
                    if events & selectors.EVENT_READ and not connection.recv(1 << 20):  # type: ignore[union-attr]
                        raise ConnectionError
                    if events & selectors.EVENT_WRITE:
                        sent = connection.send(key.data)  # type: ignore[union-attr]
                        rest = key.data[sent:] if sent < len(key.data) else memoryview(many)
                        selector.modify(connection, key.events, rest)
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(connection)
                    connection.close()  # type: ignore[union-attr]
                    open_one()
            while len(selector.get_map()) < CONNECTIONS:
                open_one()
                time.sleep(0.01)


def _coming_again(address: tuple[str, int]) -> None:
    """As many requests as are answered before a login, and then another connection."""
    with connect(address, None) as connection:
        connection.sendall(API_VERSIONS)
        answer_bytes = 4 + len(receive(connection))
    _again_and_again(address, API_VERSIONS * 20, 20 * answer_bytes)


def _connecting(address: tuple[str, int]) -> None:
    """Connections that are closed as soon as they are there."""
    _again_and_again(address, b"", 0)


def _wrong_passwords(address: tuple[str, int]) -> None:
    _again_and_again(address, PLAIN_HANDSHAKE + authenticate(HONEST, "wrong"), sys.maxsize)


def _handshakes(address: tuple[str, int]) -> None:
    """The first message of TLS, which costs the node its signature and the attacker nothing: it is always the same."""
    received, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(received, hello, server_hostname="localhost").do_handshake()
    _again_and_again(address, hello.read(), 1)


def _pages(address: tuple[str, int]) -> None:
    """The page of metrics, which is the longest, at the port of metrics and health."""
    _again_and_again(address, b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", sys.maxsize)


def _again_and_again(address: tuple[str, int], said: bytes, answer_bytes: int) -> None:
    """Connections that each say something, take so much of an answer, or what comes until they are closed, and end,
    each followed by another one."""
    with selectors.DefaultSelector() as selector:

        def open_one() -> None:
            connection = socket.socket()
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(address)
            selector.register(connection, selectors.EVENT_WRITE, 0)

        def is_done(key: selectors.SelectorKey, events: int) -> bool:
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            try:
                if events & selectors.EVENT_WRITE:
                    connection.send(said)
                    selector.modify(connection, selectors.EVENT_READ, 0)
                    return not answer_bytes
                received = key.data + len(part := connection.recv(1 << 16))
                selector.modify(connection, selectors.EVENT_READ, received)
                return not part or received >= answer_bytes
            except BlockingIOError:
                return False
            except OSError:
                return True

        for _ in range(AGAIN_CONNECTIONS):
            open_one()
        while True:
            for key, events in selector.select(0.1):
                if is_done(key, events):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    open_one()


def _dripping(address: tuple[str, int]) -> None:
    """Eight requests of 100 MB each, of which much comes at once and then a byte a second; again when one is closed."""
    head = struct.pack(">ihhih", LARGE_BYTES, Api.PRODUCE, 9, 1, 0) + b"\0"
    chunk = bytes(1 << 20)
    connections: dict[socket.socket, int] = {}
    while True:
        while len(connections) < 8:
            with suppress(OSError):
                connection = connect(address, ATTACKER)
                connection.sendall(head)
                connection.setblocking(False)
                connections[connection] = 0
        began = time.monotonic()
        while time.monotonic() - began < 1:
            for connection, sent in list(connections.items()):
                with suppress(BlockingIOError):
                    try:
                        if sent < FILL_BYTES:
                            connections[connection] += connection.send(chunk)
                    except BlockingIOError:
                        raise
                    except OSError:
                        del connections[connection]
            time.sleep(0.005)
        for connection in list(connections):
            try:
                connection.send(b"\0")
            except BlockingIOError:
                continue
            except OSError:
                del connections[connection]


def _sessions(address: tuple[str, int]) -> None:
    """Sessions of as many partitions as a request has room for, of a topic that this user may not read."""
    wanted = [fetch.FetchPartition(TOPIC, None, number, 0, 1 << 20) for number in range(SESSION_PARTITIONS)]
    body = bytes(fetch.write_request(11, fetch.FetchRequest(0, 1, 1 << 20, wanted, rack="", session_epoch=0)))
    request = frame(Api.FETCH, 11, body)
    connections = [connect(address, ATTACKER) for _ in range(SESSIONS)]
    while True:
        for connection in connections:
            connection.sendall(request)
            receive(connection)


ATTACKS: Mapping[str, Callable[[tuple[str, int]], None]] = {
    "before-login": _before_login,
    "coming-again": _coming_again,
    "connecting": _connecting,
    "wrong-passwords": _wrong_passwords,
    "handshakes": _handshakes,
    "pages": _pages,
    "after-login": _after_login,
    "dripping": _dripping,
    "sessions": _sessions,
    "above-its-quota": _above_its_quota,
}


@contextmanager
def attacked(name: str, address: tuple[str, int]) -> Iterator[None]:
    """The attack goes on in a process of its own, from before the block to behind it."""
    with subprocess.Popen([sys.executable, "-m", "bench.strangers", "--run", name, *map(str, address)]) as child:
        try:
            time.sleep(2)
            yield
            if child.poll() is not None:
                raise RuntimeError(f"the attack {name} ended by itself, with exit code {child.returncode}")
        finally:
            child.kill()


# The honest client


class Acks:
    """What the honest client saw.

    Attributes:
        took_s: how long each ack took.
        loop_s: how much of the processor's time the node's loop spent meanwhile: what else runs on the machine does not
            count in it.
    """

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.loop_s: list[float] = []


def loop_s(pid: int) -> float:
    """The processor's time of a process's first thread, which runs the loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def acks_of(
    address: tuple[str, int], partition: int, seconds: float, pid: int, tls: ssl.SSLContext | None = None
) -> Acks:
    """A record falls due every 5 ms, or when the one before it is acknowledged."""
    acks = Acks()
    batch = build_batch([Record(0, int(time.time() * 1000), None, bytes(1024))])
    topic = produce.ProduceTopic(TOPIC, None, [(partition, memoryview(batch))])
    body = b"".join(map(bytes, produce.write_request(9, produce.ProduceRequest(-1, 30_000, None, [topic]))))
    request = frame(Api.PRODUCE, 9, body)
    with connect(address, HONEST, tls) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(acks.took_s) < 10:
            spent_s, began = loop_s(pid), time.perf_counter()
            connection.sendall(request)
            receive(connection)
            acks.took_s.append(time.perf_counter() - began)
            acks.loop_s.append(loop_s(pid) - spent_s)
            time.sleep(max(0.0, EVERY_S - acks.took_s[-1]))
    return acks


def logins_s(address: tuple[str, int], tls: ssl.SSLContext | None) -> list[float]:
    """Seconds from connecting to the end of the login, for each of the honest client's logins."""
    took_s: list[float] = []
    for _ in range(LOGINS):
        began = time.perf_counter()
        with connect(address, HONEST, tls):
            took_s.append(time.perf_counter() - began)
    return took_s


def _settings(user: str, ca: str | None) -> dict[str, str]:
    return {
        "security_protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
        **({"ssl_truststore_location": ca} if ca else {}),
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": _password(user),
    }


class _Site:
    """The cluster, and the node in it that is attacked."""

    def __init__(self, cluster: DevCluster, ca: str | None) -> None:
        self._cluster = cluster
        self._tls = None if ca is None else ssl.create_default_context(cafile=ca)
        self._admin = Admin(cluster.bootstrap, **_settings(ADMIN, ca))
        self._admin.create_topics([NewTopic(TOPIC, 12, 3)])
        may_write = (f"User:{HONEST}", "*", Operation.WRITE, Permission.ALLOW)
        self._admin.create_acls([AclBinding(ResourceKind.TOPIC, TOPIC, PatternType.LITERAL, *may_write)])
        self.node = self._admin.describe_quorum().leader_id
        host, _, port = cluster.client(self.node).rpartition(":")
        self.address = host, int(port)
        [topic] = self._admin.describe_topics([TOPIC])
        self.partition = next(each.partition for each in topic.partitions if each.leader == self.node)

    def limit(self) -> None:
        """Give the attacker a quota of the loop's time."""
        entity = QuotaEntity(user=ATTACKER)
        self._admin.alter_client_quotas({entity: {QuotaKey.REQUEST_PERCENTAGE: PERCENT}})
        time.sleep(1)

    @property
    def http(self) -> tuple[str, int]:
        """The attacked node's port of metrics and health."""
        host, port = self._cluster.http(self.node).rsplit(":", 1)
        return host, int(port)

    def rss_mb(self) -> float:
        return float(psutil.Process(self._cluster.pids()[self.node]).memory_info().rss) / 1e6

    def epoch(self) -> tuple[int, int]:
        quorum = self._admin.describe_quorum()
        return quorum.leader_id, quorum.leader_epoch

    def measure(self, name: str, seconds: float) -> Figures:
        if name == "above-its-quota":
            self.limit()
        pid = self._cluster.pids()[self.node]
        alone = acks_of(self.address, self.partition, seconds, pid, self._tls)
        before, before_mb = self.epoch(), self.rss_mb()
        with attacked(name, self.http if name == "pages" else self.address):
            beside = acks_of(self.address, self.partition, seconds, pid, self._tls)
            logins = logins_s(self.address, self._tls)
            grown_mb = self.rss_mb() - before_mb
        return Figures(
            percentile_ms(alone.took_s, 0.5),
            percentile_ms(alone.took_s, 0.99),
            percentile_ms(beside.took_s, 0.5),
            percentile_ms(beside.took_s, 0.99),
            max(beside.took_s) * 1000,
            percentile_ms(beside.loop_s, 0.99),
            max(logins) * 1000,
            grown_mb,
            self.epoch() == before,
        )


@contextmanager
def site(*, tls: bool = False) -> Iterator[_Site]:
    """Three nodes whose clients log in."""
    name = "ssl" if tls else "plaintext"
    users = " ".join(f'user_{user}="{_password(user)}"' for user in (HONEST, ATTACKER, ADMIN))
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,HTTP:PLAINTEXT",
        f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{name}.plain.sasl.jaas.config": f"x.PlainLoginModule required {users};",
        "sasl.plain.without.tls": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
    }
    if tls:
        settings["listener.security.protocol.map"] = "SSL:SASL_SSL,INTERNAL:SSL,HTTP:SSL"
        settings["listener.name.ssl.ssl.client.auth"] = "none"
    with DevCluster(settings=settings, secure=tls) as cluster:
        yield _Site(cluster, str(cluster.root / CERTIFICATES / CA_FILE) if tls else None)


def show(found: Mapping[str, Figures]) -> None:
    table = Table(title="Acks of an honest client, ms; MB of the attacked node")
    for column in (
        "attack",
        "alone p50",
        "alone p99",
        "beside p50",
        "beside p99",
        "ratio",
        "worst",
        "loop p99",
        "login",
        "MB",
        "leader",
    ):
        table.add_column(column, justify="left" if column == "attack" else "right")
    for name, one in found.items():
        figures = (one.alone_p50_ms, one.alone_p99_ms, one.beside_p50_ms, one.beside_p99_ms, one.ratio)
        table.add_row(
            name,
            *(f"{value:.2f}" for value in figures),
            f"{one.beside_worst_ms:,.0f}",
            f"{one.beside_loop_p99_ms:.2f}",
            f"{one.login_worst_ms:,.0f}",
            f"{one.grown_mb:+.0f}",
            "stayed" if one.leader_stayed else "MOVED",
        )
    Console(width=120).print(table)


@click.command(help=__doc__)
@click.argument("attacks", nargs=-1, type=click.Choice(list(ATTACKS)))
@click.option("--seconds", type=click.FloatRange(1, 600), default=10, show_default=True, help="Of each measure.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(attacks: tuple[str, ...], seconds: float, output: str) -> None:
    found: dict[str, Figures] = {}
    for name in attacks or ATTACKS:
        click.echo(f"... {name}", err=True)
        with site(tls=name == "handshakes") as attacked_site:
            found[name] = attacked_site.measure(name, seconds)
    if output == "json":
        click.echo(json.dumps({name: {**asdict(one), "ratio": one.ratio} for name, one in found.items()}))
    else:
        show(found)
        click.echo(f"bound: p99 beside an attack at most {RATIO_MAX:g} times that alone, and the quorum's leader stays")
    if any(one.ratio > RATIO_MAX or not one.leader_stayed for one in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        ATTACKS[sys.argv[2]]((sys.argv[3], int(sys.argv[4])))
    else:
        main()
