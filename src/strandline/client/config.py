"""The clients' settings: Kafka's names, Kafka's defaults, one sentence each.

A setting is given as ``linger_ms=20`` or ``**{"linger.ms": 20}``; text is converted (``"20"``), so that values from a
command line or a file work as they are. An unknown key is an error that names the nearest one. docs/client-settings.md
holds a table generated from here (lab/pages/settings.py).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar

from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint
from strandline.proto.secrets import resolved, shown
from strandline.proto.tls import TlsSettings

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""A partitioner of one's own: (topic, key, value, number of partitions) -> partition."""

Deserializer = Callable[[bytes], Any]
"""What a record's key or value means; it raises what it will for bytes that mean nothing."""

_UNLIMITED = 2**31 - 1


def _setting(
    default: object,
    sentence: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
) -> Any:
    metadata = {"sentence": sentence, "low": low, "high": high, "choices": tuple(choices)}
    return field(default=default, metadata=metadata, repr=not secret)


def kafka_name(python_name: str) -> str:
    """`linger_ms` -> `linger.ms`."""
    return python_name.replace("_", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig:
    """Settings of every client."""

    title: ClassVar[str] = "every client"

    client_id: str = _setting("", "Name of this client in the brokers' logs and quotas.")
    security_protocol: str = _setting(
        "PLAINTEXT", "How to talk to the brokers: PLAINTEXT, SSL for TLS, SASL_PLAINTEXT or SASL_SSL with a login too.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism: str = _setting(
        "", "With SASL: how to log in. PLAIN sends the password itself, so only over TLS.",
        choices=("", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"),
    )  # fmt: skip
    sasl_username: str = _setting("", "With SASL: the user's name, where no sasl.jaas.config has it.")
    sasl_password: str = _setting(
        "",
        "The user's password: best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}.",
        secret=True,
    )
    sasl_oauthbearer_token_endpoint_url: str = _setting(
        "",
        "With OAUTHBEARER: file:///path of the token, read anew for each connection. What renews the token writes it "
        "there; this client asks no address for one.",
    )
    sasl_jaas_config: str = _setting(
        "",
        'User and password as Kafka\'s clients have them: ...ScramLoginModule required username="..." password="..."; '
        "(PlainLoginModule for PLAIN).",
        secret=True,
    )
    ssl_truststore_location: str = _setting(
        "", "With TLS: a PEM file of the CAs whose brokers are trusted; without one those of the system are."
    )
    ssl_truststore_certificates: str = _setting("", "The same as PEM text, where no file is named.")
    ssl_truststore_type: str = _setting("PEM", "The format of the truststore: PEM alone.")
    ssl_endpoint_identification_algorithm: str = _setting(
        "https", "https: the broker's certificate must name the host that is connected to. Empty: no such check.",
        choices=("https", ""),
    )  # fmt: skip
    ssl_keystore_location: str = _setting(
        "", "A PEM file with this client's private key and certificate chain, where brokers ask for one."
    )
    ssl_keystore_certificate_chain: str = _setting(
        "", "The client's certificate chain as PEM text, where no file is named."
    )
    ssl_keystore_key: str = _setting("", "The private key of that chain as PEM text.", secret=True)
    ssl_keystore_type: str = _setting("PEM", "The format of the keystore: PEM alone.")
    ssl_key_password: str = _setting(
        "",
        "The password of the private key: best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}, so "
        "that it stands in no program and on no command line.",
        secret=True,
    )
    ssl_enabled_protocols: str = _setting("TLSv1.2,TLSv1.3", "The versions of TLS: TLSv1.2, TLSv1.3 or both.")
    ssl_cipher_suites: str = _setting(
        "", "Cipher suites of TLS 1.2 by their names in Java or OpenSSL; without: those with forward secrecy."
    )
    request_timeout_ms: int = _setting(
        30_000, "How long a request waits for its answer before it counts as failed.", low=1
    )
    retry_backoff_ms: int = _setting(100, "Wait before the first retry; doubles with each further one.", low=0)
    retry_backoff_max_ms: int = _setting(1_000, "Longest wait between retries.", low=0)
    reconnect_backoff_ms: int = _setting(
        50, "Wait before connecting again to an address that failed; doubles each time.", low=0
    )
    reconnect_backoff_max_ms: int = _setting(1_000, "Longest wait between attempts to connect to one address.", low=0)
    socket_connection_setup_timeout_ms: int = _setting(10_000, "How long a TCP connection may take to come up.", low=1)
    metadata_max_age_ms: int = _setting(
        300_000, "Metadata older than this is fetched anew, so that new brokers and partitions are found.", low=1
    )

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """Build from Kafka's or Python's names.

        Raises:
            ConfigError: an unknown key (names the nearest), a value that does not parse or lies out of range, or
                settings that exclude one another.
        """
        known = {item.name: item for item in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in settings.items():
            name = key.replace(".", "_")
            item = known.get(name)
            if item is None:
                near = difflib.get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {kafka_name(near[0])}?"
                    if near
                    else f"`strandline config client {cls.title.split()[1]}` lists them"
                )
                if name.startswith("transaction"):
                    hint = "transactions are not served yet, and enable.idempotence stores each record once"
                raise ConfigError(key, value, f"there is no such setting of {cls.title}; {hint}")
            if name in values:
                raise ConfigError(key, value, "it is given twice, under Kafka's and under Python's name")
            values[name] = _parse(item, value)
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(CommonConfig):
    """Settings of a producer."""

    title: ClassVar[str] = "a producer"

    acks: str = _setting(
        "all", "Replicas that must have a record before it is acknowledged: 0 none, 1 the leader, all those in sync.",
        choices=("all", "-1", "0", "1"),
    )  # fmt: skip
    batch_size: int = _setting(16_384, "Bytes of records, before compression, that close a partition's batch.", low=0)
    linger_ms: float = _setting(5.0, "How long a batch waits for company, unless batch.size is met first.", low=0)
    buffer_memory: int = _setting(
        33_554_432, "Bytes of records that may wait or be under way; above it send blocks.", low=1
    )
    max_block_ms: int = _setting(60_000, "How long send blocks for metadata or memory before it raises.", low=0)
    max_in_flight_requests_per_connection: int = _setting(
        5, "Produce requests out at once per broker; at most 5 with idempotence, which keeps order.", low=1
    )
    max_request_size: int = _setting(1_048_576, "Largest record, and largest produce request, in bytes.", low=1)
    delivery_timeout_ms: int = _setting(
        120_000, "From send to acknowledgement, retries included; then the record fails with DeliveryTimeout.", low=1
    )
    retries: int = _setting(_UNLIMITED, "Attempts after the first one; delivery.timeout.ms is the better limit.", low=0)
    enable_idempotence: bool | None = _setting(
        None, "Each record once and in order in spite of retries; on unless acks is 0 or 1.",
    )  # fmt: skip
    compression_type: str = _setting(
        "none", "Codec of whole batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    metadata_max_idle_ms: int = _setting(
        300_000, "A topic not sent to for this long is dropped from the metadata.", low=1
    )
    partitioner: Partitioner | None = _setting(  # noqa: RUF009  # a dataclass field, as all the others
        None,
        "Own function (topic, key, value, number of partitions) -> partition; without one: murmur2 of the key as in "
        "Kafka's Java client, and sticky batches spread evenly for records without a key.",
    )

    @property
    def acks_number(self) -> int:
        """`acks` as it stands on the wire."""
        return -1 if self.acks in ("all", "-1") else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """Whether sequences are sent: the default follows `acks`, as in Kafka."""
        return self.acks_number == -1 if self.enable_idempotence is None else self.enable_idempotence

    def __post_init__(self) -> None:
        if self.enable_idempotence and self.acks_number != -1:
            raise ConfigError("acks", self.acks, "enable.idempotence needs acks=all")
        in_flight = self.max_in_flight_requests_per_connection
        if self.idempotent and in_flight > 5:
            raise ConfigError(
                "max.in.flight.requests.per.connection", in_flight,
                "at most 5 with enable.idempotence, for brokers remember 5 batches per producer; "
                "set enable.idempotence=false to have more, and duplicates and reordering with it",
            )  # fmt: skip
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigError(
                "delivery.timeout.ms", self.delivery_timeout_ms,
                f"at least linger.ms + request.timeout.ms = {self.linger_ms + self.request_timeout_ms:g}",
            )  # fmt: skip


_OF_CLASSIC_MEMBERS = ("session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy")

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(CommonConfig):
    """Settings of a consumer."""

    title: ClassVar[str] = "a consumer"

    group_id: str | None = _setting(None, "The group to join with subscribe(), or to commit for with assign().")
    group_instance_id: str | None = _setting(
        None, "A name that outlives restarts (static member): a restart within session.timeout.ms moves no partition.",
    )  # fmt: skip
    group_protocol: str = _setting(
        "classic",
        "How a group agrees: classic (one of its members shares out) or consumer (KIP-848: the coordinator does, and "
        "says session timeout and heartbeat interval). A group moves from one to the other member by member.",
        choices=("classic", "consumer"),
    )
    group_remote_assignor: str | None = _setting(
        None, "With group.protocol=consumer: the coordinator's assignor that is wished for, uniform or range."
    )
    session_timeout_ms: int = _setting(
        45_000, "A member that the coordinator has not heard of for so long is thrown out.", low=1
    )
    heartbeat_interval_ms: int = _setting(
        3_000,
        "Time between heartbeats, which go on while records are handled; at most half of session.timeout.ms.",
        low=1,
    )
    max_poll_interval_ms: int = _setting(
        300_000, "A member that does not poll for so long leaves its group; also how long a rebalance waits for one.",
        low=1,
    )  # fmt: skip
    partition_assignment_strategy: str = _setting(
        "range,cooperative-sticky",
        "What this member offers, best first: range, roundrobin, sticky, cooperative-sticky. Cooperative (partitions "
        "that stay are read on during a rebalance) only if cooperative-sticky stands alone.",
    )
    enable_auto_commit: bool = _setting(
        True, "Commit by itself what was handed out and done: never what was merely fetched or is being handled."
    )
    auto_commit_interval_ms: int = _setting(5_000, "Time between automatic commits.", low=1)
    auto_offset_reset: str = _setting(
        "latest",
        "Where to start without a position, or from one outside the log: earliest, latest, none (raise), or "
        "by_duration:PT1H (that long ago).",
    )
    max_poll_records: int = _setting(500, "Most records one poll returns.", low=1)
    fetch_min_bytes: int = _setting(1, "A broker answers a fetch as soon as it has this many bytes.", low=0)
    fetch_max_wait_ms: int = _setting(
        500, "Longest a broker holds a fetch that found less than fetch.min.bytes.", low=0
    )
    fetch_max_bytes: int = _setting(
        52_428_800, "Most bytes of one fetch response, and of records waiting in this client for a poll.", low=1
    )
    max_partition_fetch_bytes: int = _setting(1_048_576, "Most bytes a fetch returns per partition.", low=1)
    check_crcs: bool = _setting(True, "Verify each batch's CRC-32C.")
    isolation_level: str = _setting(
        "read_uncommitted", "read_committed hides records of aborted and open transactions.",
        choices=("read_uncommitted", "read_committed"),
    )  # fmt: skip
    client_rack: str = _setting("", "This client's rack; a broker may then name a nearer replica to read from.")
    key_deserializer: Deserializer | None = _setting(  # noqa: RUF009  # a dataclass field, as all the others
        None, "Own function bytes -> key, called when a record is handed out; one without a key stays without."
    )
    value_deserializer: Deserializer | None = _setting(  # noqa: RUF009
        None, "Own function bytes -> value; what it raises, poll raises as DeserializationFailed. None stays None."
    )
    default_api_timeout_ms: int = _setting(60_000, "How long a question to the leaders goes on retrying.", low=1)

    def __post_init__(self) -> None:
        if self.group_id == "":
            raise ConfigError("group.id", self.group_id, "a name of at least one character, or none at all")
        if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms", self.heartbeat_interval_ms,
                f"at most half of session.timeout.ms={self.session_timeout_ms}: one lost heartbeat is no death",
            )  # fmt: skip
        self._check_protocol()
        for name in self.strategies:
            if name not in STRATEGIES:
                raise ConfigError("partition.assignment.strategy", name, "some of " + ", ".join(STRATEGIES))
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            duration_ms(self.auto_offset_reset)

    def _check_protocol(self) -> None:
        if self.group_protocol == "classic":
            if self.group_remote_assignor is not None:
                raise ConfigError(
                    "group.remote.assignor", self.group_remote_assignor, "none without group.protocol=consumer"
                )
            return
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _OF_CLASSIC_MEMBERS and value != item.default:
                raise ConfigError(kafka_name(item.name), value, "with group.protocol=consumer the brokers decide that")

    @property
    def strategies(self) -> tuple[str, ...]:
        """`partition_assignment_strategy` one by one."""
        return tuple(dict.fromkeys(part.strip() for part in self.partition_assignment_strategy.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(CommonConfig):
    """Settings of an admin client."""

    title: ClassVar[str] = "an admin client"

    default_api_timeout_ms: int = _setting(
        60_000, "How long a call goes on retrying before it raises ClientTimeout.", low=1
    )


_DURATION = re.compile(r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def duration_ms(text: str) -> int:
    """Milliseconds of ``by_duration:P1DT2H3M4S`` (ISO 8601, KIP-1106).

    Raises:
        ConfigError: it is not of that form, or no unit is given.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ConfigError("auto.offset.reset", text, "one of earliest, latest, none, or by_duration:PT1H and the like")
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


_FUNCTIONS = {
    "Partitioner": "a function (topic, key, value, number of partitions) -> partition",
    "Deserializer": "a function (bytes) -> what they mean",
}


def _parse(item: Field[Any], value: object) -> Any:
    name = kafka_name(item.name)
    kind = str(item.type)
    if value is None and "None" in kind:
        return None
    parsed: Any
    if kind.startswith("bool"):
        parsed = _parse_bool(name, value)
    elif kind in ("int", "float"):
        parsed = _parse_number(name, value, int if kind == "int" else float)
        low, high = item.metadata["low"], item.metadata["high"]
        if (low is not None and parsed < low) or (high is not None and parsed > high):
            allowed = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
            raise ConfigError(name, value, allowed)
    elif kind.startswith(tuple(_FUNCTIONS)):
        if not callable(value):
            raise ConfigError(name, value, _FUNCTIONS[kind.partition(" ")[0]])
        parsed = value
    else:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(name, value, "text")
        parsed = str(value)
        choices = item.metadata["choices"]
        if choices and parsed not in choices:
            raise ConfigError(name, value, "one of " + ", ".join(choice or "nothing" for choice in choices))
    return parsed


def _parse_bool(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(name, value, "true or false")


_Number = TypeVar("_Number", int, float)


def _parse_number(name: str, value: object, kind: type[_Number]) -> _Number:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(name, value, "a number")
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        raise ConfigError(name, value, "a whole number" if kind is int else "a number") from None
    if math.isnan(number) or (not isinstance(value, str) and number != value):
        raise ConfigError(name, value, "a whole number" if kind is int else "a number")
    return number


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """``"host:port,host:port"`` or a sequence of them; a port left out is 9092; ``[::1]:9092`` for IPv6.

    Raises:
        ConfigError: no address, or one that does not parse.
    """
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    endpoints = []
    for text in (part.strip() for part in parts):
        if not text:
            continue
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]\s/]+))(?::(\d{1,5}))?", text)
        if match is None or not 0 < int(match.group(3) or 9092) < 65536:
            raise ConfigError("bootstrap.servers", text, "host:port, several of them separated by commas")
        endpoints.append(Endpoint(match.group(1) or match.group(2), int(match.group(3) or 9092)))
    if not endpoints:
        raise ConfigError("bootstrap.servers", bootstrap, "at least one host:port")
    return tuple(endpoints)


def effective_settings(config: CommonConfig) -> dict[str, tuple[str, bool, str]]:
    """Every setting of a client by Kafka's name: its value as text, whether that is the default, and its sentence."""
    return {
        kafka_name(item.name): (
            _shown(item, getattr(config, item.name)),
            getattr(config, item.name) == item.default,
            item.metadata["sentence"],
        )
        for item in fields(config)
    }


def tls_settings(config: CommonConfig) -> TlsSettings | None:
    """The client's end of TLS; None for a client in plaintext, whose `ssl.` settings have no effect.

    Raises:
        ConfigError: a setting refers to what is not there.
    """
    if not config.security_protocol.endswith("SSL"):
        return None
    texts: dict[str, str] = {}
    for item in fields(TlsSettings):
        name = f"ssl_{item.name}"
        if name in CommonConfig.__dataclass_fields__:
            try:
                texts[item.name] = resolved(getattr(config, name))
            except ValueError as error:
                raise ConfigError(kafka_name(name), getattr(config, name), str(error)) from None
    return TlsSettings(**texts)


def _shown(item: Field[Any], value: object) -> str:
    value = shown(item.name, value)
    if value is None:
        return {"enable_idempotence": "true with acks=all"}.get(item.name, "-")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == "":
        return "(empty)"
    return f"{value:g}" if isinstance(value, float) else str(value)
