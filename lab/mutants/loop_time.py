"""Mutants of rules A26, A44, A45 and A48: the loop's time is shared, strangers have little of it, and no request
has much at a stretch."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, instead, never, one_change, part, removed, value

_TURNS = "tests/cluster/broker/test_loop_time.py"
_WIRE = "tests/cluster/broker/test_kafka_loop_time.py"
_NEW = "tests/cluster/broker/test_newcomers.py"
_ADMIN = "tests/cluster/broker/test_kafka_admin.py"
_LOOP = "tests/cluster/node/test_node_loop.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "clients-have-all-of-the-loop",
        "A26: clients have a bounded time of each turn, and everything else runs between",
        value("True"),
        f"{_TURNS}::test_a_turn_has_so_much_for_clients_and_then_everything_else_runs",
        f"{_WIRE}::test_104_strangers_that_pipeline_do_not_hold_the_loop",
    ),
    one_change(
        "clients-have-every-turn",
        "A26: what is not for clients comes first, and takes several turns",
        never(),
        f"{_TURNS}::test_a_turn_has_so_much_for_clients_and_then_everything_else_runs",
    ),
    one_change(
        "strangers-have-the-time-of-all",
        "A26: who has not proven who it is has a small time, and keeps nobody waiting who has",
        part("self._strangers if peer.is_stranger else self._known", "self._known"),
        f"{_TURNS}::test_strangers_share_a_small_time_of_their_own",
    ),
    one_change(
        "turns-by-connection",
        "A26: turns are fair among principals, however many connections one has",
        part("share.waiting.add(peer.principal, peer.host, call)", "share.waiting.add('', '', call)"),
        f"{_TURNS}::test_principals_have_their_turns_fairly_then_addresses_then_connections",
    ),
    one_change(
        "turns-by-number",
        "A26: turns are fair by the time that was taken",
        part("max(took_ms, _LEAST_MS)", "1.0"),
        f"{_TURNS}::test_who_took_much_at_once_waits_until_others_had_as_much",
    ),
    one_change(
        "slices-without-end",
        "A26: one connection goes on for a slice while others wait",
        part("clock.monotonic_ms() >= slice_end_ms", "clock.monotonic_ms() < 0"),
        f"{_WIRE}::test_104_one_principals_many_connections_are_one",
    ),
    one_change(
        "any-number-of-requests-before-the-login",
        "A26: a stranger is answered few requests",
        value("False"),
        f"{_WIRE}::test_before_the_login_few_requests_are_answered",
    ),
    one_change(
        "woken-fetches-hold-the-loop",
        "A26: fetches that waited for the same records are answered in turns",
        always(),
        f"{_WIRE}::test_fetches_that_waited_for_the_same_records_are_answered_in_turns",
    ),
    one_change(
        "handshakes-hold-the-loop",
        "A26: a handshake of TLS takes the time of strangers",
        always(),
        f"{_WIRE}::test_handshakes_take_the_time_of_strangers",
    ),
    one_change(
        "coroutines-take-nobodys-time",
        "A26: what a request does as a coroutine counts",
        removed(),
        f"{_TURNS}::test_steps_of_coroutines_count",
    ),
    one_change(
        "long-fetches-hold-the-loop",
        "A26: a request that takes long is answered in steps, each in a turn",
        part("self.run_alone(exchange, self._in_turns(exchange, steps))", "[*steps]"),
        f"{_WIRE}::test_a_fetch_of_many_partitions_is_answered_in_turns",
    ),
    one_change(
        "what-a-long-fetch-leaves-goes-at-once",
        "A26: what a fetch of many partitions leaves behind goes in turns",
        never(),
        f"{_WIRE}::test_what_a_long_fetch_leaves_goes_in_turns",
    ),
    one_change(
        "full-collections-at-any-time",
        "A26: a full collection of garbage comes at its time",
        removed(),
        f"{_LOOP}::test_full_collections_have_a_share_of_the_time",
    ),
    one_change(
        "full-collections-have-no-share",
        "A26: full collections of garbage have a share of the time",
        part("took_s / COLLECTIONS_SHARE", "0.0"),
        f"{_LOOP}::test_full_collections_have_a_share_of_the_time",
    ),
    one_change(
        "slices-given-all-at-once",
        "A26: a slice of long work is charged when it is given",
        removed(),
        f"{_TURNS}::test_long_work_of_many_has_a_slice_each",
    ),
    one_change(
        "a-long-fetch-is-read-in-one-turn",
        "A26: the partitions of a fetch are read in turns",
        value("[results]"),
        f"{_WIRE}::test_many_readable_partitions_are_read_and_watched_in_steps",
    ),
    one_change(
        "a-long-fetch-is-parked-in-one-turn",
        "A26: the partitions of a fetch that waits are watched in turns",
        value("[just_read]"),
        f"{_WIRE}::test_many_readable_partitions_are_read_and_watched_in_steps",
    ),
    one_change(
        "what-comes-between-reading-and-waiting-is-missed",
        "A26: what rises between the reading of a partition and the wait for it ends the wait",
        part("self._has_more(result)", "False"),
        f"{_WIRE}::test_many_readable_partitions_are_read_and_watched_in_steps",
    ),
    one_change(
        "strangers-never-pause",
        "A44: strangers of whom nobody becomes known have a quarter of the loop",
        value("0"),
        f"{_TURNS}::test_strangers_of_whom_nobody_becomes_known_have_a_quarter",
        f"{_TURNS}::test_strangers_pause_for_what_goes_beyond_their_turn_too",
    ),
    one_change(
        "logins-come-to-nothing",
        "A44: whoever is known in the end gives back what it took as a stranger",
        removed(),
        f"{_TURNS}::test_strangers_of_whom_nobody_becomes_known_have_a_quarter",
        f"{_WIRE}::test_a_handshake_that_comes_to_something_is_given_back",
    ),
    one_change(
        "handshakes-come-to-nothing",
        "A44: the handshake is part of what is given back",
        removed(),
        f"{_WIRE}::test_a_handshake_that_comes_to_something_is_given_back",
    ),
    one_change(
        "what-goes-beyond-a-turn-has-no-pause",
        "A44: the pause goes by what strangers took, beyond their turn too",
        part("share.spent_ms", "min(share.spent_ms, share.budget_ms)"),
        f"{_TURNS}::test_strangers_pause_for_what_goes_beyond_their_turn_too",
    ),
    one_change(
        "accepted-at-any-time",
        "A44: accepting takes the time of strangers",
        never(),
        f"{_NEW}::test_accepting_waits_for_its_turn",
    ),
    one_change(
        "let-in-at-any-time",
        "A44: what was accepted is let in within the time of strangers",
        always(),
        f"{_NEW}::test_newcomers_are_let_in_one_after_the_other_and_fairly_by_address",
    ),
    one_change(
        "newcomers-without-number",
        "A44: connections that wait to be let in are bounded",
        never(),
        f"{_NEW}::test_newcomers_that_wait_are_bounded",
    ),
    one_change(
        "ends-take-nobodys-time",
        "A44: the end of a connection that came to nothing takes the time of strangers",
        part("self.listener.loop_time.measured(self.peer, self._lost)", "self._lost()"),
        f"{_WIRE}::test_connections_that_come_to_nothing_take_the_time_of_strangers",
    ),
    one_change(
        "a-thousand-go-at-once",
        "A44: connections that end are ended in turns",
        always(),
        f"{_WIRE}::test_connections_that_end_together_are_ended_in_turns",
    ),
    one_change(
        "who-asks-too-much-may-come-again-at-once",
        "A44: whoever asks too much before its login is kept for as long as a login may take",
        instead("self.refuse('too many requests')"),
        f"{_WIRE}::test_before_the_login_few_requests_are_answered",
    ),
    one_change(
        "pages-at-any-time",
        "A45: pages of HTTP are made within the time of strangers",
        always(),
        "tests/cluster/node/http/test_http.py::test_pages_are_made_in_turns",
    ),
    one_change(
        "requests-are-read-in-one-turn",
        "A48: a request is read in steps, in every depth",
        never(),
        "tests/proto/kafka/test_schema.py::test_what_is_long_is_read_and_written_in_steps",
    ),
    one_change(
        "answers-are-written-in-one-turn",
        "A48: an answer is written in steps, in every depth",
        never(),
        "tests/proto/kafka/test_schema.py::test_what_is_long_is_read_and_written_in_steps",
    ),
    one_change(
        "awaited-items-hold-the-loop",
        "A48: items that are awaited one after the other have a slice of them in a turn",
        never(),
        f"{_TURNS}::test_items_that_are_awaited_have_a_slice_at_a_time",
    ),
    one_change(
        "the-controller-is-asked-for-all-at-once",
        "A48: the controller is asked for some items after the others",
        part("start + ASKED_MAX", "None"),
        f"{_ADMIN}::test_the_controller_is_asked_for_some_after_the_others",
    ),
    one_change(
        "metadata-is-encoded-in-one-turn",
        "A48: the partitions of a topic are encoded in steps",
        never(),
        "tests/cluster/broker/test_kafka_metadata.py::test_metadata_of_many_partitions_is_encoded_in_steps",
    ),
)
