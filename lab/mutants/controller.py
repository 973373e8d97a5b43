"""Mutants of the controller's rules in B: AlterPartition's table, registration, shutdown, the clean marker."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, Patch, one_change

_MACHINE = "tests/controller/machine"
_ISR = f"{_MACHINE}/test_isr.py"
_BROKERS = f"{_MACHINE}/test_brokers.py"
_IMAGE = "tests/controller/metadata/test_image.py"
_LOG_DIR = "tests/log/test_log_dir.py"
_SCHEDULES = "tests/schedules/quorum/test_controller.py"
_MARKER = "tests/schedules/quorum/test_clean_marker.py"
_ROW = f"{_ISR}::test_row_of_the_table"
_VALIDATE = "controller.machine.isr:validate"
_LEADER = "controller.machine.isr:check_leader"
_VALIDATE_ISR = "controller.machine.isr:_validate_isr"
_INELIGIBLE = "controller.machine.isr:_ineligible"
_REGISTER = "controller.machine.brokers:register_broker"
_PREVIOUS = "controller.machine.brokers:_end_of_previous_life"
_NEXT = "controller.machine.brokers:_next"

ALTER_PARTITION: tuple[Mutant, ...] = (
    one_change(
        "stale-controller-judges",
        "B2: AlterPartition from the future: NOT_CONTROLLER",
        _VALIDATE,
        "if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:",
        "if False:",
        _ROW,
        f"{_SCHEDULES}::test_13_a_proposal_reaches_a_zombie_controller",
    ),
    one_change(
        "old-leader-alters-the-isr",
        "B2: AlterPartition of an old leader epoch: FENCED_LEADER_EPOCH",
        _LEADER,
        "if leader_epoch < partition.leader_epoch:",
        "if False:",
        f"{_ROW}[an old leader epoch]",
    ),
    one_change(
        "anybody-alters-the-isr",
        "B2: AlterPartition by who does not lead: INVALID_REQUEST",
        _LEADER,
        "if sender != partition.leader:",
        "if False:",
        f"{_ROW}[not the leader]",
    ),
    one_change(
        "old-partition-epoch-alters-the-isr",
        "B2: AlterPartition of an old partition epoch: INVALID_UPDATE_VERSION",
        _VALIDATE,
        "if item.partition_epoch < partition.partition_epoch:",
        "if False:",
        f"{_ROW}[an old partition epoch]",
    ),
    one_change(
        "alter-partition-rows-in-another-order",
        "B2: AlterPartition's rows are judged in their order",
        _LEADER,
        "if leader_epoch < partition.leader_epoch:",
        "if sender == partition.leader and leader_epoch < partition.leader_epoch:",
        f"{_ISR}::test_order_of_the_rows",
    ),
    one_change(
        "isr-beyond-the-replicas",
        "B2: AlterPartition: the ISR lies within the replicas",
        _VALIDATE_ISR,
        " or any(node not in partition.replicas for node in nodes)",
        "",
        f"{_ROW}[a member that is no replica]",
    ),
    one_change(
        "isr-names-a-member-twice",
        "B2: AlterPartition: the ISR's members are distinct",
        _VALIDATE_ISR,
        " or len(set(nodes)) != len(nodes)",
        "",
        f"{_ROW}[a member twice]",
    ),
    one_change(
        "isr-without-its-leader",
        "B2: AlterPartition: the ISR has the leader",
        _VALIDATE_ISR,
        "if partition.leader not in nodes:",
        "if False:",
        f"{_ROW}[an ISR without the leader]",
    ),
    one_change(
        "recovering-in-company",
        "B2: AlterPartition: RECOVERING has one member",
        _VALIDATE_ISR,
        "if item.recovering and len(nodes) > 1:",
        "if False:",
        f"{_ISR}::test_recovery_after_an_unclean_election",
    ),
    one_change(
        "recovered-is-recovering-again",
        "B2: AlterPartition: never RECOVERED to RECOVERING",
        _VALIDATE_ISR,
        "if item.recovering and not partition.recovering:",
        "if False:",
        f"{_ROW}[recovered back to recovering]",
    ),
    one_change(
        "unregistered-member-joins",
        "B2: AlterPartition: an unregistered member is ineligible",
        _INELIGIBLE,
        'return "is not registered"',
        'return ""',
        f"{_SCHEDULES}::test_12_an_unregistered_broker_does_not_come_back",
    ),
    one_change(
        "stopping-member-joins",
        "B2: AlterPartition: a stopping member is ineligible",
        _INELIGIBLE,
        "if broker.in_controlled_shutdown:",
        "if False:",
        f"{_ISR}::test_unregistered_and_stopping_members_are_ineligible",
        f"{_SCHEDULES}::test_12_the_leader_brings_a_stopping_broker_back",
    ),
    one_change(
        "fenced-member-joins",
        "B2: AlterPartition: a fenced member is ineligible",
        _INELIGIBLE,
        "if broker.fenced:",
        "if False:",
        f"{_ROW}[a fenced member (D-12)]",
        f"{_SCHEDULES}::test_12_the_leader_brings_a_fenced_broker_back",
    ),
    one_change(
        "member-of-another-life-joins",
        "B2: AlterPartition: a member of another broker epoch is ineligible",
        _INELIGIBLE,
        "if member.broker_epoch not in (-1, broker.broker_epoch):",
        "if False:",
        f"{_ROW}[a member of another life (D-8)]",
    ),
    one_change(
        "sender-of-another-life-is-heard",
        "B2: AlterPartition of an earlier process is refused",
        "controller.machine.isr:alter_partition",
        "state.broker_of_epoch(request.node_id, request.broker_epoch)",
        "pass",
        f"{_ISR}::test_sender_of_another_life_is_refused_as_a_whole",
    ),
    one_change(
        "one-partition-twice-in-a-request",
        "B2: AlterPartition names a partition once",
        "controller.machine.isr:once",
        "if key in seen:",
        "if False:",
        f"{_ISR}::test_one_partition_twice_in_a_request",
    ),
    one_change(
        "election-without-a-leader-epoch",
        "B1: an election bumps the leader epoch",
        "controller.metadata.delta:merge",
        "LeaderEpoch(old.leader_epoch + 1)",
        "LeaderEpoch(old.leader_epoch)",
        f"{_IMAGE}::test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch",
    ),
    one_change(
        "isr-change-bumps-the-leader-epoch",
        "B1: only an election bumps the leader epoch (KAFKA-13790)",
        "controller.metadata.delta:merge",
        "old.leader_epoch if change.leader is None else ",
        "",
        f"{_IMAGE}::test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch",
        f"{_ISR}::test_shrink_and_expand_answer_what_was_committed",
    ),
    one_change(
        "change-without-a-partition-epoch",
        "B1: every change bumps the partition epoch",
        "controller.metadata.delta:merge",
        "PartitionEpoch(old.partition_epoch + 1)",
        "PartitionEpoch(old.partition_epoch)",
        f"{_IMAGE}::test_naming_a_leader_bumps_the_leader_epoch_and_any_change_the_partition_epoch",
    ),
)

BROKERS: tuple[Mutant, ...] = (
    one_change(
        "live-session-is-taken-over",
        "B12: a second process is refused while the first lives",
        _REGISTER,
        "if existing is not None and state.sessions.has_valid_session(node_id, now_ms):",
        "if False:",
        f"{_BROKERS}::test_live_session_refuses_another_incarnation",
    ),
    one_change(
        "same-process-gets-another-epoch",
        "B12: the same incarnation keeps its epoch",
        _REGISTER,
        "if existing is not None and existing.incarnation_id == request.incarnation_id:",
        "if False:",
        f"{_BROKERS}::test_same_incarnation_keeps_its_epoch",
    ),
    one_change(
        "broker-epoch-is-not-the-registrations-offset",
        "B12: the broker epoch is the offset of the registration",
        _REGISTER,
        "BrokerEpoch(next_offset + len(records))",
        "BrokerEpoch(next_offset)",
        f"{_SCHEDULES}::test_b_a_broker_starts_fenced_under_the_offset_of_its_registration",
    ),
    one_change(
        "broker-starts-unfenced",
        "B12: a broker starts fenced",
        "controller.machine.brokers:_registration",
        "fenced=True if amended is None",
        "fenced=False if amended is None",
        f"{_SCHEDULES}::test_b_a_broker_starts_fenced_under_the_offset_of_its_registration",
    ),
    one_change(
        "a-displaced-broker-stops",
        "B12: a fenced broker that is unregistered meanwhile registers again",
        "controller.broker_session:BrokerSession._displaced_by",
        "if self._was_unfenced:",
        "if True:",
        "tests/controller/test_controller_in_the_simulator.py"
        "::test_a_fenced_broker_that_is_unregistered_registers_once_more",
    ),
    one_change(
        "unfenced-before-it-knows-its-registration",
        "B12: unfenced once its metadata reach its registration",
        _NEXT,
        " and request.metadata_offset >= broker.broker_epoch",
        "",
        f"{_BROKERS}::test_unfenced_only_once_its_metadata_reach_its_registration",
    ),
    one_change(
        "unfenced-against-its-wish",
        "B12: unfenced when it wants to be",
        _NEXT,
        "if not request.want_fence and ",
        "if ",
        f"{_SCHEDULES}::test_b_a_broker_that_wants_to_stay_fenced",
    ),
    one_change(
        "heartbeat-of-another-life-is-taken",
        "B12: a heartbeat of another life is refused",
        "controller.machine.state:MachineState.broker_of_epoch",
        "if broker.broker_epoch != broker_epoch:",
        "if False:",
        f"{_BROKERS}::test_heartbeat_of_another_life_is_refused",
    ),
    one_change(
        "fenced-broker-stays-in-the-isr",
        "B12: who is fenced leaves every ISR and leads nothing",
        "controller.machine.brokers:fence",
        "records = state.changes(",
        "records = [] and state.changes(",
        f"{_BROKERS}::test_fencing_moves_leaderships_and_unfencing_alone_does_not_give_them_back",
    ),
    one_change(
        "shutdown-with-leaderships",
        "B12: a broker with leaderships is in controlled shutdown first",
        _NEXT,
        "return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW",
        "return BrokerState.SHUTDOWN_NOW",
        f"{_BROKERS}::test_controlled_shutdown",
    ),
    one_change(
        "shutdown-before-the-others-know",
        "B12: SHUTDOWN_NOW once all active brokers passed the last move",
        "controller.machine.sessions:BrokerSessions.may_shut_down",
        "return 0 <= offset <= ",
        "return True or ",
        f"{_BROKERS}::test_controlled_shutdown",
    ),
    one_change(
        "shutdown-moves-nothing",
        "B12: leaderships move at a controlled shutdown",
        "controller.machine.brokers:begin_controlled_shutdown",
        "records += state.changes(",
        "_ = state.changes(",
        f"{_BROKERS}::test_controlled_shutdown",
    ),
    one_change(
        "clean-marker-outlives-the-start",
        "B13: the clean marker is deleted at start",
        "log.lives:take_clean_mark",
        "    disk.unlink(path)\n    disk.sync_dir(directory)",
        "    pass",
        f"{_LOG_DIR}::test_a_clean_stop",
    ),
    one_change(
        "a-build-without-lives-left-a-copy",
        "B13: a clean mark proves the directory as the id of the process that left it would",
        "controller.machine.log_verdict:_is_another_directory",
        "if life_of_epoch(existing.broker_epoch) in request.lives:",
        "if False:",
        "tests/controller/machine/test_log_verdict.py::test_a_life_that_left_its_broker_epoch_alone",
    ),
    one_change(
        "any-clean-mark-proves-the-directory",
        "B13: a clean mark of an earlier registration is of the past",
        "controller.machine.log_verdict:_is_another_directory",
        "life_of_epoch(existing.broker_epoch) in request.lives",
        "any(life.int < 1 << 64 for life in request.lives)",
        "tests/controller/machine/test_log_verdict.py::test_a_life_that_left_its_broker_epoch_alone",
    ),
    one_change(
        "what-the-clean-mark-proves-goes-with-it",
        "B13: what the clean mark proves is durable before the mark goes",
        "log.lives:Lives.stopped",
        "self._write()",
        "pass",
        "tests/log/test_findings.py::test_struck_anywhere_a_start_proves_the_stop_before_it",
    ),
    Mutant(
        "deletion-of-the-clean-marker-is-not-synced",
        "B13: the marker's deletion is durable before logs are loaded (KAFKA-10471)",
        (
            Patch(
                "log.lives:take_clean_mark",
                "    disk.unlink(path)\n    disk.sync_dir(directory)",
                "    disk.unlink(path)",
            ),
            Patch("log.lives:take_clean_mark", "file.pwrite(_TAKEN_BACK.ljust(file.size()), 0)", "pass"),
        ),
        (f"{_MARKER}::test_b_a_clean_marker_does_not_come_back",),
    ),
    one_change(
        "clean-marker-although-a-log-is-offline",
        "B13: no clean marker if loading did not finish (KAFKA-15375)",
        "log.log_dir:LogDir.close",
        "failed = bool(self.offline)",
        "failed = False",
        f"{_LOG_DIR}::test_damage_takes_one_partition_offline",
    ),
    one_change(
        "clean-marker-before-the-logs-are-synced",
        "B13: the clean marker is written last",
        "log.log_dir:LogDir.close",
        "sync_logs(self.disk, [log for log in logs if log.failure is None])",
        'write_file_durably(self.disk, f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch or -1))\n'
        "            sync_logs(self.disk, [log for log in logs if log.failure is None])",
        f"{_MARKER}::test_b_a_clean_marker_vouches_for_every_log",
    ),
    one_change(
        "clean-marker-without-the-broker-epoch",
        "B13: the clean marker names the broker epoch",
        "log.log_dir:LogDir.close",
        "epoch = -1 if broker_epoch is None else broker_epoch",
        "epoch = -1",
        f"{_LOG_DIR}::test_a_clean_stop",
    ),
)

_GROWTH = "tests/cluster/broker/test_work_grows_linearly.py"

GROWTH: tuple[Mutant, ...] = (
    one_change(
        "resources-are-counted-one-by-one",
        "A24: a request of 20,000 resources looks at each a few times",
        "controller.machine.configs:incremental_alter_configs",
        "times[resource] > 1",
        "resources.count(resource) > 1",
        f"{_GROWTH}::test_what_was_quadratic",
    ),
    one_change(
        "users-are-counted-one-by-one",
        "A24: a question about 20,000 users looks at each a few times",
        "cluster.broker.handlers.scram_credentials:ScramCredentialsHandler.describe",
        "asked[name] > 1",
        "list(asked.elements()).count(name) > 1",
        f"{_GROWTH}::test_what_was_quadratic",
    ),
    one_change(
        "topics-to-delete-are-sought-in-a-list",
        "A24: a topic to delete is not compared with all before it",
        "controller.machine.topics:delete_topics",
        "topic.topic_id in records",
        "topic.topic_id in list(records)",
        f"{_GROWTH}::test_topics_that_exist_are_deleted",
    ),
    one_change(
        "all-protocols-are-looked-at-for-each-that-leaves",
        "A24: a member that leaves costs what it has, not what others have",
        "cluster.groups.classic.group:Group._support_no_more",
        "for name in {name for name, _ in protocols}:",
        "self._supporters = +self._supporters\n        for name in {name for name, _ in protocols}:",
        f"{_GROWTH}::test_members_that_leave_one_with_many_protocols",
    ),
)

TABLE = (*ALTER_PARTITION, *BROKERS, *GROWTH)
