"""Mutants of the controller's rules in B: AlterPartition's table, registration, shutdown, the clean marker."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, instead, never, one_change, part, removed, value

_MACHINE = "tests/controller/machine"
_ISR = f"{_MACHINE}/test_isr.py"
_BROKERS = f"{_MACHINE}/test_brokers.py"
_IMAGE = "tests/controller/metadata/test_image.py"
_LOG_DIR = "tests/log/test_log_dir.py"
_SCHEDULES = "tests/schedules/quorum/test_controller.py"
_MARKER = "tests/schedules/quorum/test_clean_marker.py"
_ROW = f"{_ISR}::test_row_of_the_table"

ALTER_PARTITION: tuple[Mutant, ...] = (
    one_change(
        "stale-controller-judges",
        "B2: AlterPartition from the future: NOT_CONTROLLER",
        never(),
        _ROW,
        f"{_SCHEDULES}::test_13_a_proposal_reaches_a_zombie_controller",
    ),
    one_change(
        "old-leader-alters-the-isr",
        "B2: AlterPartition of an old leader epoch: FENCED_LEADER_EPOCH",
        never(),
        f"{_ROW}[an old leader epoch]",
    ),
    one_change(
        "anybody-alters-the-isr",
        "B2: AlterPartition by who does not lead: INVALID_REQUEST",
        never(),
        f"{_ROW}[not the leader]",
    ),
    one_change(
        "old-partition-epoch-alters-the-isr",
        "B2: AlterPartition of an old partition epoch: INVALID_UPDATE_VERSION",
        never(),
        f"{_ROW}[an old partition epoch]",
    ),
    one_change(
        "alter-partition-rows-in-another-order",
        "B2: AlterPartition's rows are judged in their order",
        condition("sender == partition.leader and ..."),
        f"{_ISR}::test_order_of_the_rows",
    ),
    one_change(
        "isr-beyond-the-replicas",
        "B2: AlterPartition: the ISR lies within the replicas",
        dropped("any((node not in partition.replicas for node in nodes))"),
        f"{_ROW}[a member that is no replica]",
    ),
    one_change(
        "isr-names-a-member-twice",
        "B2: AlterPartition: the ISR's members are distinct",
        dropped("len(set(nodes)) != len(nodes)"),
        f"{_ROW}[a member twice]",
    ),
    one_change(
        "isr-without-its-leader",
        "B2: AlterPartition: the ISR has the leader",
        never(),
        f"{_ROW}[an ISR without the leader]",
    ),
    one_change(
        "recovering-in-company",
        "B2: AlterPartition: RECOVERING has one member",
        never(),
        f"{_ISR}::test_recovery_after_an_unclean_election",
    ),
    one_change(
        "recovered-is-recovering-again",
        "B2: AlterPartition: never RECOVERED to RECOVERING",
        never(),
        f"{_ROW}[recovered back to recovering]",
    ),
    one_change(
        "unregistered-member-joins",
        "B2: AlterPartition: an unregistered member is ineligible",
        value("''"),
        f"{_SCHEDULES}::test_12_an_unregistered_broker_does_not_come_back",
    ),
    one_change(
        "stopping-member-joins",
        "B2: AlterPartition: a stopping member is ineligible",
        never(),
        f"{_ISR}::test_unregistered_and_stopping_members_are_ineligible",
        f"{_SCHEDULES}::test_12_the_leader_brings_a_stopping_broker_back",
    ),
    one_change(
        "fenced-member-joins",
        "B2: AlterPartition: a fenced member is ineligible",
        never(),
        f"{_ROW}[a fenced member (D-12)]",
        f"{_SCHEDULES}::test_12_the_leader_brings_a_fenced_broker_back",
    ),
    one_change(
        "member-of-another-life-joins",
        "B2: AlterPartition: a member of another broker epoch is ineligible",
        never(),
        f"{_ROW}[a member of another life (D-8)]",
    ),
    one_change(
        "sender-of-another-life-is-heard",
        "B2: AlterPartition of an earlier process is refused",
        removed(),
        f"{_ISR}::test_sender_of_another_life_is_refused_as_a_whole",
    ),
    one_change(
        "one-partition-twice-in-a-request",
        "B2: AlterPartition names a partition once",
        never(),
        f"{_ISR}::test_one_partition_twice_in_a_request",
    ),
    one_change(
        "election-without-a-leader-epoch",
        "B1: an election bumps the leader epoch",
        part("old.leader_epoch + 1", "old.leader_epoch"),
        f"{_IMAGE}::test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch",
    ),
    one_change(
        "isr-change-bumps-the-leader-epoch",
        "B1: only an election bumps the leader epoch (KAFKA-13790)",
        part(
            "old.leader_epoch if change.leader is None else LeaderEpoch(old.leader_epoch + 1)",
            "LeaderEpoch(old.leader_epoch + 1)",
        ),
        f"{_IMAGE}::test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch",
        f"{_ISR}::test_shrink_and_expand_answer_what_was_committed",
    ),
    one_change(
        "change-without-a-partition-epoch",
        "B1: every change bumps the partition epoch",
        part("old.partition_epoch + 1", "old.partition_epoch"),
        f"{_IMAGE}::test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch",
    ),
)

BROKERS: tuple[Mutant, ...] = (
    one_change(
        "live-session-is-taken-over",
        "B12: a second process is refused while the first lives",
        never(),
        f"{_BROKERS}::test_live_session_refuses_another_incarnation",
    ),
    one_change(
        "same-process-gets-another-epoch",
        "B12: the same incarnation keeps its epoch",
        never(),
        f"{_BROKERS}::test_same_incarnation_keeps_its_epoch",
    ),
    one_change(
        "broker-epoch-is-not-the-registrations-offset",
        "B12: the broker epoch is the offset of the registration",
        part("next_offset + len(records)", "next_offset"),
        f"{_SCHEDULES}::test_b_a_broker_starts_fenced_under_the_offset_of_its_registration",
    ),
    one_change(
        "broker-starts-unfenced",
        "B12: a broker starts fenced",
        part("True", "False"),
        f"{_SCHEDULES}::test_b_a_broker_starts_fenced_under_the_offset_of_its_registration",
    ),
    one_change(
        "a-displaced-broker-stops",
        "B12: a fenced broker that is unregistered meanwhile registers again",
        always(),
        "tests/controller/test_controller_in_the_simulator.py"
        "::test_a_fenced_broker_that_is_unregistered_registers_once_more",
    ),
    one_change(
        "unfenced-before-it-knows-its-registration",
        "B12: unfenced once its metadata reach its registration",
        dropped("request.metadata_offset >= broker.broker_epoch"),
        f"{_BROKERS}::test_unfenced_only_once_its_metadata_reach_its_registration",
    ),
    one_change(
        "unfenced-against-its-wish",
        "B12: unfenced when it wants to be",
        dropped("not request.want_fence"),
        f"{_SCHEDULES}::test_b_a_broker_that_wants_to_stay_fenced",
    ),
    one_change(
        "heartbeat-of-another-life-is-taken",
        "B12: a heartbeat of another life is refused",
        never(),
        f"{_BROKERS}::test_heartbeat_of_another_life_is_refused",
    ),
    one_change(
        "fenced-broker-stays-in-the-isr",
        "B12: who is fenced leaves every ISR and leads nothing",
        value("[] and ..."),
        f"{_BROKERS}::test_fencing_moves_leaderships_and_unfencing_alone_does_not_give_them_back",
    ),
    one_change(
        "shutdown-with-leaderships",
        "B12: a broker with leaderships is in controlled shutdown first",
        part("BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW", "BrokerState.SHUTDOWN_NOW"),
        f"{_BROKERS}::test_controlled_shutdown",
    ),
    one_change(
        "shutdown-before-the-others-know",
        "B12: SHUTDOWN_NOW once all active brokers passed the last move",
        part(
            "0 <= offset <= min((self._sessions[node].metadata_offset for node in active), default=NEVER)",
            "True or min((self._sessions[node].metadata_offset for node in active), default=NEVER)",
        ),
        f"{_BROKERS}::test_controlled_shutdown",
    ),
    one_change(
        "shutdown-moves-nothing",
        "B12: leaderships move at a controlled shutdown",
        instead("_ = state.changes(state.partitions_in_isr(node_id), f'broker {node_id} shuts down', remove=node_id)"),
        f"{_BROKERS}::test_controlled_shutdown",
    ),
    Mutant(
        "clean-marker-outlives-the-start",
        "B13: the clean marker is deleted at start",
        (
            removed(),
            removed(),
        ),
        (f"{_LOG_DIR}::test_a_clean_stop",),
    ),
    one_change(
        "a-build-without-lives-left-a-copy",
        "B13: a clean mark proves the directory as the id of the process that left it would",
        never(),
        "tests/controller/machine/test_log_verdict.py::test_a_life_that_left_its_broker_epoch_alone",
    ),
    one_change(
        "any-clean-mark-proves-the-directory",
        "B13: a clean mark of an earlier registration is of the past",
        part(
            "incarnation_of_epoch(existing.broker_epoch) in request.lives",
            "any((life.int < 1 << 64 for life in request.lives))",
        ),
        "tests/controller/machine/test_log_verdict.py::test_a_life_that_left_its_broker_epoch_alone",
    ),
    one_change(
        "what-the-clean-mark-proves-goes-with-it",
        "B13: what the clean mark proves is durable before the mark goes",
        removed(),
        "tests/log/test_findings.py::test_struck_anywhere_a_start_proves_the_stop_before_it",
    ),
    Mutant(
        "deletion-of-the-clean-marker-is-not-synced",
        "B13: the marker's deletion is durable before logs are loaded (KAFKA-10471)",
        (
            removed(),
            removed(),
        ),
        (f"{_MARKER}::test_b_a_clean_marker_does_not_come_back",),
    ),
    one_change(
        "clean-marker-although-a-log-is-offline",
        "B13: no clean marker if loading did not finish (KAFKA-15375)",
        value("False"),
        f"{_LOG_DIR}::test_damage_takes_one_partition_offline",
    ),
    one_change(
        "clean-marker-before-the-logs-are-synced",
        "B13: the clean marker is written last",
        instead(
            "write_file_durably(self.disk, f'{self.path}/{CLEAN_SHUTDOWN}', "
            "encode_clean_shutdown(broker_epoch or -1))\n"
            "..."
        ),
        f"{_MARKER}::test_b_a_clean_marker_vouches_for_every_log",
    ),
    one_change(
        "clean-marker-without-the-broker-epoch",
        "B13: the clean marker names the broker epoch",
        value("-1"),
        f"{_LOG_DIR}::test_a_clean_stop",
    ),
)

_GROWTH = "tests/cluster/broker/test_work_grows_linearly.py"

GROWTH: tuple[Mutant, ...] = (
    one_change(
        "resources-are-counted-one-by-one",
        "A24: a request of 20,000 resources looks at each a few times",
        part("times[resource]", "resources.count(resource)"),
        f"{_GROWTH}::test_resources_whose_settings_change",
    ),
    one_change(
        "users-are-counted-one-by-one",
        "A24: a question about 20,000 users looks at each a few times",
        part("asked[name]", "list(asked.elements()).count(name)"),
        f"{_GROWTH}::test_what_was_quadratic",
    ),
    one_change(
        "replicas-are-counted-for-each-topic",
        "A24: a topic that is created costs what it has, and not what the cluster has",
        always(),
        f"{_MACHINE}/test_placement.py::test_replicas_are_counted_again_for_changed_topics_alone",
    ),
    one_change(
        "topics-to-delete-are-sought-in-a-list",
        "A24: a topic to delete is not compared with all before it",
        part("records", "list(...)"),
        f"{_GROWTH}::test_topics_that_exist_are_deleted",
    ),
    one_change(
        "all-protocols-are-looked-at-for-each-that-leaves",
        "A24: a member that leaves costs what it has, not what others have",
        instead("self._supporters = +self._supporters\n..."),
        f"{_GROWTH}::test_members_that_leave_one_with_many_protocols",
    ),
)

TABLE = (*ALTER_PARTITION, *BROKERS, *GROWTH)
