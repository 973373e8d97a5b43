"""The clients' settings: Kafka's names, Kafka's defaults, one sentence each.

A setting is given as ``linger_ms=20`` or ``**{"linger.ms": 20}``; text is converted (``"20"``), so that values from a
command line or a file work as they are. An unknown key is an error that names the nearest one. docs/client-settings.md
holds a table generated from here (lab/pages/settings.py).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Self

from strandline.client.config_fields import kafka_name, parse, setting
from strandline.client.config_security import SecurityConfig
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint
from strandline.proto.secrets import shown

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""A partitioner of one's own: (topic, key, value, number of partitions) -> partition."""

Deserializer = Callable[[bytes], Any]
"""What a record's key or value means; it raises what it will for bytes that mean nothing."""

_UNLIMITED = 2**31 - 1

BATCH_SIZE = 16_384
"""Kafka's."""

BATCH_SIZE_MAX = 131_072
"""Where requests wait for one another, larger batches carry three to four times as much (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig(SecurityConfig):
    """Settings of every client."""

    title: ClassVar[str] = "every client"

    client_id: str = setting("", "Name of this client in the brokers' logs and quotas.")
    request_timeout_ms: int = setting(
        30_000, "How long a request waits for its answer before it counts as failed.", low=1
    )
    retry_backoff_ms: int = setting(100, "Wait before the first retry; doubles with each further one.", low=0)
    retry_backoff_max_ms: int = setting(1_000, "Longest wait between retries.", low=0)
    reconnect_backoff_ms: int = setting(
        50, "Wait before connecting again to an address that failed; doubles each time.", low=0
    )
    reconnect_backoff_max_ms: int = setting(1_000, "Longest wait between attempts to connect to one address.", low=0)
    socket_connection_setup_timeout_ms: int = setting(10_000, "How long a TCP connection may take to come up.", low=1)
    metadata_max_age_ms: int = setting(
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
                if name.startswith("sasl_") and name.endswith("_class"):
                    hint = "this client has no classes: leave it out, sasl.mechanism and its settings say all"
                raise ConfigError(key, value, f"there is no such setting of {cls.title}; {hint}")
            if name in values:
                raise ConfigError(key, value, "it is given twice, under Kafka's and under Python's name")
            values[name] = parse(item, value)
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(CommonConfig):
    """Settings of a producer."""

    title: ClassVar[str] = "a producer"

    acks: str = setting(
        "all", "Replicas that must have a record before it is acknowledged: 0 none, 1 the leader, all those in sync.",
        choices=("all", "-1", "0", "1"),
    )  # fmt: skip
    batch_size: int = setting(
        BATCH_SIZE, "Bytes of records, before compression, that close a partition's batch.", low=0
    )
    batch_size_max: int | None = setting(
        None,
        "Strandline's own: a batch that waits behind others of its partition grows on to so many bytes. 131072 with "
        "idempotence where batch.size is its default, otherwise batch.size.",
        low=0,
    )
    linger_ms: float = setting(5.0, "How long a batch waits for company, unless batch.size is met first.", low=0)
    buffer_memory: int = setting(
        33_554_432, "Bytes of records that may wait or be under way; above it send blocks.", low=1
    )
    max_block_ms: int = setting(
        60_000, "How long send blocks for metadata and memory, all in all, before it raises.", low=0
    )
    max_in_flight_requests_per_connection: int = setting(
        5, "Produce requests out at once per broker; at most 5 with idempotence, which keeps order.", low=1
    )
    max_request_size: int = setting(1_048_576, "Largest record, and largest produce request, in bytes.", low=1)
    delivery_timeout_ms: int = setting(
        120_000, "From send to acknowledgement, retries included; then the record fails with DeliveryTimeout.", low=1
    )
    retries: int = setting(_UNLIMITED, "Attempts after the first one; delivery.timeout.ms is the better limit.", low=0)
    enable_idempotence: bool | None = setting(
        None, "Each record once and in order in spite of retries; on unless acks is 0 or 1.",
    )  # fmt: skip
    compression_type: str = setting(
        "none", "Codec of whole batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    metadata_max_idle_ms: int = setting(
        300_000, "A topic not sent to for this long is dropped from the metadata.", low=1
    )
    partitioner: Partitioner | None = setting(  # noqa: RUF009  # a dataclass field, as all the others
        None,
        "Own function (topic, key, value, number of partitions) -> partition; without one: murmur2 of the key as in "
        "Kafka's Java client, and sticky batches spread evenly for records without a key.",
    )

    @property
    def acks_number(self) -> int:
        """`acks` as it stands on the wire."""
        return -1 if self.acks in ("all", "-1") else int(self.acks)

    @property
    def largest_batch(self) -> int:
        """`batch.size.max`, or what it is where it was not set."""
        if self.batch_size_max is not None:
            return self.batch_size_max
        if not self.idempotent or self.batch_size != BATCH_SIZE:
            return self.batch_size  # a batch that is too large after all is split, and without sequences overtaken
        return min(BATCH_SIZE_MAX, self.max_request_size)

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
        if self.batch_size_max is not None and self.batch_size_max < self.batch_size:
            raise ConfigError("batch.size.max", self.batch_size_max, f"at least batch.size = {self.batch_size}")
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

    group_id: str | None = setting(None, "The group to join with subscribe(), or to commit for with assign().")
    group_instance_id: str | None = setting(
        None, "A name that outlives restarts (static member): a restart within session.timeout.ms moves no partition.",
    )  # fmt: skip
    group_protocol: str = setting(
        "classic",
        "How a group agrees: classic (one of its members shares out) or consumer (KIP-848: the coordinator does, and "
        "says session timeout and heartbeat interval). A group moves from one to the other member by member.",
        choices=("classic", "consumer"),
    )
    group_remote_assignor: str | None = setting(
        None, "With group.protocol=consumer: the coordinator's assignor that is wished for, uniform or range."
    )
    session_timeout_ms: int = setting(
        45_000, "A member that the coordinator has not heard of for so long is thrown out.", low=1
    )
    heartbeat_interval_ms: int = setting(
        3_000,
        "Time between heartbeats, which go on while records are handled; at most half of session.timeout.ms.",
        low=1,
    )
    max_poll_interval_ms: int = setting(
        300_000, "A member that does not poll for so long leaves its group; also how long a rebalance waits for one.",
        low=1,
    )  # fmt: skip
    partition_assignment_strategy: str = setting(
        "range,cooperative-sticky",
        "What this member offers, best first: range, roundrobin, sticky, cooperative-sticky. Cooperative (partitions "
        "that stay are read on during a rebalance) only if cooperative-sticky stands alone.",
    )
    enable_auto_commit: bool = setting(
        True, "Commit by itself what was handed out and done: never what was merely fetched or is being handled."
    )
    auto_commit_interval_ms: int = setting(5_000, "Time between automatic commits.", low=1)
    auto_offset_reset: str = setting(
        "latest",
        "Where to start without a position, or from one outside the log: earliest, latest, none (raise), or "
        "by_duration:PT1H (that long ago).",
    )
    max_poll_records: int = setting(500, "Most records one poll returns.", low=1)
    fetch_min_bytes: int = setting(1, "A broker answers a fetch as soon as it has this many bytes.", low=0)
    fetch_max_wait_ms: int = setting(500, "Longest a broker holds a fetch that found less than fetch.min.bytes.", low=0)
    fetch_max_bytes: int = setting(
        52_428_800, "Most bytes of one fetch response, and of records waiting in this client for a poll.", low=1
    )
    max_partition_fetch_bytes: int = setting(1_048_576, "Most bytes a fetch returns per partition.", low=1)
    check_crcs: bool = setting(True, "Verify each batch's CRC-32C.")
    isolation_level: str = setting(
        "read_uncommitted", "read_committed hides records of aborted and open transactions.",
        choices=("read_uncommitted", "read_committed"),
    )  # fmt: skip
    client_rack: str = setting("", "This client's rack; a broker may then name a nearer replica to read from.")
    key_deserializer: Deserializer | None = setting(  # noqa: RUF009  # a dataclass field, as all the others
        None, "Own function bytes -> key, called when a record is handed out; one without a key stays without."
    )
    value_deserializer: Deserializer | None = setting(  # noqa: RUF009
        None, "Own function bytes -> value; what it raises, poll raises as DeserializationFailed. None stays None."
    )
    default_api_timeout_ms: int = setting(
        60_000,
        "How long a call without a limit of its own may take, all in all, before it raises ClientTimeout.",
        low=1,
    )

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

    default_api_timeout_ms: int = setting(
        60_000, "How long a call may take, all in all, before it raises ClientTimeout.", low=1
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


def _shown(item: Field[Any], value: object) -> str:
    value = shown(item.name, value)
    if value is None:
        shown_as = {
            "enable_idempotence": "true with acks=all",
            "batch_size_max": f"{BATCH_SIZE_MAX} with batch.size={BATCH_SIZE} and idempotence",
        }
        return shown_as.get(item.name, "-")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == "":
        return "(empty)"
    return f"{value:g}" if isinstance(value, float) else str(value)
