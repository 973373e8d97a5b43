"""Mutants of rules A40 and A41: where the time of requests goes, and what is logged."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, never, one_change, part, removed

_TIMES = "tests/cluster/broker/test_request_times.py"
_WAITS = "tests/cluster/node/test_slow_requests.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "queue-time-is-forgotten",
        "A40: a request that waits for its turn of the loop is queued",
        always(),
        f"{_TIMES}::test_a_request_that_waits_for_its_turn_is_queued",
    ),
    one_change(
        "local-time-is-not-counted",
        "A40: what a request takes of the loop is local, in each of its steps",
        removed(),
        f"{_TIMES}::test_each_part_of_a_request_by_the_instants_that_bound_it",
    ),
    one_change(
        "sent-when-it-was-handed-over",
        "A40: an answer is sent when the socket has taken all of it",
        condition("self._held"),
        f"{_TIMES}::test_each_part_of_a_request_by_the_instants_that_bound_it",
    ),
    one_change(
        "long-polls-are-slow",
        "A40: a wait that the client wants is not slow",
        part("min(parts.remote, may_wait_ms)", "0.0"),
        f"{_TIMES}::test_what_is_slow",
    ),
    one_change(
        "slow-requests-fill-the-log",
        "A40: lines of slow requests are bounded",
        never(),
        f"{_TIMES}::test_lines_are_bounded_and_say_what_was_left_out",
    ),
    one_change(
        "who-gave-up-is-forgotten",
        "A40: a request whose client gave up has a line",
        always(),
        f"{_TIMES}::test_who_gives_up_has_a_line_too",
    ),
    one_change(
        "nobody-was-waited-for",
        "A40: a slow write names the replica that it waited for",
        removed(),
        f"{_WAITS}::test_158_the_replica_that_was_last_is_named",
    ),
)
