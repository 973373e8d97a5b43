"""Elections and eligible leader replicas: rules B10, B11 (KIP-966), schedules 11, 12."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from strandline.controller.machine.partition_change import Election, LogPosition, PartitionChange
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.metadata.replay import check_partition, merge
from strandline.proto.ids import NO_NODE, LeaderEpoch, Offset

TOPIC = UUID(int=1)


@dataclass(frozen=True)
class Case:
    """A partition before, who lives, what is asked, and the partition after ("=": no record at all)."""

    name: str
    isr: tuple[int, ...]
    after_isr: tuple[int, ...]
    after_leader: int
    leader: int = 1
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    recovering: bool = False
    alive: tuple[int, ...] = (1, 2, 3)
    target: tuple[int, ...] | None = None
    doubtful: int = -1
    lost: int = -1
    synced: bool = True
    reported: dict[int, tuple[int, int]] = field(default_factory=dict)
    election: Election = Election.ONLINE
    min_isr: int = 2
    after_elr: tuple[int, ...] = ()
    after_last_known: tuple[int, ...] = ()
    after_recovering: bool = False
    bumps_leader_epoch: bool = True
    unchanged: bool = False


CASES = [
    Case("a leader that may lead stays", (1, 2, 3), (1, 2, 3), 1, unchanged=True),
    Case("a leader in the ISR stays although another is preferred", (2, 3), (2, 3), 3, leader=3, unchanged=True),
    Case(
        "preferred election moves to the first replica in the ISR",
        (1, 3),
        (1, 3),
        1,
        leader=3,
        election=Election.PREFERRED,
    ),
    Case(
        "preferred election leaves the leader when the preferred is out of sync",
        (2, 3),
        (2, 3),
        3,
        leader=3,
        election=Election.PREFERRED,
        unchanged=True,
    ),
    Case(
        "preferred election leaves the leader when the preferred is dead",
        (1, 3),
        (1, 3),
        3,
        leader=3,
        alive=(2, 3),
        election=Election.PREFERRED,
        unchanged=True,
    ),
    Case("the leader falls: the ISR in replica order", (3, 2, 1), (3, 2), 2, alive=(2, 3), target=(3, 2)),
    Case(
        "the ISR shrinks and stays at min ISR: nobody becomes eligible",
        (1, 2, 3),
        (1, 2),
        1,
        target=(1, 2),
        bumps_leader_epoch=False,
    ),
    Case(
        "the ISR falls below min ISR: who leaves becomes eligible",
        (1, 2),
        (1,),
        1,
        target=(1,),
        after_elr=(2,),
        bumps_leader_epoch=False,
    ),
    Case(
        "several leave at once: all become eligible",
        (1, 2, 3),
        (1,),
        1,
        target=(1,),
        after_elr=(2, 3),
        bumps_leader_epoch=False,
    ),
    Case(
        "the ISR is back at min ISR: the list is cleared",
        (1,),
        (1, 3),
        1,
        elr=(2,),
        target=(1, 3),
        bumps_leader_epoch=False,
    ),
    Case(
        "the ISR grows below min ISR: the newcomer leaves the list, others stay",
        (1,),
        (1, 2),
        1,
        elr=(2, 3),
        target=(1, 2),
        min_isr=3,
        after_elr=(3,),
        bumps_leader_epoch=False,
    ),
    Case(
        "the last ISR member falls: eligible, an eligible one leads",
        (1,),
        (2,),
        2,
        elr=(2,),
        alive=(2, 3),
        target=(),
        after_elr=(1,),
    ),
    Case(
        "an eligible replica leads in replica order",
        (1,),
        (2,),
        2,
        elr=(3, 2),
        alive=(2, 3),
        target=(),
        after_elr=(1, 3),
    ),
    Case(
        "nobody eligible lives: no leader, the last one is remembered",
        (1,),
        (),
        NO_NODE,
        elr=(2,),
        alive=(3,),
        target=(),
        after_elr=(1, 2),
        after_last_known=(1,),
        synced=False,
    ),
    Case(
        "D-11: the last ISR member's log is in doubt: not eligible, the other eligible one leads",
        (2,),
        (1,),
        1,
        leader=2,
        elr=(1, 3),
        alive=(1,),
        target=(),
        doubtful=2,
        after_elr=(3,),
        after_last_known=(2,),
    ),
    Case(
        "an eligible one's log is in doubt: it leaves the list",
        (1,),
        (1,),
        1,
        elr=(2, 3),
        doubtful=2,
        alive=(1, 3),
        after_elr=(3,),
        bumps_leader_epoch=False,
        after_last_known=(2,),
    ),
    Case(
        "ISR and ELR lost: no leader, the last one is remembered",
        (1,),
        (),
        NO_NODE,
        alive=(2, 3),
        target=(),
        doubtful=1,
        after_last_known=(1,),
        synced=False,
    ),
    Case(
        "the last known leader is back: it leads, uncleanly",
        (),
        (1,),
        1,
        leader=NO_NODE,
        last_known=(1,),
        after_recovering=True,
        synced=False,
    ),
    Case(
        "the last known leader is dead: nobody leads (Kafka's inverted liveness test is not taken over)",
        (),
        (),
        NO_NODE,
        leader=NO_NODE,
        last_known=(1,),
        alive=(2, 3),
        after_last_known=(1,),
        unchanged=True,
        synced=False,
    ),
    Case(
        "the last known leader does not lead while anybody is eligible",
        (),
        (),
        NO_NODE,
        leader=NO_NODE,
        elr=(2,),
        last_known=(1,),
        alive=(1, 3),
        after_elr=(2,),
        after_last_known=(1,),
        unchanged=True,
        synced=False,
    ),
    Case(
        "an eligible replica is back: it leads cleanly, the memory is cleared",
        (),
        (2,),
        2,
        leader=NO_NODE,
        elr=(2, 1),
        last_known=(1,),
        alive=(2, 3),
        after_elr=(1,),
        synced=False,
    ),
    Case(
        "unclean: any live replica, alone, the eligible are dropped",
        (),
        (3,),
        3,
        leader=NO_NODE,
        elr=(2,),
        last_known=(1,),
        alive=(3,),
        election=Election.UNCLEAN,
        after_recovering=True,
        synced=False,
    ),
    Case(
        "unclean allowed: a clean candidate is preferred all the same",
        (1, 3),
        (3,),
        3,
        alive=(2, 3),
        target=(3,),
        election=Election.UNCLEAN,
        after_elr=(1,),
    ),
    Case(
        "unclean allowed, nobody alive",
        (1,),
        (),
        NO_NODE,
        alive=(),
        target=(),
        election=Election.UNCLEAN,
        after_elr=(1,),
        after_last_known=(1,),
        synced=False,
    ),
    Case(
        "min ISR 1: one in sync is enough, nobody is eligible",
        (1, 2),
        (1,),
        1,
        target=(1,),
        min_isr=1,
        bumps_leader_epoch=False,
    ),
    Case(
        "min ISR 1: the last one falls and stays eligible",
        (1,),
        (),
        NO_NODE,
        alive=(2, 3),
        target=(),
        min_isr=1,
        after_elr=(1,),
        after_last_known=(1,),
        synced=False,
    ),
    Case(
        "min ISR was lowered to 1 while nobody led: who is elected moves the watermark alone, the others are out",
        (),
        (2,),
        2,
        leader=NO_NODE,
        elr=(1, 2),
        last_known=(1,),
        alive=(2, 3),
        min_isr=1,
        synced=False,
    ),
    Case(
        "a recovering partition stays so when its ISR does not change",
        (1,),
        (1,),
        1,
        recovering=True,
        min_isr=1,
        after_recovering=True,
        unchanged=True,
    ),
]


def hold(case: Case) -> None:
    """The change is what the case says."""
    before = PartitionRecord(
        TOPIC, 0, (1, 2, 3), case.isr, case.elr, case.last_known, case.leader, 4, 9, case.recovering
    )
    record = PartitionChange(
        before,
        acceptable=lambda node: node in case.alive,
        min_isr=case.min_isr,
        election=case.election,
        target_isr=case.target,
        doubtful=case.doubtful,
        lost=case.lost,
        synced=case.synced,
        position=lambda node: LogPosition(*case.reported[node]) if node in case.reported else None,
    ).build()
    assert (record is None) == case.unchanged
    after = before if record is None else merge(before, record)
    assert (after.isr, after.leader) == (case.after_isr, case.after_leader)
    assert after.eligible_leader_replicas == case.after_elr
    assert after.last_known_elr == case.after_last_known
    assert after.recovering == case.after_recovering
    if record is not None:
        check_partition(after)
        assert after.partition_epoch == 10
        assert after.leader_epoch == (5 if case.bumps_leader_epoch else 4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_branch_of_the_election(case: Case) -> None:
    """Rule B10, Election: current leader -> ISR in replica order -> ELR -> last known leader -> unclean; and
    KIP-966."""
    hold(case)


def test_unclean_election_takes_the_best_log_not_the_first_replica() -> None:
    """Candidates are ranked by (last epoch, log end), never by length alone (design, section 5)."""
    before = PartitionRecord(TOPIC, 0, (1, 2, 3), (), (), (), NO_NODE, 4, 9, False)
    record = PartitionChange(
        before,
        acceptable=lambda _: True,
        min_isr=2,
        election=Election.UNCLEAN,
        rank=lambda nodes: sorted(nodes, key={1: (3, 900), 2: (4, 10), 3: (4, 11)}.__getitem__, reverse=True),
    ).build()
    assert record is not None
    assert merge(before, record).leader == 3


def test_leader_that_falls_in_an_isr_of_min_size_leaves_an_eligible_list_behind() -> None:
    """KIP-966: {1,2} with min ISR 2, 1 falls: 2 leads and 1, which holds all that is committed, stays eligible."""
    before = PartitionRecord(TOPIC, 0, (1, 2, 3), (1, 2), (), (), 1, 0, 0, False)
    record = PartitionChange(
        before, acceptable=lambda node: node != 1, min_isr=2, target_isr=(2,), reason="broker 1 fenced"
    ).build()
    assert record is not None
    after = merge(before, record)
    assert (after.leader, after.isr, after.eligible_leader_replicas) == (2, (2,), (1,))
    assert record.reason == "broker 1 fenced: elected from the ISR"


@pytest.mark.parametrize(
    ("before", "how", "words"),
    [
        (((1, 2), (), (), 1), {"target_isr": (2,)}, "elected from the ISR"),
        (((), (2,), (), NO_NODE), {}, "elected from the eligible leader replicas"),
        (((), (), (2,), NO_NODE), {}, "elected for the greatest log of all members in doubt"),
        (((), (), (2,), NO_NODE), {"synced": False}, "unclean election of the last known leader"),
        (((), (), (1,), NO_NODE), {"election": Election.UNCLEAN}, "unclean election"),
        (((2,), (), (), 2), {"target_isr": (), "lost": 2}, "nobody may lead"),
        (((1, 2), (), (), 1), {"target_isr": (1,)}, None),
    ],
)
def test_the_reason_says_which_rule_elected(before: Any, how: dict[str, Any], words: str | None) -> None:
    """For people who read the metadata log: why this one leads, or nobody."""
    isr, elr, in_doubt, leader = before
    lives = {1} if words is None else {2} - {how.get("lost")}
    record = PartitionChange(
        PartitionRecord(TOPIC, 0, (1, 2, 3), isr, elr, in_doubt, leader, 0, 0, False),
        acceptable=lives.__contains__,
        min_isr=2,
        position=lambda _: LogPosition(LeaderEpoch(0), Offset(1)),
        reason="broker 1 fenced",
        **how,
    ).build()
    assert record is not None
    assert record.reason == ("broker 1 fenced" if words is None else f"broker 1 fenced: {words}")
