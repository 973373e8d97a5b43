"""Mutants of rule A17 on the wire between nodes: the windows of HTTP/2 and what is counted against a peer."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, never, one_change, part, removed

_HOSTILE = "tests/cluster/node/internal/test_hostile_http2.py"
_WINDOWS = "tests/cluster/node/internal/test_http2_windows.py"


def _attack(name: str) -> str:
    return f"{_HOSTILE}::test_a_hostile_client_loses_its_connection[{name}]"


TABLE: tuple[Mutant, ...] = (
    one_change(
        "a-stream-has-no-window",
        "A17: what a peer sends on a stream keeps within its window",
        never(),
        _attack("DATA beyond the stream's window"),
    ),
    one_change(
        "a-connection-has-no-window",
        "A17: what a peer sends on all streams keeps within the connection's window",
        never(),
        _attack("DATA beyond the connection's window"),
    ),
    one_change(
        "what-is-not-read-is-granted-again",
        "A17: a peer cannot fill the memory of one that does not read",
        part("self._unread if reader_waits else self._unread + len(self._partial)", "self._unread"),
        f"{_WINDOWS}::test_what_nobody_reads_is_not_granted_again",
    ),
    one_change(
        "data-of-a-lost-stream-are-never-granted",
        "A17: what comes for a stream that is gone costs the others nothing",
        removed(),
        f"{_WINDOWS}::test_streams_that_are_given_up_cost_the_others_no_window",
    ),
    one_change(
        "what-a-lost-stream-held-is-never-granted",
        "A17: what a stream held when it went is the connection's again",
        removed(),
        f"{_WINDOWS}::test_streams_that_are_given_up_cost_the_others_no_window",
    ),
    one_change(
        "any-frame-is-received",
        "A17: no frame is longer than the peer was told",
        never(),
        _attack("headers that claim a megabyte"),
        _attack("an unknown frame of a megabyte"),
    ),
    one_change(
        "a-flood-is-no-fault",
        "A17: frames without data are paid for by data",
        never(),
        _attack("PING flood"),
        _attack("a flood of empty DATA"),
    ),
    one_change(
        "data-of-no-stream",
        "A17: DATA on a stream that was never opened end the connection",
        never(),
        _attack("DATA on a stream that was never opened"),
    ),
    one_change(
        "data-after-the-end",
        "A17: DATA after the end of a stream end the connection",
        never(),
        _attack("DATA after the end"),
    ),
    one_change(
        "a-message-of-any-size",
        "A17: a message is bounded before its bytes are kept",
        never(),
        f"{_HOSTILE}::test_a_message_that_is_not_taken_ends_its_call",
    ),
    one_change(
        "a-writer-overruns-the-stream",
        "A17: what the peer has not granted is not sent",
        dropped("whole > stream.outbound_flow_control_window"),
        f"{_WINDOWS}::test_what_a_peer_has_not_granted_is_not_sent[20000-20000]",
    ),
    one_change(
        "a-writer-overruns-the-connection",
        "A17: what the peer has not granted is not sent",
        dropped("whole > connection.h2.outbound_flow_control_window"),
        f"{_WINDOWS}::test_what_a_peer_has_not_granted_is_not_sent[1048576-65535]",
    ),
)
