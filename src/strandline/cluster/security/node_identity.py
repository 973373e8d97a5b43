"""The node that a certificate speaks for: a SPIFFE-like URI among its alternative names.

    spiffe://<trust domain>/strandline/node/<node id>
    spiffe://<trust domain>/strandline/<cluster id>/node/<node id>

Without a cluster id the certificate holds for the node of this number in whatever cluster trusts its CA. The trust
domain is the CA's own affair: which CA counts is said by the truststore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from strandline.proto.ids import NodeId

TRUST_DOMAIN = "strandline.internal"
"""Trust domain of the certificates that `strandline certs dev` makes."""

_URI = re.compile(r"spiffe://[^/]+/strandline(?:/([^/]+))?/node/([0-9]{1,10})")


class NodeIdentity(NamedTuple):
    """A node, as its certificate names it; `cluster_id` "" where the certificate names none."""

    node_id: NodeId
    cluster_id: str = ""

    def belongs_to(self, cluster_id: str) -> bool:
        """Whether the certificate holds in this cluster."""
        return self.cluster_id in ("", cluster_id)


def node_uri(identity: NodeIdentity) -> str:
    """The alternative name of a node's certificate."""
    cluster = f"/{identity.cluster_id}" if identity.cluster_id else ""
    return f"spiffe://{TRUST_DOMAIN}/strandline{cluster}/node/{identity.node_id}"


def node_of(certificate: Mapping[str, Any] | None) -> NodeIdentity | None:
    """The node of a certificate that was checked; None where it names none, or several."""
    names = (certificate or {}).get("subjectAltName", ())
    found = [match for kind, name in names if kind == "URI" and (match := _URI.fullmatch(name)) is not None]
    if len(found) != 1:  # rule A18/certificate-of-two-nodes
        return None
    return NodeIdentity(NodeId(int(found[0][2])), found[0][1] or "")
