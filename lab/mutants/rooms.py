"""Mutants of what a cluster does while disks are full (schedule 57; docs/correctness.md, "What cannot be served")."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, instead, never, one_change, part, removed, value

_MACHINE = "tests/controller/machine/test_full_disks.py"
_SCHEDULES = "tests/schedules/recovery/test_full_disks.py"
_ROOM = "tests/log/test_free_space.py"

BROKER: tuple[Mutant, ...] = (
    one_change(
        "full-disk-is-not-told",
        "schedule 57: a broker whose disk is full says so",
        part("self._disk_full()", "False"),
        f"{_SCHEDULES}::test_57_a_leaders_disk_fills",
        f"{_SCHEDULES}::test_57_a_followers_disk_fills",
    ),
    one_change(
        "full-disk-waits-for-the-next-heartbeat",
        "schedule 57: it says so at once",
        removed(),
        f"{_SCHEDULES}::test_57_a_leader_says_so_at_once",
    ),
    one_change(
        "full-leader-says-nothing",
        "schedule 57: an append that finds no room is such a sign",
        removed(),
        f"{_SCHEDULES}::test_57_a_leader_says_so_at_once",
    ),
    one_change(
        "full-follower-says-nothing",
        "schedule 57: so is a follower's append",
        removed(),
        f"{_SCHEDULES}::test_57_a_follower_says_so_at_once",
    ),
    one_change(
        "full-disk-is-found-by-writes-alone",
        "schedule 57: who starts on a full disk says so before it writes",
        value("False"),
        f"{_ROOM}::test_it_is_full_before_a_write_fails",
        f"{_SCHEDULES}::test_57_a_broker_starts_on_a_full_disk",
    ),
    one_change(
        "full-follower-takes-the-last-byte",
        "schedule 57: on a full disk a follower leaves what room there is to the metadata log",
        never(),
        f"{_SCHEDULES}::test_57_what_is_left_is_for_the_metadata",
    ),
    one_change(
        "full-follower-fetches-on",
        "schedule 57: nothing is fetched that cannot be kept",
        never(),
        f"{_SCHEDULES}::test_57_what_is_left_is_for_the_metadata",
    ),
    one_change(
        "full-leader-takes-the-last-byte",
        "schedule 57: where nobody else can lead, a leader on a full disk refuses clients' records",
        part("not directory.room.full", "True"),
        f"{_SCHEDULES}::test_57_the_reserve_is_kept_where_nobody_has_room",
    ),
    one_change(
        "full-leader-refuses-what-it-has",
        "schedule 57: a batch that is stored is acknowledged again on a full disk, too",
        value("... if has_room else None"),
        "tests/log/test_full_disk.py::test_what_is_stored_is_acknowledged_on_a_full_disk",
    ),
    one_change(
        "full-follower-keeps-what-is-deleted",
        "schedule 57: what the leader deletes makes room on followers that fetch nothing for lack of it",
        removed(),
        f"{_SCHEDULES}::test_57_deletions_reach_full_followers",
    ),
    one_change(
        "room-for-a-moment-counts",
        "schedule 57: room has to last before it counts",
        never(),
        f"{_ROOM}::test_room_comes_above_another_bound_and_has_to_last",
    ),
    one_change(
        "any-room-counts",
        "schedule 57: the bound for room lies above the one for a full disk",
        dropped("free_bytes < ROOM_FACTOR * reserve_bytes"),
        f"{_ROOM}::test_room_comes_above_another_bound_and_has_to_last",
    ),
    one_change(
        "full-again-and-again-flaps",
        "schedule 57: a disk that fills up again soon has to have room for longer",
        part("soon", "False"),
        f"{_ROOM}::test_a_disk_that_fills_again_and_again_does_not_flap",
    ),
    one_change(
        "room-is-believed-unwritten",
        "schedule 57: room is believed once a write has found it",
        removed(),
        "tests/replica/test_disk_room.py::test_a_quota_is_no_room",
    ),
    one_change(
        "no-log-is-made-once-there-is-room",
        "schedule 57: a replica that got no log for lack of room gets one without a restart",
        removed(),
        f"{_SCHEDULES}::test_57_a_topic_is_made_while_a_disk_is_full",
    ),
    one_change(
        "full-disk-fences-a-truncation",
        "schedule 57: a truncation that finds no room is tried again",
        instead("raise error"),
        f"{_SCHEDULES}::test_57_a_truncation_on_a_full_disk",
    ),
    one_change(
        "cut-forgets-what-is-promised",
        "schedule 57: an attempt without room leaves the promises as the files have them",
        part("offsets[tp]", "_"),
        "tests/log/test_full_disk.py::test_a_cut_without_room_is_tried_again",
    ),
)

CONTROLLER: tuple[Mutant, ...] = (
    one_change(
        "full-leader-keeps-the-leadership",
        "schedule 57: who is full leads no more while a member with room is left",
        part("self._is_fit(node)", "... or node == self._partition.leader"),
        f"{_MACHINE}::test_a_full_leader_leads_no_more_in_the_same_turn",
        f"{_SCHEDULES}::test_57_a_leaders_disk_fills",
    ),
    one_change(
        "full-replica-stays-in-the-isr",
        "schedule 57: acks do not wait for who is full",
        part("tuple((node for node in isr if self._is_fit(node)))", "isr"),
        f"{_MACHINE}::test_a_full_follower_leaves_the_isr",
        f"{_SCHEDULES}::test_57_a_leaders_disk_fills",
        f"{_SCHEDULES}::test_57_a_followers_disk_fills",
    ),
    one_change(
        "full-replicas-leave-every-isr",
        "schedule 57: where nobody has room nothing moves",
        never(),
        f"{_MACHINE}::test_where_nobody_has_room_nothing_moves",
        f"{_SCHEDULES}::test_57_all_disks_are_full",
    ),
    one_change(
        "full-replica-is-not-eligible",
        "schedule 57: what is on a full disk counts",
        part("node in candidates", "... and self._is_fit(node)"),
        f"{_MACHINE}::test_below_min_isr_it_stays_eligible",
        f"{_SCHEDULES}::test_57_who_is_full_is_eligible",
    ),
    one_change(
        "eligible-without-room-first",
        "schedule 57: of the eligible one with room leads",
        removed(),
        f"{_MACHINE}::test_of_the_eligible_one_with_room_is_elected",
    ),
    one_change(
        "who-joins-with-room-does-not-lead",
        "schedule 57: who has room and joins the ISR of a full leader leads",
        instead("raise KafkaError(ErrorCode.NEW_LEADER_ELECTED, message)"),
        f"{_MACHINE}::test_below_min_isr_it_stays_eligible",
        f"{_SCHEDULES}::test_57_all_disks_are_full",
        f"{_SCHEDULES}::test_57_who_is_full_is_eligible",
    ),
    one_change(
        "full-replica-joins-the-isr",
        "schedule 57: a leader proposes nobody whose disk is full",
        dropped("not self.disk_full"),
        f"{_SCHEDULES}::test_57_a_followers_disk_fills",
    ),
    one_change(
        "full-replica-is-let-in",
        "schedule 57: the controller lets nobody in whose disk is full",
        never(),
        f"{_MACHINE}::test_a_full_replica_joins_no_isr",
    ),
    one_change(
        "new-topic-on-a-full-disk",
        "schedule 57: a new partition is led where there is room",
        removed(),
        f"{_MACHINE}::test_a_new_topic_is_led_where_there_is_room",
    ),
    one_change(
        "partition-changes-twice-in-a-heartbeat",
        "schedule 57: a partition changes once in a heartbeat",
        part("(topic.topic_id, partition.partition) not in changed", "True"),
        f"{_MACHINE}::test_a_log_that_failed_on_a_full_disk",
    ),
)

HUNG: tuple[Mutant, ...] = (
    one_change(
        "hung-disk-is-told-to-nobody",
        "schedule 58: leaderships move before a node ends whose disk hangs",
        removed(),
        "tests/schedules/quorum/test_hung_syncs.py::test_58_leaderships_move_before_the_node_ends",
    ),
)

TABLE = BROKER + CONTROLLER + HUNG
