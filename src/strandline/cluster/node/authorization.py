"""The authorizer of a node, made from its configuration; and the accesses that it does not guard ("open doors")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from strandline.cluster.broker.request import AllowAll, Authorizer, Sink
from strandline.cluster.broker.standard_authorizer import StandardAuthorizer
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import HTTP
from strandline.cluster.node.settings import INTERNAL, PLAINTEXT, SSL
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.ids import is_loopback
from strandline.proto.ports import Clock


class OpenDoor(NamedTuple):
    """A way past the authorizer through a listener, or a security setting without effect (`has_effect` False).

    Attributes:
        setting: the setting or listener.
        lets: what a client can do by it, or why the setting has no effect.
        remedy: what the operator should do.
    """

    setting: str
    lets: str
    remedy: str
    has_effect: bool = True


def authorizer_of(
    config: NodeConfig,
    image: Callable[[], MetadataImage],
    caught_up: Callable[[], bool],
    clock: Clock,
    sink: Sink | None,
) -> Authorizer:
    """Make the authorizer of this node's broker."""
    if not config.authorizer:
        return AllowAll()
    return StandardAuthorizer(
        lambda: image().acls,
        clock,
        caught_up=caught_up,
        super_users=config.super_users,
        allow_unnamed=config.allow_everyone_if_no_acl,
        sink=sink,
    )


def open_doors(config: NodeConfig) -> Iterator[OpenDoor]:
    """Yield the open doors of a configuration with an authorizer, and security settings without effect."""
    if not config.is_broker:
        for name in ("audit.log.path", "audit.topic.enable"):
            if config.given.get(name, "").lower() not in ("", "false"):
                text = f"{name} = {config.given[name]}"
                lets = "clients ask brokers, and this node is none"
                yield OpenDoor(text, lets, "set it on the brokers", has_effect=False)
    if not config.authorizer:
        for name in ("super.users", "allow.everyone.if.no.acl.found"):
            if config.given.get(name, "") not in ("", "false"):
                text = f"{name} = {config.given[name]}"
                lets = "there is no authorizer: everybody may do everything"
                yield OpenDoor(text, lets, "set authorizer.class.name too, or leave it out", has_effect=False)
        return
    for door in (internal_door(config), anonymous_door(config), http_door(config)):
        if door is not None:
            yield door._replace(setting=f"authorizer.class.name, with {door.setting}")


def internal_door(config: NodeConfig) -> OpenDoor | None:
    """Return the open door of an INTERNAL listener without TLS, whose clients all count as nodes; None with TLS."""
    if config.protocol(INTERNAL) == SSL:
        return None
    return OpenDoor(
        f"{INTERNAL}://{config.internal} in plaintext",
        "whoever reaches the port acts as a node: reads every record, appends to logs, votes, changes ACLs",
        "INTERNAL:SSL in listener.security.protocol.map, with a certificate for each node; or a network of the nodes "
        "alone",
    )


def anonymous_door(config: NodeConfig) -> OpenDoor | None:
    """Return the open door of a broker none of whose client listeners authenticates clients; else None."""
    if not config.is_broker or any(_tells_apart(config, one.name) for one in config.client_listeners):
        return None
    return OpenDoor(
        "no listener that tells clients apart",
        "every client is User:ANONYMOUS: what one may do, all may",
        "a listener with SASL, or with SSL and ssl.client.auth=required",
    )


def http_door(config: NodeConfig) -> OpenDoor | None:
    """Return the open door of an HTTP listener that neither requires certificates nor is on loopback; else None."""
    http = config.http
    asks = config.protocol(HTTP) == SSL and config.of_listener(HTTP)["ssl.client.auth"] == "required"
    if http is None or asks or is_loopback(http.host):
        return None
    return OpenDoor(
        f"{HTTP}://{http}",
        "whoever reaches the port reads the names and sizes of topics in /metrics, and switches /trace on",
        "bind HTTP to 127.0.0.1, or HTTP:SSL with listener.name.http.ssl.client.auth=required",
    )


def _tells_apart(config: NodeConfig, listener: str) -> bool:
    """Return whether clients of the listener can authenticate."""
    protocol = config.protocol(listener)
    return protocol != PLAINTEXT and (protocol != SSL or config.of_listener(listener)["ssl.client.auth"] != "none")
