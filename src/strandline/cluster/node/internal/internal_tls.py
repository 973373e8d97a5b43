"""Mutual TLS between nodes: both ends show the certificate of a node, and check that of the other."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import structlog

from strandline.cluster.node.internal.guard import Guard, refusal
from strandline.cluster.security.certificates import Certificates
from strandline.cluster.security.node_identity import node_of
from strandline.cluster.security.tls_door import TlsDoor
from strandline.proto.ids import NodeId
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock
from strandline.proto.tls import TlsSettings, client_context, server_context, shake_hands

ALPN = ("h2",)

log = structlog.get_logger("strandline.security")


class Contexts(NamedTuple):
    """TLS contexts of a node, for serving and for connecting."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@runtime_checkable
class SpeaksTls(Protocol):
    """An Rpc port that supports TLS; the simulator's does not."""

    def secure(self, tls: InternalTls) -> None:
        """Serve and connect over TLS from now on."""


class InternalTls:
    """TLS of the internal port, for serving and connecting.

    Attributes:
        certificates: this node's certificate and contexts, reloaded when the files change.
        check_host: the certificate of a node to which this one connects must also name the host.
        door: TLS handshakes of incoming connections.
        guard: checks the rights of callers.
    """

    def __init__(
        self, settings: TlsSettings, clock: Clock, *, node_id: NodeId, cluster_id: str, check_host: bool
    ) -> None:
        """Read certificate and key, and test them by a handshake. Raises ConfigError."""
        self._node_id = node_id
        self._cluster_id = cluster_id
        self.check_host = check_host
        self.certificates = Certificates("INTERNAL", settings, self._make)
        self.door = TlsDoor("INTERNAL", lambda: self.certificates.context.server, clock)
        self.guard = Guard(cluster_id, Notes(clock, log))

    @property
    def for_connecting(self) -> ssl.SSLContext:
        """TLS context for new connections to other nodes."""
        return self.certificates.context.client

    def refuses(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Return why the server of an outgoing connection is no node of this cluster; None: it is one."""
        return refusal(certificate, self._cluster_id)  # rule A18/server-may-be-anybody

    def _make(self, settings: TlsSettings) -> Contexts:
        """Make the contexts, and check that this node's server accepts its own certificate, as other nodes must."""
        contexts = Contexts(
            server_context(settings, client_auth="required", alpn=ALPN),
            client_context(settings, check_host=self.check_host, alpn=ALPN),
        )
        own = "ssl.keystore.location", settings.keystore_location
        try:
            _, certificate = shake_hands(contexts.server, client_context(settings, check_host=False))
        except ssl.SSLError as error:
            allowed = f"a certificate that nodes trust, for servers and clients ({error.reason}: {_words(error)})"
            raise settings.error(*own, allowed) from None
        node = node_of(certificate)
        if node is None or node.node_id != self._node_id:  # rule A18/certificate-of-another-node-is-taken
            named = "no node" if node is None else f"node {node.node_id}"
            allowed = f"a certificate of node {self._node_id}: an alternative name spiffe://.../strandline/node/"
            raise settings.error(*own, f"{allowed}{self._node_id}; this one names {named}")
        if not node.belongs_to(self._cluster_id):
            raise settings.error(
                *own, f"a certificate for cluster {self._cluster_id}; this one is for {node.cluster_id}"
            )
        return contexts


def _words(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", "") or str(error)
