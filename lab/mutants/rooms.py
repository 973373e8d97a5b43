"""Mutants of what a cluster does while disks are full (schedule 57; docs/correctness.md, "What cannot be served")."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_MACHINE = "tests/controller/machine/test_full_disks.py"
_SCHEDULES = "tests/schedules/recovery/test_full_disks.py"
_ROOM = "tests/log/test_room.py"
_CHANGE = "controller.machine.partition_change:PartitionChange"
_DISK_ROOM = "replica.disk_health:DiskRoom"

BROKER: tuple[Mutant, ...] = (
    one_change(
        "full-disk-is-not-told",
        "schedule 57: a broker whose disk is full says so",
        "controller.broker_session:BrokerSession._heartbeat",
        "disk_full=self._disk_full(),",
        "disk_full=False,",
        f"{_SCHEDULES}::test_57_a_leaders_disk_fills",
        f"{_SCHEDULES}::test_57_a_followers_disk_fills",
    ),
    one_change(
        "full-disk-waits-for-the-next-heartbeat",
        "schedule 57: it says so at once",
        f"{_DISK_ROOM}._changed",
        "self._on_change()",
        "pass",
        f"{_SCHEDULES}::test_57_a_leader_says_so_at_once",
    ),
    one_change(
        "full-leader-says-nothing",
        "schedule 57: an append that finds no room is such a sign",
        "replica.partition:Partition.append",
        "shared.disk_room.ran_out()",
        "pass",
        f"{_SCHEDULES}::test_57_a_leader_says_so_at_once",
    ),
    one_change(
        "full-follower-says-nothing",
        "schedule 57: so is a follower's append",
        "replica.following:Following._no_room",
        "self._shared.disk_room.ran_out()",
        "pass",
        f"{_SCHEDULES}::test_57_a_follower_says_so_at_once",
    ),
    one_change(
        "full-disk-is-found-by-writes-alone",
        "schedule 57: who starts on a full disk says so before it writes",
        "log.room:Room.looked",
        "return nothing and self.ran_out(now_ms)",
        "return False",
        f"{_ROOM}::test_it_is_full_before_a_write_fails",
        f"{_SCHEDULES}::test_57_a_broker_starts_on_a_full_disk",
    ),
    one_change(
        "full-follower-takes-the-last-byte",
        "schedule 57: on a full disk a follower leaves what room there is to the metadata log",
        "replica.fetcher:Fetcher._append",
        "if self._shared.disk_room.full:",
        "if False:",
        f"{_SCHEDULES}::test_57_what_is_left_is_for_the_metadata",
    ),
    one_change(
        "full-follower-fetches-on",
        "schedule 57: nothing is fetched that cannot be kept",
        "replica.fetcher:Fetcher._retry",
        "if following.without_room and self._shared.disk_room.full:",
        "if False:",
        f"{_SCHEDULES}::test_57_what_is_left_is_for_the_metadata",
    ),
    one_change(
        "room-for-a-moment-counts",
        "schedule 57: room has to last before it counts",
        "log.room:Room.looked",
        "if now_ms - self._room_since_ms < self._hold_ms:",
        "if False:",
        f"{_ROOM}::test_room_comes_above_another_bound_and_has_to_last",
    ),
    one_change(
        "any-room-counts",
        "schedule 57: the bound for room lies above the one for a full disk",
        "log.room:Room.looked",
        "if free_bytes < min(ROOM_BYTES, total_bytes * ROOM_SHARE) or not free_bytes:",
        "if not free_bytes:",
        f"{_ROOM}::test_room_comes_above_another_bound_and_has_to_last",
    ),
    one_change(
        "full-again-and-again-flaps",
        "schedule 57: a disk that fills up again soon has to have room for longer",
        "log.room:Room.ran_out",
        "if soon else HOLD_MS",
        "if False else HOLD_MS",
        f"{_ROOM}::test_a_disk_that_fills_again_and_again_does_not_flap",
    ),
    one_change(
        "room-is-believed-unwritten",
        "schedule 57: room is believed once a write has found it",
        f"{_DISK_ROOM}.look",
        "self._probe()",
        "pass",
        "tests/replica/test_disk_room.py::test_a_quota_is_no_room",
    ),
    one_change(
        "no-log-is-made-once-there-is-room",
        "schedule 57: a replica that got no log for lack of room gets one without a restart",
        f"{_DISK_ROOM}._changed",
        "self._on_room()",
        "pass",
        f"{_SCHEDULES}::test_57_a_topic_is_made_while_a_disk_is_full",
    ),
    one_change(
        "full-disk-fences-a-truncation",
        "schedule 57: a truncation that finds no room is tried again",
        "log.truncation:_promise_less",
        'raise NoSpaceLeft(f"to write down that {log.topic_partition} is cut") from error',
        "raise error",
        f"{_SCHEDULES}::test_57_a_truncation_on_a_full_disk",
    ),
    one_change(
        "cut-forgets-what-is-promised",
        "schedule 57: an attempt without room leaves the promises as the files have them",
        "log.promises:Promises.lower",
        "offsets[tp] = before[name]",
        "_ = before[name]",
        "tests/log/test_full_disk.py::test_a_cut_without_room_is_tried_again",
    ),
)

CONTROLLER: tuple[Mutant, ...] = (
    one_change(
        "full-leader-keeps-the-leadership",
        "schedule 57: who is full leads no more while a member with room is left",
        f"{_CHANGE}._without_the_unfit",
        "return tuple(node for node in isr if self._is_fit(node))",
        "return tuple(node for node in isr if self._is_fit(node) or node == self._partition.leader)",
        f"{_MACHINE}::test_a_full_leader_leads_no_more_in_the_same_turn",
        f"{_SCHEDULES}::test_57_a_leaders_disk_fills",
    ),
    one_change(
        "full-replica-stays-in-the-isr",
        "schedule 57: acks do not wait for who is full",
        f"{_CHANGE}._without_the_unfit",
        "return tuple(node for node in isr if self._is_fit(node))",
        "return isr",
        f"{_MACHINE}::test_a_full_follower_leaves_the_isr",
        f"{_SCHEDULES}::test_57_a_leaders_disk_fills",
        f"{_SCHEDULES}::test_57_a_followers_disk_fills",
    ),
    one_change(
        "full-replicas-leave-every-isr",
        "schedule 57: where nobody has room nothing moves",
        f"{_CHANGE}._without_the_unfit",
        "if not any(self._is_fit(node) and self._acceptable(node) for node in isr):",
        "if False:",
        f"{_MACHINE}::test_where_nobody_has_room_nothing_moves",
        f"{_SCHEDULES}::test_57_all_disks_are_full",
    ),
    one_change(
        "full-replica-is-not-eligible",
        "schedule 57: what is on a full disk counts",
        f"{_CHANGE}._next_elr",
        "if node in candidates and",
        "if node in candidates and self._is_fit(node) and",
        f"{_MACHINE}::test_below_min_isr_it_stays_eligible",
        f"{_SCHEDULES}::test_57_who_is_full_is_eligible",
    ),
    one_change(
        "eligible-without-room-first",
        "schedule 57: of the eligible one with room leads",
        f"{_CHANGE}._elect",
        "order.sort(key=lambda node: not self._is_fit(node))",
        "pass",
        f"{_MACHINE}::test_of_the_eligible_one_with_room_is_elected",
    ),
    one_change(
        "who-joins-with-room-does-not-lead",
        "schedule 57: who has room and joins the ISR of a full leader leads",
        "controller.machine.isr:_alter_one",
        "return AlterPartitionOutcome(item.topic_id, item.partition, ErrorCode.NEW_LEADER_ELECTED, message), record",
        "raise KafkaError(ErrorCode.NEW_LEADER_ELECTED, message)",
        f"{_MACHINE}::test_below_min_isr_it_stays_eligible",
        f"{_SCHEDULES}::test_57_all_disks_are_full",
        f"{_SCHEDULES}::test_57_who_is_full_is_eligible",
    ),
    one_change(
        "full-replica-joins-the-isr",
        "schedule 57: a leader proposes nobody whose disk is full",
        "replica.states:BrokerState.eligible",
        " and not self.disk_full",
        "",
        f"{_SCHEDULES}::test_57_a_followers_disk_fills",
    ),
    one_change(
        "full-replica-is-let-in",
        "schedule 57: the controller lets nobody in whose disk is full",
        "controller.machine.isr:validate",
        "if not why and member.node_id not in partition.isr and not image.has_room(member.node_id):",
        "if False:",
        f"{_MACHINE}::test_a_full_replica_joins_no_isr",
    ),
    one_change(
        "new-topic-on-a-full-disk",
        "schedule 57: a new partition is led where there is room",
        "controller.machine.topics:new_partition",
        "isr = tuple(node for node in isr if image.has_room(node)) or isr",
        "pass",
        f"{_MACHINE}::test_a_new_topic_is_led_where_there_is_room",
    ),
    one_change(
        "partition-changes-twice-in-a-heartbeat",
        "schedule 57: a partition changes once in a heartbeat",
        "controller.machine.brokers:change_room",
        "if (topic.topic_id, partition.partition) not in changed",
        "if True",
        f"{_MACHINE}::test_a_log_that_failed_on_a_full_disk",
    ),
)

HUNG: tuple[Mutant, ...] = (
    one_change(
        "hung-disk-is-told-to-nobody",
        "schedule 58: leaderships move before a node ends whose disk hangs",
        "replica.disk_health:DiskStalls.stalled",
        "self.hung = True",
        "pass",
        "tests/schedules/quorum/test_hung_syncs.py::test_58_leaderships_move_before_the_node_ends",
    ),
)

TABLE = BROKER + CONTROLLER + HUNG
