"""Mutants of the rules after a crash (docs/correctness.md, "After a crash: who may lead"): what recovery found, who may
lead by it, and what brokers say that they cannot serve."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, instead, never, one_change, part, removed, value

_FINDINGS = "tests/log/test_findings.py"
_BRANCH = "tests/controller/machine/test_election_in_doubt.py::test_members_in_doubt"
_STANDING = "tests/controller/machine/test_log_verdict.py"
_TABLE = f"{_STANDING}::test_two_members_of_the_last_isr"
_HISTORIES = "tests/controller/machine/test_invariants.py::test_crashes_lose_nothing_that_an_honest_copy_has"
_CRASHES = "tests/schedules/recovery/test_crash_of_all.py"
_OFFLINE = "tests/schedules/recovery/test_offline_replicas.py"

ELECTION: tuple[Mutant, ...] = (
    one_change(
        "member-in-doubt-does-not-wait",
        "schedule 45: who cut its log leads once every member of the last ISR is back",
        part("not members or len(known) < len(members)", "not known"),
        _BRANCH,
        _HISTORIES,
        f"{_CRASHES}::test_45_both_in_doubt_wait_for_each_other",
    ),
    one_change(
        "in-doubt-before-the-eligible",
        "schedule 45: members in doubt only if the ELR is empty",
        dropped("not self._elr"),
        _BRANCH,
    ),
    one_change(
        "smallest-log-in-doubt",
        "schedule 45: the greatest (epoch, end) of those in doubt",
        part("max", "min"),
        _BRANCH,
        _HISTORIES,
    ),
    one_change(
        "in-doubt-by-length-alone",
        "schedule 45: the epoch comes before the end",
        part("positions.__getitem__", "lambda node: positions[node].log_end_offset"),
        _BRANCH,
    ),
    one_change(
        "trimmed-log-is-outranked-by-its-epoch",
        "schedule 45: beside a log that has no records left the ends decide",
        never(),
        _BRANCH,
    ),
    one_change(
        "empty-log-in-doubt-leads",
        "schedule 46: an empty log leads only if every replica is back and none holds a record",
        never(),
        _BRANCH,
        _TABLE,
    ),
    one_change(
        "greatest-log-is-elected-uncleanly",
        "schedule 45: nobody cuts below its high watermark for a member in doubt",
        instead("...\nself._recovering = True"),
        _BRANCH,
    ),
    one_change(
        "who-lost-its-log-is-waited-for",
        "schedule 46: a member that lacks what it had is waited for no more",
        dropped("self._lost"),
        _BRANCH,
    ),
    one_change(
        "in-doubt-although-it-caught-up",
        "schedule 45: who joins the ISR again is in doubt no more",
        part("{self._lost, *self._isr, *self._elr}", "{self._lost}"),
        _BRANCH,
    ),
    one_change(
        "in-doubt-is-forgotten-beside-a-leader",
        "schedule 45: who is in doubt stays so until the ISR is back at min ISR",
        part("len(self._isr) >= self._min_isr or rule.unclean", "self._isr"),
        _BRANCH,
    ),
    one_change(
        "in-doubt-at-min-isr",
        "schedule 45: at min ISR nobody is in doubt",
        dropped("len(self._isr) >= self._min_isr"),
        _BRANCH,
        "tests/controller/machine/test_invariants.py::test_long_histories",
    ),
    one_change(
        "log-in-doubt-stays-eligible",
        "schedule 45: who cut its log leaves the ELR",
        part("node not in (self._doubtful, self._lost)", "node != self._lost"),
        _BRANCH,
        _HISTORIES,
    ),
    one_change(
        "lost-log-stays-eligible",
        "schedule 46: who lacks what it had leaves the ELR",
        part("node not in (self._doubtful, self._lost)", "node != self._doubtful"),
        _BRANCH,
        _HISTORIES,
    ),
    one_change(
        "report-of-an-older-leader-epoch-elects",
        "schedule 45: only a report made since nobody leads counts",
        dropped("report.leader_epoch != partition.leader_epoch"),
        f"{_STANDING}::test_a_report_of_another_leader_epoch_elects_nobody",
    ),
    one_change(
        "report-of-an-earlier-process-elects",
        "schedule 45: only a report of the registered process counts",
        dropped("report.broker_epoch != broker.broker_epoch"),
        f"{_STANDING}::test_a_report_of_an_earlier_process_elects_nobody",
    ),
    one_change(
        "report-elects-nobody",
        "schedule 45: an election is held when the missing report comes",
        instead("_ = state.changes(waiting, f'broker {node_id} reported where its log ends')"),
        f"{_STANDING}::test_a_report_completes_the_election",
    ),
)

REGISTRATION: tuple[Mutant, ...] = (
    one_change(
        "cut-log-is-taken-for-whole",
        "schedule 45: cut is not intact",
        dropped("found.condition is LogCondition.INTACT"),
        _TABLE,
        f"{_CRASHES}::test_45_the_newest_batch_of_the_last_leader_rots",
    ),
    one_change(
        "whole-log-is-taken-for-cut",
        "schedule 53: an intact member of the last ISR leads at once",
        part("LogVerdict.KEPT if kept else LogVerdict.IN_DOUBT", "LogVerdict.IN_DOUBT"),
        _TABLE,
        f"{_CRASHES}::test_53_one_stays_dead",
    ),
    one_change(
        "lacking-log-is-in-doubt",
        "schedule 46: who lacks what its checkpoints prove counts for nothing",
        never(),
        _TABLE,
    ),
    one_change(
        "lacking-log-counts",
        "schedule 46: an empty log where checkpoints prove one is not eligible",
        part("LogVerdict.LOST", "LogVerdict.KEPT"),
        _TABLE,
        f"{_CRASHES}::test_46_the_advice_about_damage_is_followed",
        f"{_CRASHES}::test_48_the_leaders_directory_vanishes_after_an_orderly_stop",
    ),
    one_change(
        "no-finding-is-intact",
        "schedule 46: a partition of which nothing was found is in doubt",
        part("LogVerdict.IN_DOUBT", "LogVerdict.KEPT"),
        _TABLE,
    ),
    one_change(
        "older-topics-log-counts",
        "schedule 46: a directory of another topic id is no finding",
        always(),
        f"{_STANDING}::test_a_directory_of_an_older_topic_of_that_name_is_no_finding",
    ),
    one_change(
        "records-of-no-leader-count",
        "schedule 45: a log with records of an epoch that there has not been counts for nothing",
        never(),
        f"{_STANDING}::test_records_of_a_leader_epoch_that_there_has_not_been",
    ),
    one_change(
        "another-disk-counts",
        "schedule 26: a broker with another directory counts for nothing",
        never(),
        f"{_STANDING}::test_a_member_in_doubt_that_lost_its_log_is_waited_for_no_more",
        "tests/controller/machine/test_brokers.py::test_who_lost_its_disk_is_no_last_known_leader",
    ),
    one_change(
        "older-copy-counts",
        "schedule 48: an older copy of the directory counts for nothing",
        always(),
        f"{_STANDING}::test_an_older_copy_of_the_directory_counts_for_nothing",
        f"{_CRASHES}::test_48_an_older_copy_of_the_whole_directory",
    ),
    one_change(
        "late-registration-takes-the-place",
        "B12: a registration replaces the incarnation that it names, and no other",
        part("existing.incarnation_id != request.replaces", "False"),
        f"{_STANDING}::test_a_registration_of_the_past_changes_nothing",
    ),
    one_change(
        "unsynced-acks-count-as-synced",
        "B11: where acks are not synced an unclean stop may lose what was acknowledged (KIP-966)",
        part("acks_are_synced or self.clean", "True"),
        "tests/controller/machine/test_brokers.py::test_restart_after_an_unclean_stop_leaves_isr_and_elr",
        "tests/schedules/quorum/test_controller.py::test_11_the_last_in_sync_loses_its_tail",
    ),
    one_change(
        "any-clean-marker-will-do",
        "B11: a clean marker of an older life proves nothing (KAFKA-15586)",
        part("existing.broker_epoch == request.previous_broker_epoch", "request.previous_broker_epoch >= 0"),
        "tests/controller/machine/test_brokers.py::test_clean_marker_of_an_older_life_proves_nothing",
    ),
    one_change(
        "clean-stop-is-not-believed",
        "B11: after a clean stop a broker stays eligible",
        dropped("self.clean"),
        "tests/controller/machine/test_brokers.py::test_restart_after_a_clean_stop_keeps_its_eligibility",
    ),
    one_change(
        "one-broker-that-acks-unsynced-is-overlooked",
        "B11: acks are synced only where no replica's broker acks unsynced",
        part("any", "all"),
        f"{_STANDING}::test_one_broker_that_acks_unsynced_is_enough",
    ),
    one_change(
        "broker-in-doubt-stays-in-the-isr",
        "schedule 45: who registers anew leaves the ISR, whatever it found",
        part("node not in leaving", "node != remove"),
        "tests/controller/machine/test_brokers.py::"
        "test_who_stopped_uncleanly_and_registers_before_it_was_fenced_leaves_the_isr",
    ),
)

UNSERVED: tuple[Mutant, ...] = (
    one_change(
        "unserved-replica-keeps-the-leadership",
        "schedule 56: who cannot serve leaves the ISR and leads no more",
        instead("_ = state.changes(found, f'broker {node_id} cannot serve its replica', remove=node_id)"),
        f"{_STANDING}::test_a_replica_that_cannot_be_served_loses_the_leadership_at_once",
        f"{_OFFLINE}::test_56_a_leaders_log_fails",
    ),
    one_change(
        "unserved-replica-is-elected",
        "schedule 56: who cannot serve is not elected",
        part("lambda node: lives(node) and self.can_serve(node, topic, partition)", "lives"),
        f"{_STANDING}::test_an_offline_replica_is_not_elected_when_its_broker_is_unfenced",
        f"{_OFFLINE}::test_56_an_offline_replica_is_not_elected",
    ),
    one_change(
        "unserved-replica-joins-the-isr",
        "schedule 56: who cannot serve does not join the ISR",
        never(),
        f"{_STANDING}::test_a_replica_that_cannot_be_served_loses_the_leadership_at_once",
    ),
    one_change(
        "unserved-replicas-are-not-told",
        "schedule 56: who cannot serve says so to the controller",
        part("self._collect_unserved", "ReplicaSet"),
        f"{_OFFLINE}::test_56_a_leaders_log_fails",
    ),
    one_change(
        "unserved-replicas-are-told-to-one-controller",
        "schedule 56: each session begins with all that cannot be served",
        dropped("self._reported_unserved"),
        f"{_OFFLINE}::test_56_a_new_controller_hears_of_it",
    ),
    one_change(
        "poisoned-disk-goes-on",
        "schedule 56: a node whose whole disk refuses to sync stops",
        removed(),
        "tests/replica/test_poisoned_disk.py::test_a_disk_that_syncs_nothing_any_more_stops_the_node",
    ),
    one_change(
        "failure-waits-for-the-next-heartbeat",
        "schedule 56: it says so at once",
        removed(),
        "tests/replica/test_faults.py::test_the_leaders_disk_fails",
    ),
)

LOG: tuple[Mutant, ...] = (
    one_change(
        "findings-are-not-kept",
        "schedule 45: a finding survives restarts until the controller has it",
        never(),
        f"{_FINDINGS}::test_a_cut_is_remembered_until_it_is_committed",
        f"{_FINDINGS}::test_struck_anywhere_a_start_forgets_no_finding",
    ),
    one_change(
        "cut-before-it-is-noted",
        "schedule 45: a finding is durable before the tail is cut",
        removed(),
        f"{_FINDINGS}::test_struck_anywhere_a_start_forgets_no_finding",
    ),
    one_change(
        "earlier-findings-are-not-read",
        "schedule 45: what an earlier start found is told by the next one",
        value("{}"),
        f"{_FINDINGS}::test_a_cut_is_remembered_until_it_is_committed",
    ),
    one_change(
        "findings-are-told-for-ever",
        "schedule 45: what is committed is told no more",
        removed(),
        f"{_FINDINGS}::test_a_cut_is_remembered_until_it_is_committed",
    ),
    one_change(
        "missing-directory-is-silent",
        "schedule 48: a directory that the checkpoints name is missed",
        part("(tp for tp in self._checkpoints.proven() if tp not in examined)", "(tp for tp in ())"),
        f"{_FINDINGS}::test_a_missing_directory_is_lacking",
    ),
    one_change(
        "short-log-is-whole",
        "schedule 48: a log that ends below the checkpoints lacks something",
        never(),
        f"{_FINDINGS}::test_an_older_copy_of_a_directory_is_lacking_and_follows",
    ),
    one_change(
        "clean-mark-covers-everything",
        "schedule 48: the clean mark covers what the checkpoints name",
        condition("... and (not left.clean)"),
        f"{_FINDINGS}::test_an_older_copy_of_a_directory_is_lacking_and_follows",
    ),
    one_change(
        "committed-once-is-cut",
        "E5: nothing below the high watermark's checkpoint is cut",
        part("max(self.recovery_point, self.high_watermark)", "self.recovery_point"),
        f"{_FINDINGS}::test_damage_below_what_was_committed_is_refused",
    ),
    one_change(
        "high-watermark-above-what-is-durable",
        "schedule 48: a checkpoint proves only what is durable",
        part("min(self._told[tp], plog.durable_offset)", "self._told[tp]"),
        f"{_FINDINGS}::test_a_high_watermark_is_written_as_far_as_it_is_durable",
    ),
    one_change(
        "cut-keeps-the-high-watermark",
        "schedule 48: a cut lowers the high watermark's checkpoint first",
        part("offsets.get(tp, 0) > offset", "... and name != HIGH_WATERMARKS"),
        f"{_FINDINGS}::test_a_cut_below_the_high_watermark_lowers_it_first",
    ),
    one_change(
        "deleted-partition-is-missed",
        "schedule 48: what was deleted by order is not missed",
        removed(),
        f"{_FINDINGS}::test_struck_anywhere_a_deletion_is_no_loss",
    ),
    one_change(
        "life-is-not-noted",
        "schedule 48: a life is durable before it registers",
        removed(),
        f"{_FINDINGS}::test_lives_since_the_last_one_that_registered",
    ),
    Mutant(
        "findings-are-dropped-before-they-are-committed",
        "schedule 45: a finding leaves the disk only once its registration is committed",
        (
            instead("findings = topic_findings(node.log_dirs.findings)\nnode.log_dirs.first.findings.committed()\n..."),
            part("topic_findings(node.log_dirs.findings)", "findings"),
        ),
        (f"{_CRASHES}::test_45_killed_between_the_cut_and_the_registration",),
    ),
)

TABLE: tuple[Mutant, ...] = (*ELECTION, *REGISTRATION, *UNSERVED, *LOG)
