"""Mutants of moves of replicas: what a plan may do, how many moves at once, who gets no new replicas."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, never, one_change, part, removed, value

_PLANNER = "tests/tools/test_moves_planner.py"
_SCHEDULES = "tests/schedules/moves/test_moves.py"
_CATCH_UP = "tests/replica/test_catch_up.py"
_SYNCER = "tests/log/test_syncer.py"
_CORDON = "tests/controller/machine/test_placement.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "a-broker-that-is-down-gets-replicas",
        "B47: no replica goes to a broker that is down or cordoned",
        dropped("one.takes"),
        f"{_PLANNER}::test_a_broker_that_is_down_or_cordoned_gets_nothing",
    ),
    one_change(
        "a-drain-goes-to-another-that-is-drained",
        "B47: of several brokers that are emptied at once none gets what leaves another",
        dropped("one.node_id not in self.off"),
        f"{_PLANNER}::test_brokers_that_are_emptied_at_once_get_nothing_of_each_other",
    ),
    one_change(
        "a-broker-gets-a-partition-twice",
        "B47: no broker gets a partition twice",
        dropped("new in replicas"),
        f"{_PLANNER}::test_what_a_broker_has_already_does_not_go_there",
    ),
    one_change(
        "racks-are-forgotten",
        "B47: copies stay in as many racks as before",
        value("True"),
        f"{_PLANNER}::test_even_brokers_are_not_worth_a_rack",
    ),
    one_change(
        "a-drain-forgets-racks",
        "B47: what leaves a broker goes to a rack without a copy where there is one",
        part("one.zone in zones", "False"),
        f"{_PLANNER}::test_a_drain_fills_the_rack_that_is_missing",
    ),
    one_change(
        "the-copy-in-sync-is-given-up",
        "B47: where fewer copies are asked for, those in sync stay",
        part("node in partition.isr", "False"),
        f"{_PLANNER}::test_copies_that_are_not_in_sync_go_first_and_the_leader_stays",
    ),
    one_change(
        "half-a-factor-is-kept",
        "B47: a partition that cannot have the copies that were asked for stays as it is",
        removed(),
        f"{_PLANNER}::test_more_copies_than_brokers_are_refused_with_numbers",
    ),
    one_change(
        "a-broker-gets-all-moves-at-once",
        "B48: no broker has more moves at once than it may",
        never(),
        f"{_PLANNER}::test_no_broker_has_more_than_it_may",
    ),
    one_change(
        "a-move-to-a-dead-broker-waits",
        "B48: a move to a broker that is down goes to another one, or is cancelled",
        removed(),
        f"{_PLANNER}::test_a_move_to_a_broker_that_died_goes_to_another_or_is_cancelled",
    ),
    one_change(
        "a-move-to-a-dead-broker-goes-on",
        "schedule 149: a move whose target stays down is cancelled",
        value("set()"),
        f"{_SCHEDULES}::test_149_the_target_of_a_move_dies[holds]",
    ),
    one_change(
        "the-throttle-is-forgotten",
        "schedule 150: the throttle of moves that are over is taken away (KAFKA-4596)",
        removed(),
        f"{_SCHEDULES}::test_150_who_set_the_throttle_is_gone_when_the_moves_end[holds]",
    ),
    one_change(
        "what-is-not-shown-is-not-taken-away",
        "schedule 164: what a throttle set is taken away, also from a broker that does not show it yet",
        part("self._before.items()", "()"),
        f"{_SCHEDULES}::test_164_a_broker_is_late_with_what_was_set_on_it[holds]",
    ),
    one_change(
        "the-rate-of-another-command-comes-back",
        "schedule 165: the rate of a command that was killed is no operator's",
        part("self._rates_are_of_commands", "False"),
        f"{_SCHEDULES}::test_165_the_command_that_set_the_throttle_was_killed[holds]",
    ),
    one_change(
        "a-look-takes-the-throttle",
        "schedule 151: a look at moves changes nothing",
        value("clear(admin, cluster)"),
        f"{_SCHEDULES}::test_151_a_status_comes_between_two_moves[holds]",
    ),
    one_change(
        "who-catches-up-is-synced-with-the-others",
        "B50: the log of a replica that nobody waits for is synced apart from the others",
        part("self.is_waited_for", "True"),
        f"{_CATCH_UP}::test_a_follower_that_lags_is_synced_by_itself",
    ),
    one_change(
        "who-catches-up-is-never-synced",
        "B50: it has its turn, however many others there are",
        part("self._unhurried_is_next", "False"),
        f"{_SYNCER}::test_who_catches_up_has_its_turn",
    ),
    one_change(
        "who-is-waited-for-stays-behind",
        "B50: once it is waited for it is synced with the others",
        never(),
        f"{_SYNCER}::test_who_is_waited_for_now_goes_with_the_others",
    ),
    one_change(
        "nobody-hears-how-far-a-hole-is-filled",
        "B50: what is synced is told of a hole, too, or its leader sends no more of it",
        removed(),
        "tests/replica/test_healing.py::test_the_leader_hears_how_far_a_hole_is_filled",
    ),
    one_change(
        "acks-1-fills-the-page-cache",
        "B51: appends with acks 0 and 1 wait where much waits for its sync",
        never(),
        "tests/replica/test_appends.py::test_who_waits_for_no_sync_waits_where_much_does[1]",
        "tests/replica/test_appends.py::test_who_waits_for_no_sync_waits_where_much_does[0]",
    ),
    one_change(
        "what-comes-behind-is-taken",
        "B51: nothing more is taken from a connection whose append waits where much waits for its sync",
        never(),
        "tests/cluster/broker/test_kafka_produce.py::test_a_client_is_held_up_by_a_disk_that_is_behind[0]",
        "tests/cluster/broker/test_kafka_produce.py::test_a_client_is_held_up_by_a_disk_that_is_behind[-1]",
    ),
    one_change(
        "leaders-send-more-than-a-disk-takes",
        "B51: a leader gets no credit while much waits for its sync",
        never(),
        "tests/replica/test_follower_streams.py::test_a_leader_may_send_more_once_a_slow_disk_has_synced",
    ),
    one_change(
        "a-disk-gets-more-than-it-takes",
        "B50: a follower's broker is sent no more than its disk takes",
        never(),
        f"{_CATCH_UP}::test_a_follower_is_sent_no_more_than_its_disk_takes",
    ),
    one_change(
        "a-disk-that-slows-down-gets-as-much",
        "B50: a disk on which syncs take longer gets less at a time",
        never(),
        "tests/replica/test_backlog.py::test_a_disk_that_slows_down_gets_less",
    ),
    one_change(
        "the-cordoned-get-replicas",
        "B49: placement passes over cordoned brokers",
        dropped("broker.node_id not in cordoned"),
        f"{_CORDON}::test_placement_passes_over_it",
    ),
    one_change(
        "the-cordoned-get-what-is-assigned",
        "B49: nobody assigns a cordoned broker a new replica",
        never(),
        f"{_CORDON}::test_nobody_assigns_it_a_replica_by_hand",
    ),
    one_change(
        "the-cordoned-get-what-moves",
        "B49: no move adds a replica on a cordoned broker",
        removed(),
        f"{_CORDON}::test_nothing_moves_to_it",
    ),
)
