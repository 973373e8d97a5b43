"""Mutants of rule A18: with TLS nobody but nodes comes in at the internal port, and a node speaks for itself alone."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_INTERNAL = "tests/cluster/node/internal/test_internal_tls.py"
_DOOR = "tests/cluster/security/test_tls_door.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "node-speaks-for-another",
        "A18: a request comes from the node of the certificate",
        "cluster.node.internal.guard:Guard.check",
        "if claimed is None or claimed == node:",
        "if True:",
        f"{_INTERNAL}::test_a_node_speaks_for_itself_alone",
        f"{_INTERNAL}::test_a_session_is_one_nodes_to_its_end",
    ),
    one_change(
        "session-is-checked-once",
        "A18: each heartbeat of a session comes from the node of the certificate",
        "cluster.node.internal.guard:_CheckedStream._check",
        "if self._once and self._checked:",
        "if self._checked:",
        f"{_INTERNAL}::test_a_session_is_one_nodes_to_its_end",
    ),
    one_change(
        "any-certificate-is-a-node",
        "A18: a certificate without a node's name gets nothing",
        "cluster.node.internal.guard:refusal",
        "if node is None:",
        "if certificate and node is None:\n        return None\n    if node is None:",
        f"{_INTERNAL}::test_who_is_no_node_gets_nothing",
    ),
    one_change(
        "node-of-any-cluster",
        "A18: a certificate for another cluster gets nothing",
        "cluster.node.internal.guard:refusal",
        "if not node.belongs_to(cluster_id):",
        "if False:",
        f"{_INTERNAL}::test_who_is_no_node_gets_nothing",
    ),
    one_change(
        "certificate-of-two-nodes",
        "A18: a certificate names one node",
        "cluster.security.node_identity:node_of",
        "if len(found) != 1:",
        "if not found:",
        f"{_INTERNAL}::test_who_is_no_node_gets_nothing",
    ),
    one_change(
        "server-may-be-anybody",
        "A18: a node connects to nodes alone",
        "cluster.node.internal.internal_tls:InternalTls.refuses",
        "return refusal(certificate, self._cluster_id)",
        "return None",
        f"{_INTERNAL}::test_a_node_trusts_no_server_that_is_no_node",
    ),
    one_change(
        "certificate-of-another-node-is-taken",
        "A18: a node begins with its own certificate",
        "cluster.node.internal.internal_tls:InternalTls._make",
        "if node is None or node.node_id != self._node_id:",
        "if node is None:",
        f"{_INTERNAL}::test_a_changed_certificate_of_another_node_is_not_taken",
    ),
    one_change(
        "socket-buffer-counts-nowhere",
        "A18: what a client does not take counts, over TLS too",
        "cluster.security.tls_transport:TlsConnection._get_write_buffer_size",
        "else self._below.get_write_buffer_size()",
        "else 0",
        f"{_DOOR}::test_what_a_slow_reader_does_not_take_counts_and_is_held_once",
    ),
    one_change(
        "encrypted-at-once",
        "A18: what a client does not take waits unencrypted",
        "cluster.security.tls_transport:TlsConnection._do_write",
        "while backlog and not self._ssl_writing_paused:",
        "while backlog:",
        f"{_DOOR}::test_what_a_slow_reader_does_not_take_counts_and_is_held_once",
    ),
    one_change(
        "closed-twice-is-forgotten",
        "A18: a connection of TLS may be closed twice",
        "cluster.security.tls_transport:_Transport.close",
        "if not self.is_closing():",
        "if True:",
        "tests/cluster/broker/test_kafka_tls.py::test_answers_behind_the_end_of_a_connection_are_no_mistake_of_ours",
    ),
    one_change(
        "handshakes-without-number",
        "A18: handshakes are bounded",
        "cluster.security.tls_door:TlsDoor.began",
        "if len(self._handshakes) > self._handshakes_max:",
        "if False:",
        f"{_DOOR}::test_handshakes_are_bounded_and_the_oldest_makes_room",
    ),
)
