"""TLS of a node's listeners, made from its configuration."""

from __future__ import annotations

import ssl
from typing import Any

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_security import PER_LISTENER, tls_settings
from strandline.cluster.node.internal.internal_tls import InternalTls
from strandline.cluster.node.settings import INTERNAL
from strandline.cluster.security.certificates import Certificates
from strandline.cluster.security.principal import PrincipalRules
from strandline.cluster.security.tls_door import ListenerTls, TlsDoor
from strandline.proto.errors import ConfigError
from strandline.proto.ports import Clock
from strandline.proto.tls import TlsSettings, server_context


class NodeTls:
    """One `ListenerTls` for each listener that speaks TLS.

    Attributes:
        certificates: certificates of all listeners, reloaded when their files change.
        internal: TLS of the INTERNAL listener and of connections to other nodes; None: these are in plaintext.
    """

    def __init__(self, config: NodeConfig, cluster_id: str, clock: Clock) -> None:
        """Read certificates and keys. Raises ConfigError."""
        self.certificates: list[Certificates[Any]] = []
        self.internal: InternalTls | None = None
        self._listeners: dict[str, ListenerTls] = {}
        for listener in config.listeners:
            if config.speaks_tls(listener.name):
                if listener.name == INTERNAL:
                    self.internal = _internal(config, cluster_id, clock)
                    self.certificates.append(self.internal.certificates)
                else:
                    self._listeners[listener.name] = self._listener(config, listener.name, clock)

    def of(self, name: str) -> ListenerTls | None:
        """Return the TLS of a listener other than INTERNAL; None: it speaks no TLS."""
        return self._listeners.get(name)

    def _listener(self, config: NodeConfig, name: str, clock: Clock) -> ListenerTls:
        texts = config.of_listener(name)

        client_auth = texts["ssl.client.auth"]
        if config.speaks_sasl(name):  # KIP-684: the value for all listeners applies only to those with SSL
            client_auth = config.given.get(f"{PER_LISTENER}{name.lower()}.ssl.client.auth", "none")

        def make(settings: TlsSettings) -> ssl.SSLContext:
            return server_context(settings, client_auth=client_auth.lower())

        certificates = Certificates(name, tls_settings(texts, name), make)
        self.certificates.append(certificates)
        rules = PrincipalRules(
            f"{PER_LISTENER}{name.lower()}.ssl.principal.mapping.rules", texts["ssl.principal.mapping.rules"]
        )
        return ListenerTls(TlsDoor(name, lambda: certificates.context, clock), rules)


def _internal(config: NodeConfig, cluster_id: str, clock: Clock) -> InternalTls:
    texts = config.of_listener(INTERNAL)
    own = f"{PER_LISTENER}{INTERNAL.lower()}.ssl.client.auth"
    if config.given.get(own, "required") != "required":
        raise ConfigError(own, config.given[own], "required: a node that shows no certificate is none")
    return InternalTls(
        tls_settings(texts, INTERNAL),
        clock,
        node_id=config.node,
        cluster_id=cluster_id,
        check_host=texts["ssl.endpoint.identification.algorithm"] == "https",
    )
