"""The clients' settings: Kafka's names, Kafka's defaults, one sentence each.

A setting is given as ``linger_ms=20`` or ``**{"linger.ms": 20}``; text is converted (``"20"``), so that values from a
command line or a file work as they are. An unknown key is an error that names the nearest one. docs/client-settings.md
holds a table generated from here, and strandline/client/settings.py the types of the keyword arguments
(lab/pages/settings.py).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint
from strandline.proto.secrets import shown
from strandline.proto.settings import (
    INT32_MAX,
    Scope,
    Setting,
    Settings,
    boolean,
    milliseconds,
    number,
    optional,
    size,
    string,
    whole,
    word,
)

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""A partitioner of one's own: (topic, key, value, number of partitions) -> partition."""

Deserializer = Callable[[bytes], Any]
"""Function that converts the bytes of a record's key or value to an object. It may raise any exception for bytes that
it cannot convert."""

BATCH_SIZE = 16_384
"""Kafka's."""

BATCH_SIZE_MAX = 131_072
"""Maximum default batch size in bytes. Where requests wait for one another, larger batches carry three to four times as
much (docs/benchmarks.md)."""


def _function(name: str, sentence: str, takes: str, shape: str) -> Setting[Any]:
    """A function that the program brings along."""
    allowed = f"a function {shape}"

    def read(key: str, value: object) -> object:
        if value is not None and not callable(value):
            raise ConfigError(key, value, allowed)
        return value

    return Setting(name, None, sentence, read, allowed, takes=f"{takes} | None")


class SecurityConfig(Settings, scope=Scope.CLIENT):
    """Settings of every client: how it speaks to brokers, and who it is."""

    security_protocol = word(
        "security.protocol",
        "PLAINTEXT",
        "How to talk to the brokers: PLAINTEXT, SSL for TLS, SASL_PLAINTEXT or SASL_SSL with a login too.",
        "PLAINTEXT",
        "SSL",
        "SASL_PLAINTEXT",
        "SASL_SSL",
    )
    sasl_mechanism = word(
        "sasl.mechanism",
        "",
        "With SASL: how to log in. PLAIN sends the password itself, so only over TLS.",
        "",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        "PLAIN",
        "OAUTHBEARER",
    )
    sasl_username = string("sasl.username", "", "With SASL: the user's name, where no sasl.jaas.config has it.")
    sasl_password = string(
        "sasl.password",
        "",
        "The user's password: best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}.",
    )
    sasl_jaas_config = string(
        "sasl.jaas.config",
        "",
        'The login as Kafka\'s clients have it: ...ScramLoginModule required username="..." password="..."; '
        '(PlainLoginModule for PLAIN), or ...OAuthBearerLoginModule required clientId="..." clientSecret="..." '
        'scope="...";.',
    )
    sasl_oauthbearer_token_endpoint_url = string(
        "sasl.oauthbearer.token.endpoint.url",
        "",
        "With OAUTHBEARER: where tokens come from. https://...: the token endpoint of an OAuth server, asked by client "
        "credentials (http:// on this machine alone). file:///path of a token, read anew for each connection, that "
        "something else renews there.",
    )
    sasl_oauthbearer_client_credentials_client_id = string(
        "sasl.oauthbearer.client.credentials.client.id",
        "",
        "The client's id at the token endpoint, where no sasl.jaas.config has it (clientId).",
    )
    sasl_oauthbearer_client_credentials_client_secret = string(
        "sasl.oauthbearer.client.credentials.client.secret",
        "",
        "Its secret (clientSecret): best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}.",
    )
    sasl_oauthbearer_scope = string(
        "sasl.oauthbearer.scope", "", "What the token is to allow, in words of the token endpoint (scope)."
    )
    sasl_oauthbearer_header_urlencode = boolean(
        "sasl.oauthbearer.header.urlencode",
        False,
        "Write the client's id and secret URL-encoded into the request, as RFC 6749 has it and some servers want.",
    )
    sasl_login_connect_timeout_ms = milliseconds(
        "sasl.login.connect.timeout.ms", 10_000, "How long the connection to the token endpoint may take to come up."
    )
    sasl_login_read_timeout_ms = milliseconds(
        "sasl.login.read.timeout.ms", 10_000, "How long the token endpoint may take for its whole answer."
    )
    sasl_login_retry_backoff_ms = milliseconds(
        "sasl.login.retry.backoff.ms",
        100,
        "Wait before the token endpoint is asked again after it gave no token; doubles each time.",
        low=0,
    )
    sasl_login_retry_backoff_max_ms = milliseconds(
        "sasl.login.retry.backoff.max.ms", 10_000, "Longest wait between such attempts.", low=0
    )
    sasl_login_refresh_window_factor = number(
        "sasl.login.refresh.window.factor", "0.8", "A token is renewed after this part of its time.", low=0.5, high=1.0
    )
    sasl_login_refresh_window_jitter = number(
        "sasl.login.refresh.window.jitter",
        "0.05",
        "Up to this part of its time later: not all clients at once.",
        low=0.0,
        high=0.25,
    )
    sasl_login_refresh_min_period_seconds = whole(
        "sasl.login.refresh.min.period.seconds",
        60,
        "Not sooner than this after it came; without effect, as the buffer, on a token that holds for less than both.",
        low=0,
        high=900,
        unit="s",
    )
    sasl_login_refresh_buffer_seconds = whole(
        "sasl.login.refresh.buffer.seconds",
        300,
        "And so long before it ends at the latest.",
        low=0,
        high=3600,
        unit="s",
    )
    ssl_truststore_location = string(
        "ssl.truststore.location",
        "",
        "With TLS: a PEM file of the CAs whose brokers are trusted; without one those of the system are.",
    )
    ssl_truststore_certificates = string(
        "ssl.truststore.certificates", "", "The same as PEM text, where no file is named."
    )
    ssl_truststore_type = string("ssl.truststore.type", "PEM", "The format of the truststore: PEM alone.")
    ssl_endpoint_identification_algorithm = word(
        "ssl.endpoint.identification.algorithm",
        "https",
        "https: the broker's certificate must name the host that is connected to. Empty: no such check.",
        "https",
        "",
    )
    ssl_keystore_location = string(
        "ssl.keystore.location",
        "",
        "A PEM file with this client's private key and certificate chain, where brokers ask for one.",
    )
    ssl_keystore_certificate_chain = string(
        "ssl.keystore.certificate.chain", "", "The client's certificate chain as PEM text, where no file is named."
    )
    ssl_keystore_key = string("ssl.keystore.key", "", "The private key of that chain as PEM text.")
    ssl_keystore_type = string("ssl.keystore.type", "PEM", "The format of the keystore: PEM alone.")
    ssl_key_password = string(
        "ssl.key.password",
        "",
        "The password of the private key: best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}, so "
        "that it stands in no program and on no command line.",
    )
    ssl_enabled_protocols = string(
        "ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "The versions of TLS: TLSv1.2, TLSv1.3 or both."
    )
    ssl_cipher_suites = string(
        "ssl.cipher.suites",
        "",
        "Cipher suites of TLS 1.2 by their names in Java or OpenSSL; without: those with forward secrecy.",
    )


class CommonConfig(SecurityConfig):
    """Settings of every client."""

    title: ClassVar[str] = "every client"

    client_id = string("client.id", "", "Name of this client in the brokers' logs and quotas.")
    request_timeout_ms = milliseconds(
        "request.timeout.ms", 30_000, "How long a request waits for its answer before it counts as failed."
    )
    retry_backoff_ms = milliseconds(
        "retry.backoff.ms", 100, "Wait before the first retry; doubles with each further one.", low=0
    )
    retry_backoff_max_ms = milliseconds("retry.backoff.max.ms", 1_000, "Longest wait between retries.", low=0)
    reconnect_backoff_ms = milliseconds(
        "reconnect.backoff.ms", 50, "Wait before connecting again to an address that failed; doubles each time.", low=0
    )
    reconnect_backoff_max_ms = milliseconds(
        "reconnect.backoff.max.ms", 1_000, "Longest wait between attempts to connect to one address.", low=0
    )
    socket_connection_setup_timeout_ms = milliseconds(
        "socket.connection.setup.timeout.ms", 10_000, "How long a TCP connection may take to come up."
    )
    metadata_max_age_ms = milliseconds(
        "metadata.max.age.ms",
        300_000,
        "Metadata older than this is fetched anew, so that new brokers and partitions are found.",
    )
    metadata_cluster_check_enable = boolean(
        "metadata.cluster.check.enable",
        True,
        "Tell brokers which broker of which cluster is expected at their address (KIP-1242); where another answers, "
        "it counts as not answering.",
    )

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Read settings under Kafka's or Python's names.

        Raises:
            ConfigError: an unknown key (names the nearest), a value that does not parse or lies out of range, or
                settings that exclude one another.
        """
        given: dict[str, object] = {}
        for key, value in settings.items():
            row = self.attributes.get(key.replace(".", "_"))
            if row is None:
                raise ConfigError(key, value, f"there is no such setting of {self.title}; {self._hint(key)}")
            if row.name in given:
                raise ConfigError(key, value, "it is given twice, under Kafka's and under Python's name")
            given[row.name] = value
        super().__init__(given)
        self._check_together()

    def _hint(self, key: str) -> str:
        """Advice for a setting that does not exist."""
        name = key.replace(".", "_")
        if name.startswith("sasl_") and name.endswith("_class"):
            return "this client has no classes: leave it out, sasl.mechanism and its settings say all"
        near = difflib.get_close_matches(key.replace("_", "."), self.rows, n=1)
        if near:
            return f"did you mean {near[0]}?"
        return f"`strandline config client {self.title.split()[1]}` lists them"

    def _check_together(self) -> None:
        """Check settings that exclude one another. Raises ConfigError."""


class ProducerConfig(CommonConfig):
    """Settings of a producer."""

    title: ClassVar[str] = "a producer"

    acks = word(
        "acks",
        "all",
        "Replicas that must have a record before it is acknowledged: 0 none, 1 the leader, all those in sync.",
        "all",
        "-1",
        "0",
        "1",
        takes="str | int",
    )
    batch_size = size(
        "batch.size", BATCH_SIZE, "Bytes of records, before compression, that close a partition's batch.", low=0
    )
    batch_size_max = optional(
        size(
            "batch.size.max",
            None,
            "Strandline's own: a batch that waits behind others of its partition grows on to so many bytes. 131072 "
            "with idempotence where batch.size is its default, otherwise batch.size.",
            low=0,
        )
    )
    linger_ms = number(
        "linger.ms", "5", "How long a batch waits for company, unless batch.size is met first.", low=0, unit="ms"
    )
    buffer_memory = size(
        "buffer.memory", 33_554_432, "Bytes of records that may wait or be under way; above it send blocks."
    )
    max_block_ms = milliseconds(
        "max.block.ms", 60_000, "How long send blocks for metadata and memory, all in all, before it raises.", low=0
    )
    max_in_flight_requests_per_connection = whole(
        "max.in.flight.requests.per.connection",
        5,
        "Produce requests out at once per broker; at most 5 with idempotence, which keeps order.",
        low=1,
    )
    max_request_size = size("max.request.size", 1_048_576, "Largest record, and largest produce request, in bytes.")
    delivery_timeout_ms = milliseconds(
        "delivery.timeout.ms",
        120_000,
        "From send to acknowledgement, retries included; then the record fails with DeliveryTimeout.",
    )
    retries = whole(
        "retries", INT32_MAX, "Attempts after the first one; delivery.timeout.ms is the better limit.", low=0
    )
    enable_idempotence = optional(
        boolean(
            "enable.idempotence", False, "Each record once and in order in spite of retries; on unless acks is 0 or 1."
        )
    )
    compression_type = word(
        "compression.type", "none", "Codec of whole batches.", "none", "gzip", "snappy", "lz4", "zstd"
    )
    metadata_max_idle_ms = milliseconds(
        "metadata.max.idle.ms", 300_000, "A topic not sent to for this long is dropped from the metadata."
    )
    transactional_id = optional(
        string(
            "transactional.id",
            None,
            "Makes transactions, under a name that outlives restarts; a newer producer of that name fences this one.",
        )
    )
    transaction_timeout_ms = milliseconds(
        "transaction.timeout.ms",
        60_000,
        "The coordinator aborts a transaction that is open for longer; at most its transaction.max.timeout.ms.",
    )
    partitioner: Setting[Partitioner | None] = _function(
        "partitioner",
        "Own function (topic, key, value, number of partitions) -> partition; without one: murmur2 of the key as in "
        "Kafka's Java client, and sticky batches spread evenly for records without a key.",
        "Partitioner",
        "(topic, key, value, number of partitions) -> partition",
    )

    @property
    def acks_number(self) -> int:
        """`acks` as the number on the wire."""
        return -1 if self.acks in ("all", "-1") else int(self.acks)

    @property
    def largest_batch(self) -> int:
        """`batch.size.max`, or its default if it is not set."""
        if self.batch_size_max is not None:
            return self.batch_size_max
        if not self.idempotent or self.batch_size != BATCH_SIZE:
            return self.batch_size  # a batch that is too large after all is split, and without sequences overtaken
        return min(BATCH_SIZE_MAX, self.max_request_size)

    @property
    def idempotent(self) -> bool:
        """Whether sequences are sent: the default follows `acks`, as in Kafka."""
        return self.acks_number == -1 if self.enable_idempotence is None else self.enable_idempotence

    def _check_together(self) -> None:
        if self.transactional_id == "":
            raise ConfigError("transactional.id", "", "a name of at least one character, or none at all")
        if self.transactional_id is not None and not self.idempotent:
            if self.acks_number != -1:
                raise ConfigError("acks", self.acks, "transactional.id needs acks=all")
            raise ConfigError("enable.idempotence", False, "transactional.id needs it")
        if self.enable_idempotence and self.acks_number != -1:
            raise ConfigError("acks", self.acks, "enable.idempotence needs acks=all")
        in_flight = self.max_in_flight_requests_per_connection
        if self.idempotent and in_flight > 5:
            raise ConfigError(
                "max.in.flight.requests.per.connection",
                in_flight,
                "at most 5 with enable.idempotence, for brokers remember 5 batches per producer; "
                "set enable.idempotence=false to have more, and duplicates and reordering with it",
            )
        if self.batch_size_max is not None and self.batch_size_max < self.batch_size:
            raise ConfigError("batch.size.max", self.batch_size_max, f"at least batch.size = {self.batch_size}")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigError(
                "delivery.timeout.ms",
                self.delivery_timeout_ms,
                f"at least linger.ms + request.timeout.ms = {self.linger_ms + self.request_timeout_ms:g}",
            )


_OF_CLASSIC_MEMBERS = ("session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy")

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")


class ConsumerConfig(CommonConfig):
    """Settings of a consumer."""

    title: ClassVar[str] = "a consumer"

    group_id = optional(string("group.id", None, "The group to join with subscribe(), or to commit for with assign()."))
    group_instance_id = optional(
        string(
            "group.instance.id",
            None,
            "A name that outlives restarts (static member): a restart within session.timeout.ms moves no partition.",
        )
    )
    group_protocol = word(
        "group.protocol",
        "classic",
        "How a group agrees: classic (one of its members shares out) or consumer (KIP-848: the coordinator does, and "
        "says session timeout and heartbeat interval). A group moves from one to the other member by member.",
        "classic",
        "consumer",
    )
    group_remote_assignor = optional(
        string(
            "group.remote.assignor",
            None,
            "With group.protocol=consumer: the coordinator's assignor that is wished for, uniform or range.",
        )
    )
    session_timeout_ms = milliseconds(
        "session.timeout.ms", 45_000, "A member that the coordinator has not heard of for so long is thrown out."
    )
    heartbeat_interval_ms = milliseconds(
        "heartbeat.interval.ms",
        3_000,
        "Time between heartbeats, which go on while records are handled; at most half of session.timeout.ms.",
    )
    max_poll_interval_ms = milliseconds(
        "max.poll.interval.ms",
        300_000,
        "A member that does not poll for so long leaves its group; also how long a rebalance waits for one.",
    )
    partition_assignment_strategy = string(
        "partition.assignment.strategy",
        "range,cooperative-sticky",
        "What this member offers, best first: range, roundrobin, sticky, cooperative-sticky. Cooperative (partitions "
        "that stay are read on during a rebalance) only if cooperative-sticky stands alone.",
    )
    enable_auto_commit = boolean(
        "enable.auto.commit",
        True,
        "Commit by itself what was handed out and done: never what was merely fetched or is being handled.",
    )
    auto_commit_interval_ms = milliseconds("auto.commit.interval.ms", 5_000, "Time between automatic commits.")
    auto_offset_reset = string(
        "auto.offset.reset",
        "latest",
        "Where to start without a position, or from one outside the log: earliest, latest, none (raise), or "
        "by_duration:PT1H (that long ago).",
    )
    max_poll_records = whole("max.poll.records", 500, "Most records one poll returns.", low=1)
    fetch_min_bytes = size("fetch.min.bytes", 1, "A broker answers a fetch as soon as it has this many bytes.", low=0)
    fetch_max_wait_ms = milliseconds(
        "fetch.max.wait.ms", 500, "Longest a broker holds a fetch that found less than fetch.min.bytes.", low=0
    )
    fetch_max_bytes = size(
        "fetch.max.bytes",
        52_428_800,
        "Most bytes of one fetch response, and of records waiting in this client for a poll.",
    )
    max_partition_fetch_bytes = size(
        "max.partition.fetch.bytes", 1_048_576, "Most bytes a fetch returns per partition."
    )
    check_crcs = boolean("check.crcs", True, "Verify each batch's CRC-32C.")
    isolation_level = word(
        "isolation.level",
        "read_uncommitted",
        "read_committed hides records of aborted and open transactions.",
        "read_uncommitted",
        "read_committed",
    )
    client_rack = string("client.rack", "", "This client's rack; a broker may then name a nearer replica to read from.")
    key_deserializer: Setting[Deserializer | None] = _function(
        "key.deserializer",
        "Own function bytes -> key, called when a record is handed out; one without a key stays without.",
        "Deserializer",
        "(bytes) -> what they mean",
    )
    value_deserializer: Setting[Deserializer | None] = _function(
        "value.deserializer",
        "Own function bytes -> value; what it raises, poll raises as DeserializationFailed. None stays None.",
        "Deserializer",
        "(bytes) -> what they mean",
    )
    default_api_timeout_ms = milliseconds(
        "default.api.timeout.ms",
        60_000,
        "How long a call without a limit of its own may take, all in all, before it raises ClientTimeout.",
    )

    def _check_together(self) -> None:
        if self.group_id == "":
            raise ConfigError("group.id", self.group_id, "a name of at least one character, or none at all")
        if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms",
                self.heartbeat_interval_ms,
                f"at most half of session.timeout.ms={self.session_timeout_ms}: one lost heartbeat is no death",
            )
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
        for attribute in _OF_CLASSIC_MEMBERS:
            row, value = self.attributes[attribute], getattr(self, attribute)
            if value != row.default_value():
                raise ConfigError(row.name, value, "with group.protocol=consumer the brokers decide that")

    @property
    def strategies(self) -> tuple[str, ...]:
        """`partition_assignment_strategy` one by one."""
        return tuple(dict.fromkeys(part.strip() for part in self.partition_assignment_strategy.split(",")))


class AdminConfig(CommonConfig):
    """Settings of an admin client."""

    title: ClassVar[str] = "an admin client"

    default_api_timeout_ms = milliseconds(
        "default.api.timeout.ms", 60_000, "How long a call may take, all in all, before it raises ClientTimeout."
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
    values = {row: getattr(config, attribute) for attribute, row in config.attributes.items()}
    return {row.name: (_shown(row, value), value == row.default_value(), row.sentence) for row, value in values.items()}


_UNSET = {
    "enable.idempotence": "true with acks=all",
    "batch.size.max": f"{BATCH_SIZE_MAX} with batch.size={BATCH_SIZE} and idempotence",
}
"""What holds where these are not set; nothing, where others are not."""


def _shown(row: Setting[Any], value: object) -> str:
    value = shown(row.name, value)
    if value is None:
        return _UNSET.get(row.name, "-")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == "":
        return "(empty)"
    return f"{value:g}" if isinstance(value, float) else str(value)
