"""The settings of a node that cannot change before it restarts, one row each, with the parsers of structured values.

A node's file may contain other settings too, which can change while the cluster runs:
`strandline.controller.metadata.settings`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from strandline.cluster.broker.config import BrokerConfig, DerivedSetting, ListenerConfig
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.node.config_values import (
    ENDPOINTS,
    HTTP,
    LISTENERS,
    VOTERS,
    parse_endpoints,
    parse_listeners,
    parse_voters,
)
from strandline.cluster.security.principal import PrincipalRules
from strandline.cluster.security.sasl import MECHANISMS
from strandline.cluster.transactions.config import TransactionConfig
from strandline.controller.broker_session import BrokerSessionConfig
from strandline.controller.controller import ControllerConfig
from strandline.controller.quorum.api import QuorumConfig
from strandline.proto.errors import ConfigError
from strandline.proto.settings import (
    INT32_MAX,
    ConfigType,
    Part,
    Scope,
    Settings,
    boolean,
    milliseconds,
    parsed,
    size,
    split_list,
    string,
    whole,
    word,
)
from strandline.proto.tls import CLIENT_AUTH, HOW_TO_MAKE_PEM, PEM
from strandline.replica.states import ReplicaConfig
from strandline.replica.tier_config import TierConfig

INTERNAL = "INTERNAL"
RESERVED = (INTERNAL, HTTP)
"""Listener names with a protocol of their own; every other listener speaks Kafka's protocol."""

BROKER = "broker"
CONTROLLER = "controller"


_ROLES = "broker, controller, or both"
_DIRECTORIES = "one directory or more, each named once"


def _roles(name: str, text: str) -> frozenset[str]:
    roles = split_list(text)
    if not roles or any(role not in (BROKER, CONTROLLER) for role in roles):
        raise ConfigError(name, text, _ROLES)
    return frozenset(roles)


def _directories(name: str, text: str) -> tuple[str, ...]:
    # A directory's name is made durable by a sync of its parent, whose path is derived from this one: normalize it.
    directories = tuple(map(os.path.abspath, split_list(text)))  # rule A1/directories-as-they-are-named
    if not directories or len(set(directories)) != len(directories):
        raise ConfigError(name, text, _DIRECTORIES)
    return directories


PLAINTEXT, SSL = "PLAINTEXT", "SSL"
SASL_PLAINTEXT, SASL_SSL = "SASL_PLAINTEXT", "SASL_SSL"

PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)

_ALLOWED = "one of " + ", ".join(PROTOCOLS)
_PROTOCOL_MAP = f"NAME:PROTOCOL,..., each protocol {_ALLOWED}"
_ALGORITHMS = "https, or nothing for no check of the host name"
_CLIENT_AUTH = "one of " + ", ".join(CLIENT_AUTH)


def _protocol_map(name: str, text: str) -> Mapping[str, str]:
    protocols: dict[str, str] = {}
    for part in split_list(text):
        listener, colon, protocol = (piece.strip() for piece in part.partition(":"))
        if not colon or not listener:
            raise ConfigError(name, text, "a list of NAME:PROTOCOL, such as CLIENTS:SASL_SSL")
        if protocol.upper() not in PROTOCOLS:
            raise ConfigError(name, part, f"NAME:PROTOCOL, the protocol {_ALLOWED}")
        if listener.upper() in (INTERNAL, HTTP) and protocol.upper() in (SASL_PLAINTEXT, SASL_SSL):
            raise ConfigError(name, part, f"{listener}:PLAINTEXT or {listener}:SSL: only clients' listeners speak SASL")
        if listener.upper() in protocols:
            raise ConfigError(name, text, f"each name once; {listener} stands there twice")
        protocols[listener.upper()] = protocol.upper()
    return protocols


def _pem(name: str, text: str) -> str:
    if text != PEM:
        raise ConfigError(name, text, HOW_TO_MAKE_PEM.get(text.upper(), "PEM, nothing else"))
    return text


def _algorithm(name: str, text: str) -> str:
    if text.lower() not in ("https", ""):
        raise ConfigError(name, text, _ALGORITHMS)
    return text.lower()


def _client_auth(name: str, text: str) -> str:
    if text.lower() not in CLIENT_AUTH:
        raise ConfigError(name, text, _CLIENT_AUTH)
    return text.lower()


def _rules(name: str, text: str) -> str:
    PrincipalRules(name, text)
    return text


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only authorizer, under the name that it has in Kafka's files."""


_AUTHORIZERS = f"{STANDARD_AUTHORIZER}, or empty for none"
_USERS = "principals as User:alice, separated by semicolons"


def _authorizer(name: str, text: str) -> str:
    if text in ("", STANDARD_AUTHORIZER):
        return text
    why = "AclAuthorizer is ZooKeeper's; its successor is " if text.endswith("AclAuthorizer") else ""
    raise ConfigError(name, text, f"{why}{_AUTHORIZERS}: there are no Java plug-ins here")


def _super_users(name: str, text: str) -> tuple[str, ...]:
    users = tuple(part.strip() for part in text.split(";") if part.strip())
    for user in users:
        kind, colon, rest = user.partition(":")
        if not (kind and colon and rest):
            raise ConfigError(name, user, _USERS)
    return users


ENABLED = "sasl.enabled.mechanisms"
PLAIN_JAAS = "plain.sasl.jaas.config"
PLAIN_WITHOUT_TLS = "sasl.plain.without.tls"
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"


_MECHANISMS = "one or several of " + ", ".join(MECHANISMS) + ", each once"


def _mechanisms(name: str, text: str) -> str:
    mechanisms = split_list(text)
    if not mechanisms or not set(mechanisms) <= set(MECHANISMS) or len(set(mechanisms)) != len(mechanisms):
        raise ConfigError(name, text, _MECHANISMS)
    return ",".join(mechanisms)


class Identity(Settings, scope=Scope.NODE):
    """Settings of identity: the node, its roles and addresses, its directories and its cluster."""

    process_roles = parsed(
        "process.roles",
        _roles,
        "broker,controller",
        "Roles of this node: broker stores partitions and serves clients, controller votes in the metadata quorum.",
        _ROLES,
        type=ConfigType.LIST,
    )
    node_id = whole(
        "node.id",
        None,
        "Number of this node in its cluster: unique over brokers and controllers, and never changed.",
        high=INT32_MAX,
        required=True,
    )
    listeners = parsed(
        "listeners",
        parse_listeners,
        "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:19092,HTTP://127.0.0.1:8092",
        "Addresses at which this node listens, as NAME://host:port; 0.0.0.0 and [::] mean all IPv4 and IPv6 "
        "addresses. INTERNAL is gRPC between nodes; HTTP serves /metrics, /healthz, /readyz, /stacks and /trace "
        "(without HTTP: none of these); any other name speaks Kafka's protocol. Port 0 chooses a free port.",
        LISTENERS,
        type=ConfigType.LIST,
    )
    advertised_listeners = parsed(
        "advertised.listeners",
        parse_listeners,
        None,
        "Addresses that clients and other nodes are told to connect to, where they differ from those of listeners.",
        LISTENERS,
        type=ConfigType.LIST,
    )
    controller_listener_names = word(
        "controller.listener.names",
        INTERNAL,
        "Listener through which nodes reach controllers. kafka-metadata-quorum.sh add-controller reads it from the "
        "node's file.",
        INTERNAL,
    )
    inter_broker_listener_name = word(
        "inter.broker.listener.name", INTERNAL, "Listener through which brokers reach each other.", INTERNAL
    )
    log_dirs = parsed(
        "log.dirs",
        _directories,
        "strandline-data",
        "Directories of this node's data, in any order, best each on a disk of its own; `strandline format` prepares "
        "them. One of them holds the metadata log too, and the node stops if that one fails.",
        _DIRECTORIES,
        type=ConfigType.LIST,
    )
    broker_rack = string(
        "broker.rack",
        None,
        "Failure domain of this broker (a rack or a zone): the replicas of a partition are spread over racks.",
    )
    quorum_voters = parsed(
        "controller.quorum.voters",
        parse_voters,
        "",
        "Controllers of the quorum, as id@host:port of their INTERNAL listeners. Empty: the controllers that "
        "`strandline format --initial-controllers` wrote into the data directory.",
        VOTERS,
        type=ConfigType.LIST,
    )
    quorum_bootstrap_servers = parsed(
        "controller.quorum.bootstrap.servers",
        parse_endpoints,
        "",
        "INTERNAL listeners of some controllers, as host:port. A node that knows no reachable voter finds the quorum "
        "there. Meant for clusters in which controllers are added and removed (kraft.version 1).",
        ENDPOINTS,
        type=ConfigType.LIST,
    )
    quorum_auto_join = boolean(
        "controller.quorum.auto.join.enable",
        False,
        "true: a controller that has never voted asks to become a voter once it has caught up (KIP-1186; "
        "kraft.version 1). If another directory of the same node is a voter and does not answer, the controller "
        "replaces it.",
    )
    logging_format = word(
        "logging.format",
        "keyvalue",
        "Format of log lines on standard error: key=value pairs, or one JSON object per line.",
        "keyvalue",
        "json",
    )
    logging_level = word(
        "logging.level", "info", "Lowest severity of events that are logged.", "debug", "info", "warning", "error"
    )


class Security(Settings, scope=Scope.NODE):
    """Settings of security: authorization, the audit log, and TLS."""

    authorizer = parsed(
        "authorizer.class.name",
        _authorizer,
        "",
        f"Class that decides which requests are allowed: {STANDARD_AUTHORIZER} goes by the ACLs of the cluster. "
        "Empty: everything is allowed to everybody. It must be the same on every node.",
        _AUTHORIZERS,
    )
    super_users = parsed(
        "super.users",
        _super_users,
        "",
        "Principals that may do everything, regardless of ACLs, separated by semicolons: "
        "User:admin;User:CN=ops,O=example. The first ACLs are created by one of them. Without an authorizer the "
        "setting has no effect.",
        _USERS,
    )
    allow_everyone_if_no_acl = boolean(
        "allow.everyone.if.no.acl.found",
        False,
        "true: everybody may do everything with a resource for which there is no ACL. Without an authorizer the "
        "setting has no effect.",
    )

    audit_log_path = string(
        "audit.log.path",
        None,
        "File of this node that gets a line of JSON for each change that a client asks for (topics, settings, ACLs, "
        "credentials, groups, elections, voters). Logins, denied requests and failed changes are written to "
        "PATH.attempts. Empty: no file; with an authorizer the node's log has these lines.",
    )
    audit_log_max_bytes = size(
        "audit.log.max.bytes", 100 * 1024**2, "Size at which the audit log continues in a new file.", low=1024
    )
    audit_log_files = whole(
        "audit.log.files",
        10,
        "Files of the audit log that are kept: PATH, PATH.1, ..., and as many of PATH.attempts; the oldest is deleted.",
        low=2,
        high=1000,
    )
    audit_topic_enable = boolean(
        "audit.topic.enable",
        False,
        "true: this broker also writes the lines of its audit log to the topic __audit. The topic is created with the "
        "first line: one partition for each broker, offsets.topic.replication.factor replicas, a week of retention. "
        "It must be the same on every broker.",
    )
    security_protocol_map = parsed(
        "listener.security.protocol.map",
        _protocol_map,
        "",
        "Security protocol of each listener, as NAME:PLAINTEXT, NAME:SSL (TLS), NAME:SASL_PLAINTEXT or NAME:SASL_SSL "
        "(authentication, without and with TLS). A listener that is not listed here has the protocol of its name, if "
        "the name is one of these four, else PLAINTEXT.",
        _PROTOCOL_MAP,
    )
    ssl_keystore_type = parsed(
        "ssl.keystore.type",
        _pem,
        PEM,
        "Format of keys and certificates: PEM. Java keystores and PKCS12 are not supported.",
        "PEM",
    )
    ssl_keystore_location = string(
        "ssl.keystore.location",
        None,
        "PEM file with a listener's private key and its certificate chain. Changed files apply to new connections "
        "within seconds; if a changed file is invalid, this is logged and the former certificate stays in use.",
    )
    ssl_keystore_chain = string(
        "ssl.keystore.certificate.chain", None, "Certificate chain as PEM text, instead of a file."
    )
    ssl_keystore_key = string(
        "ssl.keystore.key", None, "Private key (PKCS#8) as PEM text, together with ssl.keystore.certificate.chain."
    )
    ssl_key_password = string(
        "ssl.key.password",
        None,
        "Password of the private key. It and ssl.keystore.key may refer to a value elsewhere: ${env:NAME}, "
        "${file:/path/file.properties:key}, ${dir:/path:file}.",
    )
    ssl_truststore_type = parsed("ssl.truststore.type", _pem, PEM, "Format of the CAs' certificates: PEM.", "PEM")
    ssl_truststore_location = string(
        "ssl.truststore.location",
        None,
        "PEM file with the certificates of the CAs that sign the certificates of clients and of other nodes.",
    )
    ssl_truststore_certificates = string(
        "ssl.truststore.certificates", None, "Certificates of the CAs as PEM text, instead of a file."
    )
    ssl_client_auth = parsed(
        "ssl.client.auth",
        _client_auth,
        "none",
        "Client certificates on listeners with TLS: none, requested (clients may have one) or required. Between nodes "
        "they are always required; for SASL_SSL only listener.name.<name>.ssl.client.auth counts (KIP-684).",
        _CLIENT_AUTH,
    )
    ssl_enabled_protocols = string(
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are accepted: TLSv1.2, TLSv1.3 or both.",
        type=ConfigType.LIST,
    )
    ssl_cipher_suites = string(
        "ssl.cipher.suites",
        "",
        "Cipher suites of TLS 1.2, under their names in Java or OpenSSL. Empty: those with forward secrecy and "
        "authenticated encryption. The cipher suites of TLS 1.3 are all sound and cannot be chosen.",
        type=ConfigType.LIST,
    )
    ssl_principal_mapping_rules = parsed(
        "ssl.principal.mapping.rules",
        _rules,
        "DEFAULT",
        "Rules that make a principal of the subject of a client's certificate: RULE:pattern/replacement/ (then L or U "
        "for lower or upper case), separated by commas; the first rule that matches the whole subject applies. "
        "DEFAULT takes the subject unchanged.",
        "DEFAULT, or a list of RULE:pattern/replacement/",
    )
    ssl_endpoint_identification = parsed(
        "ssl.endpoint.identification.algorithm",
        _algorithm,
        "https",
        "Check that a node makes when it connects to another node: https: the certificate must name the host that the "
        "node connects to; empty: no check.",
        _ALGORITHMS,
    )


class Sasl(Settings, scope=Scope.NODE):
    """Settings of SASL, by which clients authenticate."""

    sasl_enabled_mechanisms = parsed(
        ENABLED,
        _mechanisms,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "Mechanisms by which clients may authenticate on listeners with SASL: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, "
        "OAUTHBEARER. listener.name.<name>.sasl.enabled.mechanisms sets them for one listener.",
        _MECHANISMS,
        type=ConfigType.LIST,
    )
    sasl_plain_without_tls = boolean(
        PLAIN_WITHOUT_TLS,
        False,
        "true: PLAIN and OAUTHBEARER are offered without TLS too, so that anybody on the network path can read "
        "passwords and tokens. For tests, and for nodes behind a proxy that ends TLS.",
    )
    sasl_frame_bytes_max = whole(
        "sasl.server.max.receive.size",
        64 * 1024,
        "Maximum size of a request before a client is authenticated.",
        low=512,
        high=100 * 1024 * 1024,
        unit="bytes",
    )
    sasl_session_ms_max = milliseconds(
        "connections.max.reauth.ms",
        0,
        "Time for which a SASL authentication is valid: after it the client authenticates again on the same "
        "connection (KIP-368), or is disconnected at its next request. 0: valid as long as the connection.",
        low=0,
        type=ConfigType.LONG,
    )
    sasl_failure_delay_ms = milliseconds(
        "connection.failed.authentication.delay.ms",
        100,
        "Delay of the answer to a failed authentication; it slows down the guessing of passwords.",
        low=0,
    )

    jwks_url = string(
        JWKS_URL,
        None,
        "Keys that verify OAUTHBEARER tokens, as a JWKS document: file:///path or https://... A changed file applies "
        "from the next login on; an https address is fetched again at intervals, and for a token with an unknown key.",
    )
    jwks_refresh_ms = milliseconds(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "Interval at which the keys are fetched again from an https address.",
        low=10_000,
    )
    token_issuer = string(
        "sasl.oauthbearer.expected.issuer",
        None,
        "Issuer (claim iss) that an OAUTHBEARER token must have. Required with OAUTHBEARER.",
    )
    token_audience = parsed(
        "sasl.oauthbearer.expected.audience",
        lambda _name, text: text,
        None,
        "Audiences (claim aud), of which an OAUTHBEARER token must name at least one. Required with OAUTHBEARER.",
        "any list",
        type=ConfigType.LIST,
    )
    token_skew_s = whole(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "Maximum difference between the clocks of the node and of the issuer of tokens.",
        high=3600,
        unit="s",
    )
    token_user_claim = string("sasl.oauthbearer.sub.claim.name", "sub", "Claim of a token that is the user's name.")


class Limits(Settings, scope=Scope.NODE):
    """Time limits of disk syncs and of shutdown, and the switch for fault injection."""

    disk_sync_timeout_ms = milliseconds(
        "disk.sync.timeout.ms",
        5000,
        "Maximum time of one sync of the disk. During a longer one nothing is acknowledged, so the node gives up its "
        "leaderships and stops. A warning is logged after a fifth of this time. (Under flush.policy=replicate "
        "acknowledgements do not wait for syncs: a broker goes on, and stops after four times this time.)",
        low=100,
    )
    controlled_shutdown_timeout_ms = milliseconds(
        "controlled.shutdown.timeout.ms",
        10_000,
        "Maximum time that a stopping broker waits for its leaderships to move away; after it the broker stops anyway.",
    )
    fault_injection = boolean(
        "strandline.fault.injection",
        False,
        "true: POST /faults on the HTTP listener makes chosen requests fail and slows down the disk. For tests only: "
        "anybody who can reach that listener can do so.",
    )


PLAIN_USERS = string(
    PLAIN_JAAS,
    None,
    'Users of PLAIN on one listener, with their passwords: ...PlainLoginModule required user_alice="..." '
    'user_bob="..."; a single value, or the whole text, may be ${env:NAME}, ${file:/path/file.properties:key} or '
    "${dir:/path:file}. It can only be set for one listener.",
)


class NodeSettings(Identity, Security, Sasl, Limits):
    """All settings in a node's file that apply until the node restarts."""

    broker = Part(BrokerConfig)
    listener = Part(ListenerConfig)
    session = Part(BrokerSessionConfig)
    replica = Part(ReplicaConfig)
    quorum = Part(QuorumConfig)
    controller = Part(ControllerConfig)
    groups = Part(GroupConfig)
    transactions = Part(TransactionConfig)
    tier = Part(TierConfig)


def _longer(unit_ms: int) -> Callable[[str], str]:
    """Return a converter of milliseconds (as text) to a longer unit, rounded up and at most Kafka's largest INT; 0 and
    -1 (no limit) are unchanged."""
    return lambda text: str(min(-(-int(text) // unit_ms), INT32_MAX)) if int(text) > 0 else text


DERIVED_SETTINGS = (
    DerivedSetting(whole("broker.id", None, "The same as node.id.", high=INT32_MAX), "node.id"),
    DerivedSetting(boolean("delete.topic.enable", True, "Topics can be deleted, always.")),
    DerivedSetting(boolean("log.cleaner.enable", True, "Compaction is always on.")),
    DerivedSetting(
        string("log.dir", None, "The first of log.dirs."), "log.dirs", lambda text: split_list(text)[0].rstrip("/")
    ),
    *(
        DerivedSetting(
            whole(name, None, f"The same as {of}, rounded up.", low=-1, high=INT32_MAX, unit=unit), of, _longer(unit_ms)
        )
        for name, of, unit, unit_ms in (
            ("log.retention.hours", "log.retention.ms", "h", 3_600_000),
            ("log.retention.minutes", "log.retention.ms", "min", 60_000),
            ("log.roll.hours", "log.roll.ms", "h", 3_600_000),
            ("log.roll.jitter.hours", "log.roll.jitter.ms", "h", 3_600_000),
        )
    ),
)
"""Settings of Kafka that tools look up and that cannot be set here: their values follow from other settings."""
