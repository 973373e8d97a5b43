"""Settings that Kafka has and Strandline does not serve: named, so that a copied file fails with the reason."""

from __future__ import annotations

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("zookeeper.", "control.plane.listener.name", "broker.id", "reserved.broker.max.id"),
        "Strandline has no ZooKeeper; the id of a node is node.id",
    ),
    (
        (
            "ssl.",
            "sasl.",
            "security.",
            "authorizer.class.name",
            "super.users",
            "principal.builder",
            "delegation.token.",
        ),
        "TLS, SASL and ACLs are not served yet: keep the listeners on a network that you trust",
    ),
    (
        ("listener.security.protocol.map", "controller.listener.names", "inter.broker.listener.name"),
        "nodes reach each other through the listener named INTERNAL, and every other one is PLAINTEXT",
    ),
    (
        ("num.network.threads", "num.io.threads", "num.replica.fetchers", "background.threads", "num.recovery.threads"),
        "a node has one event loop and no thread pools to size",
    ),
    (
        ("transaction.", "transactional.", "share.", "group.share.", "group.streams.", "group.consumer."),
        "consumer groups of both protocols are served; transactions, share groups and groups of Streams are not yet",
    ),
    (
        ("offsets.", "group."),
        "groups have no thread pools, buffers or batches to tune here; docs/configuration.md lists what there is",
    ),
    (("log.cleaner.", "remote.log.", "quota.", "replication.quota."), "this part of Kafka is not served yet"),
    (
        ("log.flush.", "log.dir", "log.retention.hours", "log.retention.minutes", "log.roll.hours"),
        "use flush.policy, log.dirs, log.retention.ms and log.roll.ms, which have one unit each",
    ),
    (
        ("replica.fetch.", "replica.socket.", "replica.high.watermark.", "num.replica.alter"),
        "followers read one stream of what is new; there is nothing to tune here",
    ),
    (
        ("controller.quorum.bootstrap.servers",),
        "name the controllers in controller.quorum.voters (brokers find the leader through any of them)",
    ),
    (("metric", "auto.include.jmx.reporter", "kafka.metrics"), "metrics are served at /metrics of the HTTP listener"),
    (("plugin.", "alter.config.policy", "create.topic.policy"), "there are no Java plug-ins here"),
)


def kafka_only(name: str) -> str | None:
    """Why a setting of Kafka has no place here; None for a name that is not known to be Kafka's."""
    for prefixes, reason in _REASONS:
        if name.startswith(prefixes):
            return f"Kafka has this setting, Strandline does not: {reason}"
    return None
