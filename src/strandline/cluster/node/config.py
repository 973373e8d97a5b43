"""The configuration of a node: Kafka's names, one table, errors that say what is allowed.

A node's file contains two kinds of settings. Those of `NodeSettings` cannot change while the node runs. Those of
`strandline.controller.metadata.settings` are defaults for topics and can be overridden in the metadata log while the
cluster runs; without an override this node uses the file's value.

Priority, highest first: `-X key=value`, the environment (STRANDLINE_NODE_ID for node.id), the file, the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strandline.cluster.node.config_security import (
    LISTENER_SETTINGS,
    PER_LISTENER,
    check_listeners,
    listener_setting,
)
from strandline.cluster.node.config_values import ENVIRONMENT_PREFIX, HTTP, Listener, environment_name, read_file
from strandline.cluster.node.settings import (
    BROKER,
    CONTROLLER,
    ENABLED,
    INTERNAL,
    JWKS_URL,
    PLAIN_JAAS,
    PLAIN_WITHOUT_TLS,
    PLAINTEXT,
    PROTOCOLS,
    RESERVED,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    NodeSettings,
)
from strandline.cluster.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from strandline.controller.metadata.settings import BROKER_SETTINGS, CLEANER_HAS_NO_THREADS
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.settings import split_list
from strandline.replica.tier_config import STORE_ENABLE, STORE_OPTIONS, STORE_URL, TierConfig

_ANYWHERE = ("", "0.0.0.0", "::")  # addresses that a client cannot be told


class NodeConfig(NodeSettings):
    """The settings of one node, parsed and checked as a whole.

    Attributes:
        given: texts of the settings given by file, environment or options, dynamic settings included.
        path: path of the file; None: there is no file.
    """

    def __init__(self, given: Mapping[str, str], *, path: str | None = None) -> None:
        """Check `given` and fill in the defaults. Raises ConfigError."""
        self.path = path
        self.given: Mapping[str, str] = MappingProxyType(dict(given))
        self._of_listeners: dict[str, str] = {}
        for name, text in given.items():
            of_listener = listener_setting(name)
            if of_listener is not None:
                self._of_listeners[name] = of_listener[1].read(name, text)
            elif name in BROKER_SETTINGS:
                BROKER_SETTINGS[name].read(name, text)
            elif name not in self.rows:
                raise ConfigError(name, text, _advice(name))
        super().__init__(given)
        self._check_together()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        overrides: Mapping[str, str] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> NodeConfig:
        """Read a file, the environment and options (`overrides`); later ones take priority. Raises ConfigError."""
        given = read_file(path) if path is not None else {}
        given |= _from_environment(environment)
        given |= overrides
        return cls(given, path=path)

    @property
    def node(self) -> NodeId:
        """`node.id` as a `NodeId`."""
        return NodeId(self.node_id)

    @property
    def data_dir(self) -> str:
        """The first of `log.dirs`. After `main_directory` has moved it to the front, it is the main directory, with the
        metadata log and all other state of the node as a whole."""
        return self.log_dirs[0]

    @property
    def is_broker(self) -> bool:
        """True if the node holds partitions and serves clients."""
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        """True if the node votes in the metadata quorum."""
        return CONTROLLER in self.process_roles

    @property
    def internal(self) -> Endpoint:
        """Endpoint to which the INTERNAL listener is to be bound."""
        return self._listener(INTERNAL).endpoint

    @property
    def http(self) -> Endpoint | None:
        """Endpoint to which the HTTP listener is to be bound, if there is one."""
        return next((listener.endpoint for listener in self.listeners if listener.name == HTTP), None)

    @property
    def client_listeners(self) -> tuple[Listener, ...]:
        """The listeners that speak Kafka's protocol; none on a node that is only a controller."""
        return tuple(listener for listener in self.listeners if listener.name not in RESERVED) if self.is_broker else ()

    def advertised(self, name: str, bound: Endpoint) -> Endpoint:
        """Return the endpoint that others are told to connect to, for a listener bound at `bound` (its real port)."""
        for listener in self.advertised_listeners:
            if listener.name == name:
                return Endpoint(listener.endpoint.host, listener.endpoint.port or bound.port)
        return bound

    def protocol(self, name: str) -> str:
        """Return the security protocol of a listener, one of `PROTOCOLS`."""
        return self.security_protocol_map.get(name, name if name in PROTOCOLS else PLAINTEXT)

    def speaks_tls(self, name: str) -> bool:
        """Return whether a listener speaks TLS."""
        return self.protocol(name) in (SSL, SASL_SSL)

    def speaks_sasl(self, name: str) -> bool:
        """Return whether a listener speaks SASL."""
        return self.protocol(name) in (SASL_PLAINTEXT, SASL_SSL)

    def of_listener(self, name: str) -> dict[str, str]:
        """Return the effective values of `LISTENER_SETTINGS` for one listener."""
        own = f"{PER_LISTENER}{name.lower()}."
        of_all = {row.name: getattr(self, attribute) for attribute, row in self.attributes.items()}
        return {key: self._of_listeners.get(own + key, of_all.get(key, "")) for key in LISTENER_SETTINGS}

    @property
    def dynamic(self) -> dict[str, str]:
        """Given values of settings that may change while the cluster runs, by their broker names."""
        return {name: text for name, text in self.given.items() if name in BROKER_SETTINGS}

    def _listener(self, name: str) -> Listener:
        return next(listener for listener in self.listeners if listener.name == name)

    def _check_together(self) -> None:
        names = [listener.name for listener in self.listeners]
        text = ",".join(f"{listener.name}://{listener.endpoint}" for listener in self.listeners)
        if INTERNAL not in names:
            raise ConfigError(
                "listeners", text, f"it must have one named {INTERNAL}, through which nodes reach each other"
            )
        if self.is_broker and not self.client_listeners:
            raise ConfigError("listeners", text, "a broker needs one for clients, such as PLAINTEXT://127.0.0.1:9092")
        for advertised in self.advertised_listeners:
            if advertised.name not in names:
                raise ConfigError("advertised.listeners", advertised.name, "one of " + ", ".join(names))
        check_tier(self.tier)
        check_listeners(self.given, self.security_protocol_map, self.listeners)
        for listener in self.listeners:
            mechanisms = self.of_listener(listener.name)[ENABLED]
            without_tls = self.sasl_plain_without_tls
            protocol = self.protocol(listener.name)
            check_sasl(self.given, listener.name, protocol, mechanisms, plain_without_tls=without_tls)
        advertised_names = {listener.name for listener in self.advertised_listeners}
        for listener in self.listeners:
            if listener.name != HTTP and listener.endpoint.host in _ANYWHERE and listener.name not in advertised_names:
                raise ConfigError(
                    "advertised.listeners",
                    "",
                    f"{listener.name} is bound to every address, so say which one others shall connect to: "
                    f"{listener.name}://host:{listener.endpoint.port}",
                )
        session_timeout_ms = self.controller.machine.times.session_timeout_ms
        if self.session.heartbeat_interval_ms >= session_timeout_ms:
            raise ConfigError(
                "broker.heartbeat.interval.ms",
                self.session.heartbeat_interval_ms,
                f"less than broker.session.timeout.ms ({session_timeout_ms})",
            )


def _advice(name: str) -> str:
    import difflib

    known = (*NodeConfig.rows, *BROKER_SETTINGS)
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.75)
    reason = tier_advice(name) or _kafka_only(name, whole=True)
    if near and reason is None:
        return "no setting has this name; did you mean " + " or ".join(near) + "?"
    return (
        reason
        or sasl_advice(name)
        or _kafka_only(name)
        or "no setting has this name; docs/configuration.md lists them all"
    )


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    by_variable = {environment_name(name): name for name in (*NodeConfig.rows, *BROKER_SETTINGS)}
    found: dict[str, str] = {}
    for variable, text in environment.items():
        if variable in by_variable:
            found[by_variable[variable]] = text
        elif variable.startswith(ENVIRONMENT_PREFIX):
            import difflib

            near = difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.85)
            if near:
                raise ConfigError(variable, text, f"no setting has this name; did you mean {near[0]}?")
    return found


_NOT_SERVED: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("zookeeper.", "control.plane.listener.name", "broker.id", "reserved.broker.max.id"),
        "Strandline has no ZooKeeper; the id of a node is node.id",
    ),
    (
        ("ssl.keystore.password", "ssl.truststore.password"),
        "a PEM file has no password of its own; that of the private key is ssl.key.password",
    ),
    (
        ("ssl.",),
        "TLS is OpenSSL's, without Java's providers, engines and algorithms to choose",
    ),
    (
        ("security.inter.broker.protocol",),
        "nodes reach each other through the listener named INTERNAL; listener.security.protocol.map says how",
    ),
    (
        ("config.providers",),
        "${env:NAME}, ${file:PATH:KEY} and ${dir:PATH:FILE} are read without providers",
    ),
    (
        (
            "sasl.",
            "security.",
            "principal.builder",
            "delegation.token.",
        ),
        "of SASL, SCRAM and PLAIN are served (docs/security.md)",
    ),
    (
        ("num.network.threads", "num.io.threads", "num.replica.fetchers", "background.threads", "num.recovery.threads"),
        "a node has one event loop and no thread pools to size",
    ),
    (
        ("share.", "group.share.", "group.streams.", "group.consumer."),
        "consumer groups of both protocols are served; share groups and groups of Streams are not yet",
    ),
    (
        ("transaction.", "transactional."),
        "transactions have no buffers or threads to tune here; docs/configuration.md lists what there is",
    ),
    (
        ("offsets.", "group."),
        "groups have no thread pools, buffers or batches to tune here; docs/configuration.md lists what there is",
    ),
    (
        ("quota.", "client.quota.callback.class"),
        "quotas are set with `strandline quota` or kafka-configs.sh; here are quota.window.num and "
        "quota.window.size.seconds alone",
    ),
    (("replication.quota.",), "this part of Kafka is not served yet"),
    (
        ("log.cleaner.enable", "log.cleaner.threads", "log.cleaner.io.buffer.size", "log.cleaner."),
        CLEANER_HAS_NO_THREADS,
    ),
    (("log.retention.hours", "log.retention.minutes"), "say it in log.retention.ms: 168 hours are 604800000"),
    (("log.roll.hours", "log.roll.jitter.hours"), "say it in log.roll.ms and log.roll.jitter.ms: an hour is 3600000"),
    (("log.dir",), "name the directories in log.dirs"),
    (("log.flush.",), "flush.policy says when records are synced, by default before each acknowledgement"),
    (("log.preallocate",), "files are allocated ahead of their data in steps that grow with the segment"),
    (
        ("log.message.timestamp.difference.max.ms",),
        "log.message.timestamp.before.max.ms and .after.max.ms bound a record's time, as in Kafka 4",
    ),
    (
        ("replica.fetch.", "replica.socket.", "replica.high.watermark.", "num.replica.alter"),
        "followers read one stream of what is new; there is nothing to tune here",
    ),
    (("metric", "auto.include.jmx.reporter", "kafka.metrics"), "metrics are served at /metrics of the HTTP listener"),
    (("plugin.", "alter.config.policy", "create.topic.policy"), "there are no Java plug-ins here"),
)
"""(prefixes, reason) of settings that Kafka has and Strandline has not, so that a copied file fails with the reason."""


def _kafka_only(name: str, *, whole: bool = False) -> str | None:
    """Return why a setting of Kafka does not exist here; None if the name is not known to be Kafka's. `whole`: only for
    names listed completely, not for those with a listed prefix, which may be typing errors."""
    for prefixes, reason in _NOT_SERVED:
        if name in prefixes or (not whole and name.startswith(prefixes)):
            return f"Kafka has this setting, Strandline does not: {reason}"
    return None


# Tiered storage: checks of settings together, and advice on Kafka's settings that do not exist here (KIP-405)


def check_tier(tier: TierConfig) -> None:
    """Check the settings of the object store together. Raises ConfigError."""
    if tier.store_enable and not tier.store_url:
        raise ConfigError(
            STORE_ENABLE, "true", f"false or empty without {STORE_URL}, which says where the object store is"
        )


_INSTEAD: tuple[tuple[tuple[str, ...], str], ...] = (
    (("remote.log.storage.manager.", "rsm.config."), f"the object store is named by {STORE_URL} and {STORE_OPTIONS}"),
    (
        ("remote.log.metadata.", "rlmm.config."),
        "what lies in the object store stands in the cluster's own metadata log",
    ),
    (
        ("remote.log.manager.fetch.max.bytes.per.second",),
        "reads of the object store are bounded by remote.log.reader.threads; quotas bound what consumers take",
    ),
    (
        ("remote.log.manager.copy.quota.", "remote.log.manager.fetch.quota."),
        "the rate of copies is bounded over a second, by remote.log.manager.copy.max.bytes.per.second",
    ),
    (
        ("remote.log.manager.thread.pool.size", "remote.log.manager.expiration.", "remote.log.manager.follower."),
        "there are no thread pools but remote.log.manager.copier.thread.pool.size and remote.log.reader.threads",
    ),
    (
        ("remote.log.manager.task.retry.", "remote.log.reader.max.pending.tasks", "remote.list.offsets."),
        "what fails is tried again with growing pauses, and reads wait for their turn within their own time",
    ),
)


def tier_advice(name: str) -> str | None:
    """Return advice on a setting of Kafka's tiered storage that does not exist here, or None."""
    return next((reason for prefixes, reason in _INSTEAD if name.startswith(prefixes)), None)


# SASL: the same for its settings


def sasl_advice(name: str) -> str | None:
    """Return advice on a setting of Kafka's SASL that does not exist here, or None."""
    if name.startswith("listener.name.") and name.endswith(".sasl.jaas.config"):
        return (
            "only listener.name.<name>.plain.sasl.jaas.config is read, for the users of PLAIN; credentials of SCRAM "
            "are in the metadata (strandline user set, kafka-configs.sh) and need no line"
        )
    if name.startswith(("sasl.mechanism.inter.broker", "sasl.mechanism.controller", "sasl.jaas.config")):
        return "nodes prove who they are by certificates (INTERNAL:SSL), and use no SASL"
    if name.startswith(("sasl.kerberos.", "sasl.oauthbearer.", "sasl.login.", "sasl.server.callback.")):
        return "of SASL, " + ", ".join(MECHANISMS) + " are served"
    return None


def check_sasl(
    given: Mapping[str, str], listener: str, protocol: str, mechanisms: str, *, plain_without_tls: bool
) -> None:
    """Check the SASL settings of one listener together. Raises ConfigError."""
    own = f"listener.name.{listener.lower()}."
    jaas = own + PLAIN_JAAS
    if protocol not in (SASL_PLAINTEXT, SASL_SSL):
        for name in (jaas, own + ENABLED):
            if name in given:
                raise ConfigError(name, given[name], f"nothing: {listener} speaks {protocol}, without SASL")
        return
    enabled = own + ENABLED if own + ENABLED in given else ENABLED
    without_tls = sorted({PLAIN, OAUTHBEARER} & set(split_list(mechanisms)))
    if protocol == SASL_PLAINTEXT and without_tls and not plain_without_tls:  # rule A19/plain-in-the-clear
        allowed = (
            f"no {without_tls[0]} on {listener}, which speaks no TLS: make it a listener of SASL_SSL, or use "
            f"SCRAM-SHA-256. {PLAIN_WITHOUT_TLS}=true serves it all the same, passwords and tokens readable on the way"
        )
        raise ConfigError(enabled, mechanisms, allowed)
    if OAUTHBEARER in split_list(mechanisms):
        for name in (JWKS_URL, "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.expected.audience"):
            if not given.get(name):
                raise ConfigError(name, "", f"something: {enabled} has OAUTHBEARER, and any token of anybody would do")
    if PLAIN not in split_list(mechanisms):
        if jaas in given:
            raise ConfigError(jaas, given[jaas], f"nothing: {enabled} does not have PLAIN, so that it has no effect")
        return
    if jaas not in given:
        allowed = (
            'the users of PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="...";'
        )
        raise ConfigError(jaas, "", allowed)
