"""Mutants of the rules A18 and A29: with TLS nobody but nodes comes in at the internal port, and a node speaks for
itself alone; text from outside is made printable."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, value

_INTERNAL = "tests/cluster/node/internal/test_internal_tls.py"
_SCREEN = "tests/cli/test_screen.py"
_DOOR = "tests/cluster/security/test_tls_door.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "node-speaks-for-another",
        "A18: a request comes from the node of the certificate",
        always(),
        f"{_INTERNAL}::test_a_node_speaks_for_itself_alone",
        f"{_INTERNAL}::test_a_session_is_one_nodes_to_its_end",
    ),
    one_change(
        "session-is-checked-once",
        "A18: each heartbeat of a session comes from the node of the certificate",
        dropped("self._once"),
        f"{_INTERNAL}::test_a_session_is_one_nodes_to_its_end",
    ),
    one_change(
        "any-certificate-is-a-node",
        "A18: a certificate without a node's name gets nothing",
        instead("if certificate and node is None:\n    return None\n..."),
        f"{_INTERNAL}::test_who_is_no_node_gets_nothing",
    ),
    one_change(
        "node-of-any-cluster",
        "A18: a certificate for another cluster gets nothing",
        never(),
        f"{_INTERNAL}::test_who_is_no_node_gets_nothing",
    ),
    one_change(
        "certificate-of-two-nodes",
        "A18: a certificate names one node",
        part("len(found) != 1", "not found"),
        f"{_INTERNAL}::test_who_is_no_node_gets_nothing",
    ),
    one_change(
        "server-may-be-anybody",
        "A18: a node connects to nodes alone",
        value("None"),
        f"{_INTERNAL}::test_a_node_trusts_no_server_that_is_no_node",
    ),
    one_change(
        "certificate-of-another-node-is-taken",
        "A18: a node begins with its own certificate",
        dropped("node.node_id != self._node_id"),
        f"{_INTERNAL}::test_a_changed_certificate_of_another_node_is_not_taken",
    ),
    one_change(
        "socket-buffer-counts-nowhere",
        "A18: what a client does not take counts, over TLS too",
        part("self._below.get_write_buffer_size()", "0"),
        f"{_DOOR}::test_what_a_slow_reader_does_not_take_counts_and_is_held_once",
    ),
    one_change(
        "encrypted-at-once",
        "A18: what a client does not take waits unencrypted",
        dropped("not self._ssl_writing_paused"),
        f"{_DOOR}::test_what_a_slow_reader_does_not_take_counts_and_is_held_once",
    ),
    one_change(
        "closed-twice-is-forgotten",
        "A18: a connection of TLS may be closed twice",
        always(),
        "tests/cluster/broker/test_kafka_tls.py::test_answers_behind_the_end_of_a_connection_are_no_mistake_of_ours",
    ),
    one_change(
        "lines-as-they-come",
        "A29: what commands say is made printable",
        part("printable_lines(str(text))", "str(text)"),
        f"{_SCREEN}::test_lines_and_errors_of_every_command",
    ),
    one_change(
        "errors-as-they-come",
        "A29: what an error says is made printable",
        part("printable_lines(error.message)", "error.message"),
        f"{_SCREEN}::test_lines_and_errors_of_every_command",
    ),
    one_change(
        "cells-as-they-come",
        "A29: what stands in a table is made printable",
        part("printable(str(cell))", "str(cell)"),
        f"{_SCREEN}::test_tables_are_no_markup_and_obeyed_by_nothing",
    ),
    one_change(
        "titles-are-markup",
        "A29: what stands in a table is no markup",
        part("Text(printable(title))", "printable(title)"),
        f"{_SCREEN}::test_tables_are_no_markup_and_obeyed_by_nothing",
    ),
    one_change(
        "handshakes-without-number",
        "A18: handshakes are bounded",
        never(),
        f"{_DOOR}::test_handshakes_are_bounded_and_the_oldest_makes_room",
    ),
    one_change(
        "bad-frames-fill-the-log",
        "A23: of what a client causes a line of each kind is logged once in a while",
        never(),
        "tests/cluster/broker/test_kafka_hostile.py::test_broken_clients_without_end_are_few_lines",
        "tests/proto/test_notes.py::test_a_kind_is_logged_once_in_a_while_with_the_number_left_out",
    ),
    one_change(
        "kinds-are-made-up-without-end",
        "A23: the kinds of an event are bounded together",
        never(),
        "tests/cluster/broker/test_kafka_hostile.py::test_broken_clients_without_end_are_few_lines",
        "tests/proto/test_notes.py::test_kinds_that_somebody_makes_up_have_a_bound_together",
    ),
    one_change(
        "tracebacks-without-end",
        "A23: a process logs no event without end, and few tracebacks",
        part("trace and window.traces >= TRACES_MAX", "False"),
        "tests/proto/test_notes.py::test_a_process_logs_no_event_without_end",
    ),
    one_change(
        "accepted-without-descriptors",
        "A23: without descriptors accepting pauses",
        part("self._loop.call_later(PAUSE_S, self._listen)", "self._loop.call_soon(self._listen)"),
        "tests/cluster/node/test_node_loop.py::test_without_descriptors_accepting_pauses",
    ),
    one_change(
        "every-address-is-of-one-family",
        "A23: a listener on every address takes both families",
        part("not both", "True"),
        "tests/cluster/node/test_node_loop.py::test_every_address_is_one_of_both_families[0.0.0.0]",
    ),
)
