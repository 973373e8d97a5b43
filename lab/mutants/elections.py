"""Mutants of the controller's rules in B: elections and eligible leader replicas (KIP-966)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, never, one_change, part, removed

_ELECTION = "tests/controller/machine/test_partition_change.py"
_BRANCH = f"{_ELECTION}::test_branch_of_the_election"
_CONFIGS = "tests/controller/machine/test_configs.py"
_SCHEDULES = "tests/schedules/quorum/test_controller.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "leader-replaced-although-valid",
        "B10: election: the current leader stays while it may lead",
        dropped("old.leader"),
        _BRANCH,
    ),
    one_change(
        "election-in-the-isrs-own-order",
        "B10: election: the ISR in replica order",
        part("[old.leader, *replicas]", "[old.leader, *self._isr, *self._elr]"),
        _BRANCH,
    ),
    one_change(
        "leader-out-of-sync",
        "B10: election: only the ISR, or the ELR where it is empty",
        dropped("in_sync"),
        _BRANCH,
    ),
    one_change(
        "leader-that-is-not-alive",
        "B10: election: only a live broker",
        dropped("self._acceptable(node)"),
        _BRANCH,
    ),
    one_change(
        "eligible-before-the-isr",
        "B10: election: the ELR only if the ISR is empty",
        dropped("not self._isr"),
        f"{_SCHEDULES}::test_b_an_eligible_replica_waits_while_anybody_is_in_sync",
    ),
    one_change(
        "eligible-are-never-elected",
        "B10: election: the ELR if the ISR is empty",
        dropped("not self._isr and node in self._elr"),
        _BRANCH,
        f"{_SCHEDULES}::test_11_the_last_in_sync_loses_its_tail",
    ),
    one_change(
        "last-known-leader-is-not-tried",
        "B10: election: the last known leader if ISR and ELR are empty",
        part("self._acceptable(last_known[0])", "False"),
        _BRANCH,
    ),
    one_change(
        "last-known-leader-although-dead",
        "B10: election: the last known leader only if it lives",
        part("self._acceptable(last_known[0])", "not ..."),
        _BRANCH,
    ),
    one_change(
        "unclean-although-forbidden",
        "B10: election: any live replica only if unclean is allowed",
        always(),
        _BRANCH,
        f"{_CONFIGS}::test_only_the_last_in_sync_leads_while_unclean_is_off",
    ),
    one_change(
        "unclean-by-replica-order",
        "B10: election: an unclean one takes the best log",
        part(
            "self._rank([node for node in replicas if node not in new and self._acceptable(node)])",
            "[node for node in replicas if node not in new and self._acceptable(node)]",
        ),
        f"{_ELECTION}::test_unclean_election_takes_the_best_log_not_the_first_replica",
    ),
    one_change(
        "unclean-leader-keeps-the-isr",
        "B10: an unclean leader is alone in its ISR",
        part("(leader,)", "(*self._isr, leader) if leader not in self._isr else self._isr"),
        f"{_SCHEDULES}::test_b_an_unclean_leader_is_alone",
    ),
    one_change(
        "unclean-leader-does-not-recover",
        "B10: an unclean leader is RECOVERING",
        removed(),
        _BRANCH,
    ),
    one_change(
        "unclean-leader-keeps-the-eligible",
        "B10: after an unclean election nobody else is eligible",
        removed(),
        _BRANCH,
    ),
    one_change(
        "no-eligible-replicas",
        "B11: ELR: below min ISR those who leave the ISR stay eligible",
        always(),
        _BRANCH,
        f"{_SCHEDULES}::test_11_the_last_in_sync_loses_its_tail",
    ),
    one_change(
        "eligible-are-never-cleared",
        "B11: ELR: cleared once |ISR| >= min ISR",
        never(),
        _BRANCH,
    ),
    one_change(
        "last-known-leader-without-its-disk",
        "B10: election: the last known leader only with the disk it led with",
        part("tuple((node for node in kept if node != self._lost))", "tuple(kept)"),
        "tests/controller/machine/test_brokers.py::test_who_lost_its_disk_is_no_last_known_leader",
    ),
    one_change(
        "earlier-eligible-are-forgotten",
        "B11: ELR: who was eligible stays so until it is cleared",
        part("{*self._partition.eligible_leader_replicas, *self._partition.isr}", "{*self._partition.isr}"),
        _BRANCH,
    ),
    one_change(
        "eligible-leader-leaves-the-others-eligible-at-min-isr-1",
        "B11: ELR: a leader alone at min ISR 1 leaves nobody eligible",
        part(
            "() if self._min_isr <= 1 else tuple((node for node in self._elr if node != leader))",
            "tuple((node for node in self._elr if node != leader))",
        ),
        _BRANCH,
    ),
    one_change(
        "min-isr-lowered-and-the-eligible-kept",
        "B11: ELR: lowering min ISR to the ISR's size clears it",
        removed(),
        f"{_CONFIGS}::test_lowering_min_isr_clears_the_eligible_in_the_same_batch",
    ),
)
