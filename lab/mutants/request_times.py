"""Mutants of rules A40 and A41: where the time of requests goes, and what is logged."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, never, one_change, part, removed

_TIMES = "tests/cluster/broker/test_request_times.py"
_LOGGERS = "tests/cluster/broker/test_broker_loggers.py"
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
    one_change(
        "anybody-sets-levels",
        "A41: levels of loggers are set by who may alter the configs of the cluster",
        removed(),
        f"{_LOGGERS}::test_who_may_not_alter_configs_sets_no_level",
    ),
    one_change(
        "rehearsed-levels-count",
        "A41: a dry run sets no level",
        always(),
        f"{_LOGGERS}::test_a_level_reaches_what_is_below_and_goes_again",
    ),
    one_change(
        "loggers-are-made-up",
        "A41: a logger that nobody has is refused",
        never(),
        f"{_LOGGERS}::test_what_is_no_level_is_refused_with_all_that_stands_beside_it",
    ),
    one_change(
        "a-deleted-level-forgets-the-start",
        "A41: a level that is deleted is that of the start",
        never(),
        f"{_LOGGERS}::test_a_deleted_level_is_that_of_the_start",
    ),
    one_change(
        "levels-are-only-told",
        "A41: a line goes by its logger's level of now",
        part("number >= self.threshold", "number >= 20"),
        "tests/cluster/node/test_log_levels.py::test_a_logger_goes_by_the_level_of_now",
    ),
)
