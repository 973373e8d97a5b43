"""Mutants of the controller's rules in B: elections and eligible leader replicas (KIP-966)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_ELECTION = "tests/controller/machine/test_partition_change.py"
_BRANCH = f"{_ELECTION}::test_branch_of_the_election"
_ASKED_FOR = "tests/controller/machine/test_elections_asked_for.py"
_CONFIGS = "tests/controller/machine/test_configs.py"
_SCHEDULES = "tests/schedules/quorum/test_controller.py"
_ELECT = "controller.machine.partition_change:PartitionChange._elect"
_LAST_KNOWN = "controller.machine.partition_change:PartitionChange._last_known_leader"
_MAY_LEAD = "controller.machine.partition_change:PartitionChange._may_lead"
_BUILD = "controller.machine.partition_change:PartitionChange.build"
_NEXT_ELR = "controller.machine.partition_change:PartitionChange._next_elr"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "leader-replaced-although-valid",
        "B10: election: the current leader stays while it may lead",
        _ELECT,
        "order = [old.leader, *old.replicas]",
        "order = [*old.replicas]",
        _BRANCH,
    ),
    one_change(
        "election-in-the-isrs-own-order",
        "B10: election: the ISR in replica order",
        _ELECT,
        "order = [old.leader, *old.replicas]",
        "order = [old.leader, *self._isr, *self._elr]",
        _BRANCH,
    ),
    one_change(
        "leader-out-of-sync",
        "B10: election: only the ISR, or the ELR where it is empty",
        _MAY_LEAD,
        "return in_sync and self._acceptable(node)",
        "return self._acceptable(node)",
        _BRANCH,
    ),
    one_change(
        "leader-that-is-not-alive",
        "B10: election: only a live broker",
        _MAY_LEAD,
        "return in_sync and self._acceptable(node)",
        "return in_sync",
        _BRANCH,
    ),
    one_change(
        "eligible-before-the-isr",
        "B10: election: the ELR only if the ISR is empty",
        _MAY_LEAD,
        "(not self._isr and node in self._elr)",
        "node in self._elr",
        f"{_SCHEDULES}::test_b_an_eligible_replica_waits_while_anybody_is_in_sync",
    ),
    one_change(
        "eligible-are-never-elected",
        "B10: election: the ELR if the ISR is empty",
        _MAY_LEAD,
        " or (not self._isr and node in self._elr)",
        "",
        _BRANCH,
        f"{_SCHEDULES}::test_11_the_last_in_sync_loses_its_tail",
    ),
    one_change(
        "last-known-leader-is-not-tried",
        "B10: election: the last known leader if ISR and ELR are empty",
        _LAST_KNOWN,
        "self._acceptable(last_known[0])",
        "False",
        _BRANCH,
    ),
    one_change(
        "last-known-leader-although-dead",
        "B10: election: the last known leader only if it lives",
        _LAST_KNOWN,
        "self._acceptable(last_known[0])",
        "not self._acceptable(last_known[0])",
        _BRANCH,
    ),
    one_change(
        "unclean-although-forbidden",
        "B10: election: any live replica only if unclean is allowed",
        _ELECT,
        "if self._election is Election.UNCLEAN:",
        "if True:",
        _BRANCH,
        f"{_CONFIGS}::test_only_the_last_in_sync_leads_while_unclean_is_off",
    ),
    one_change(
        "unclean-by-replica-order",
        "B10: election: an unclean one takes the best log",
        _ELECT,
        "self._rank([node for node in old.replicas if self._acceptable(node)])",
        "[node for node in old.replicas if self._acceptable(node)]",
        f"{_ELECTION}::test_unclean_election_takes_the_best_log_not_the_first_replica",
    ),
    one_change(
        "unclean-leader-keeps-the-isr",
        "B10: an unclean leader is alone in its ISR",
        _BUILD,
        "Rule.UNCLEAN):\n            self._isr = (leader,)",
        "Rule.UNCLEAN):\n            self._isr = (*self._isr, leader) if leader not in self._isr else self._isr",
        f"{_SCHEDULES}::test_b_an_unclean_leader_is_alone",
    ),
    one_change(
        "unclean-leader-does-not-recover",
        "B10: an unclean leader is RECOVERING",
        _BUILD,
        "self._recovering = self._recovering or rule.unclean",
        "pass",
        _BRANCH,
    ),
    one_change(
        "unclean-leader-keeps-the-eligible",
        "B10: after an unclean election nobody else is eligible",
        _BUILD,
        "self._isr = (leader,)\n            self._elr = ()\n            self._recovering",
        "self._isr = (leader,)\n            self._recovering",
        _BRANCH,
    ),
    one_change(
        "no-eligible-replicas",
        "B11: ELR: below min ISR those who leave the ISR stay eligible",
        _NEXT_ELR,
        "if len(self._isr) >= self._min_isr:",
        "if True:",
        _BRANCH,
        f"{_SCHEDULES}::test_11_the_last_in_sync_loses_its_tail",
    ),
    one_change(
        "eligible-are-never-cleared",
        "B11: ELR: cleared once |ISR| >= min ISR",
        _NEXT_ELR,
        "if len(self._isr) >= self._min_isr:",
        "if False:",
        _BRANCH,
    ),
    one_change(
        "last-known-leader-without-its-disk",
        "B10: election: the last known leader only with the disk it led with",
        "controller.machine.partition_change:PartitionChange._next_last_known_leader",
        "return tuple(node for node in last_known if node != self._lost)",
        "return last_known",
        "tests/controller/machine/test_brokers.py::test_who_lost_its_disk_is_no_last_known_leader",
    ),
    one_change(
        "earlier-eligible-are-forgotten",
        "B11: ELR: who was eligible stays so until it is cleared",
        _NEXT_ELR,
        "{*self._partition.eligible_leader_replicas, *self._partition.isr}",
        "{*self._partition.isr}",
        _BRANCH,
    ),
    one_change(
        "eligible-leader-leaves-the-others-eligible-at-min-isr-1",
        "B11: ELR: a leader alone at min ISR 1 leaves nobody eligible",
        _BUILD,
        "self._elr = () if self._min_isr <= 1 else ",
        "self._elr = ",
        _BRANCH,
    ),
    one_change(
        "min-isr-lowered-and-the-eligible-kept",
        "B11: ELR: lowering min ISR to the ISR's size clears it",
        "controller.machine.configs:incremental_alter_configs",
        "records += _consequences(state, records)",
        "pass",
        f"{_CONFIGS}::test_lowering_min_isr_clears_the_eligible_in_the_same_batch",
    ),
)
